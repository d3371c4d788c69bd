"""One learning rate for each method and task, chosen on validation examples from one grid."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.paper import Column, PaperTask
from subflot.experiments.scales import Terms, at_hand
from subflot.results import RunRecord

GRID = (0.01, 0.05, 0.1)
VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class Choice:
    """What was tried for a method on a task, and what was chosen."""

    algorithm: str
    task: str
    scores: Mapping[float, float | None]
    """Learning rate -> accuracy on validation examples; None where there is no finished run."""
    reason: str = ""
    """Why one of them did not finish."""

    @property
    def is_complete(self) -> bool:
        """Whether every rate has been tried, so that the choice is fair."""
        return all(score is not None for score in self.scores.values())

    @property
    def learning_rate(self) -> float | None:
        """The rate with the highest score, the smallest of equals; None if nothing succeeded.

        Example:
            >>> Choice("fedavg", "har", {0.01: 0.5, 0.05: 0.75, 0.1: 0.75}).learning_rate
            0.05
        """
        tried = {rate: score for rate, score in self.scores.items() if score is not None}
        return max(tried, key=lambda rate: (tried[rate], -rate)) if tried else None


def trials(algorithm: str, task: PaperTask, terms: Terms) -> dict[float, RunConfig]:
    """Return the runs that decide the learning rate of a method on a task, by rate.

    Variants of a method share its rate, and variants of a task theirs. Test examples are not
    looked at: the runs train on four fifths of the training examples and are measured on the
    others, after the last round, with the first of the seeds. A task without data, or with
    settings that do not fit the method, has none.
    """
    column = Column(task.name, task.title, task)
    settings = terms.of(column)
    here = at_hand(column, settings)
    if here.missing:
        return {}
    settings |= here.settings
    try:
        return {rate: _trial(algorithm, settings, terms, rate) for rate in GRID}
    except SubflotError:
        return {}


def _trial(algorithm: str, settings: dict[str, Any], terms: Terms, rate: float) -> RunConfig:
    return RunConfig.of(
        **{
            **settings,
            "name": "runs",
            "algorithm": algorithm,
            "seed": terms.seeds[0],
            "learning_rate": rate,
            "validation_share": VALIDATION_SHARE,
            "measure_on": "validation",
            "evaluate_every": settings["rounds"],
        }
    )


def choose(
    wanted: Iterable[tuple[str, PaperTask]],
    terms: Terms,
    runs: Path,
    failures: Mapping[str, str],
) -> dict[tuple[str, str], Choice]:
    """Read the choices for methods and tasks off the records of their trials.

    Args:
        wanted: methods and tasks.
        terms: the scale and the seeds.
        runs: folder of the records.
        failures: run -> why it did not finish.
    """
    return {
        (algorithm, task.name): _choice(algorithm, task, terms, runs, failures)
        for algorithm, task in wanted
    }


def _choice(
    algorithm: str, task: PaperTask, terms: Terms, runs: Path, failures: Mapping[str, str]
) -> Choice:
    tried = {rate: one.run_id for rate, one in trials(algorithm, task, terms).items()}
    scores = {rate: _score(RunRecord(runs / run_id)) for rate, run_id in tried.items()}
    reasons = (failures[run_id] for run_id in tried.values() if run_id in failures)
    return Choice(algorithm, task.name, scores, next(reasons, ""))


def _score(record: RunRecord) -> float | None:
    return record.summary()["trained"] if record.is_finished else None
