"""How a download shows that it is alive: a bar on a terminal, a line now and then elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from subflot.data.fetch import Progress as Told
from subflot.data.source import SourceFile

STEP = 0.1
"""Share of a file from one line to the next."""


@contextmanager
def show_progress() -> Iterator[Callable[[SourceFile], Told]]:
    """Give a function that follows the download of a file."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:

        def follow(file: SourceFile) -> Told:
            task = bar.add_task(file.name, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield follow


def _lines(file: SourceFile) -> Told:
    said = -1

    def told(done: int, total: int | None) -> None:
        nonlocal said
        step = int(done / total / STEP) if total else done // 10_000_000
        if step > said:
            said = step
            of = f" of {total / 1e6:.1f}" if total else ""
            sys.stderr.write(f"{file.name}: {done / 1e6:.1f}{of} MB\n")

    return told
