"""How a long run shows that it is alive: a bar on a terminal, a line per round elsewhere."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from subflot.simulation import Round


def accuracies(metrics: dict[str, Any]) -> str:
    """Write the accuracies of a round, as far as they were measured.

    Example:
        >>> accuracies({"trained": {"mean": 0.5}, "extracted": None, "global": {"accuracy": 0.25}})
        'trained 50.0 %  global 25.0 %'
    """
    keys = {"trained": "mean", "extracted": "mean", "global": "accuracy"}
    shown = [(name, metrics[name][key]) for name, key in keys.items() if metrics[name]]
    return "  ".join(f"{name} {value:.1%}".replace("%", " %") for name, value in shown)


@dataclass
class Watch:
    """Told of every round of one run."""

    title: str
    rounds: int
    bar: Progress | None

    def __post_init__(self) -> None:
        self._seconds: list[float] = []
        if self.bar is not None:
            self._task = self.bar.add_task(self.title, total=self.rounds, said="")

    def __call__(self, done: Round) -> None:
        """Show a round that is saved."""
        said = accuracies(done.metrics)
        if done.metrics["num_rejected"]:
            said += f"  {done.metrics['num_rejected']} uploads rejected"
        if self.bar is not None:
            self.bar.update(self._task, completed=done.round, said=said)
            return
        self._seconds.append(done.seconds)
        left = (self.rounds - done.round) * sum(self._seconds) / len(self._seconds)
        sys.stderr.write(
            f"{self.title}: round {done.round}/{self.rounds}  {said}  "
            f"{done.seconds:.1f} s, {left:.0f} s left\n"
        )
        sys.stderr.flush()


@contextmanager
def progress() -> Iterator[Progress | None]:
    """Give a bar if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[said]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield bar
