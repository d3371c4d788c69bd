"""The tables and figures of the paper as data: rows, columns, and the numbers that it prints.

They lie in `printed/*.toml`. A row is a method with its settings, a column is a task with its
settings, and a cell is the runs of both together.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from subflot.algorithms import ALGORITHMS
from subflot.errors import UnknownName

CHANGING: tuple[str, ...] = ("reduced", "smoke")
"""The scales that take less than the paper."""


@dataclass(frozen=True)
class PaperTask:
    """A data set with the network and the partition that the paper gives it."""

    name: str
    title: str
    num_examples: int
    """As published: training and test examples together."""
    settings: Mapping[str, Any]
    """Of the run, at the paper's size."""
    scales: Mapping[str, Mapping[str, Any]]
    """Scale -> what it changes."""
    domains: tuple[str, ...] = ()
    """The groups of the data set, in the order in which clients are numbered."""
    num_groups: int = 20
    """Clients, where a setting leaves their number to the data."""


@dataclass(frozen=True)
class Row:
    """A method, or a variant of one."""

    name: str
    title: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""
    """Rows are ranked among those of one group."""


@dataclass(frozen=True)
class Column:
    """A task, or a variant of one."""

    name: str
    title: str
    task: PaperTask
    settings: Mapping[str, Any] = field(default_factory=dict)
    scales: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    domain: str = ""
    """Only the clients of this domain count."""
    mean_of: tuple[str, ...] = ()
    """The columns of single domains whose mean this one is."""
    x: float | None = None
    """Where it stands along the line of a figure, and the name of that line."""
    line: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of the paper, or the runs behind a figure."""

    name: str
    title: str
    source: str
    """Where it stands in the paper."""
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    anchor: str
    """The column that the smallest scale fills; of the others it fills one row."""
    printed: Mapping[tuple[str, str], float]
    """(Row, column) -> the paper's number, where it has one."""
    spread: Mapping[tuple[str, str], float]
    """(Row, column) -> the paper's standard deviation, where it has one."""

    def with_rows(self, algorithms: Sequence[str]) -> "Grid":
        """Add a row for each method that has none; the paper prints no numbers for them."""
        known = {row.name for row in self.rows}
        added = tuple(_row(name) for name in algorithms if name not in known)
        return Grid(**{**vars(self), "rows": (*self.rows, *added)})

    def printed_mean(self, row: str, columns: Sequence[str]) -> float | None:
        """Average the paper's numbers over some columns of a row; None if one is not printed."""
        found = [self.printed.get((row, column)) for column in columns]
        numbers = [number for number in found if number is not None]
        return sum(numbers) / len(numbers) if found and len(numbers) == len(found) else None


def find(name: str) -> Grid:
    """Read the grid behind a table or a figure."""
    raw = _read(name)
    rows = raw["rows"]
    named = _read("methods")[rows] if isinstance(rows, str) else rows
    columns = tuple(_column(one) for one in raw["columns"])
    return Grid(
        name=name,
        title=raw["title"],
        source=raw["source"],
        rows=tuple(_row(one) for one in named),
        columns=columns,
        anchor=raw.get("anchor", columns[0].name),
        printed=_numbers(raw.get("printed", {}), columns),
        spread=_numbers(raw.get("spread", {}), columns),
    )


@cache
def tasks() -> Mapping[str, PaperTask]:
    """Read what the paper trains on what, by name."""
    raw = _read("tasks")
    found = {}
    for name, own in raw.items():
        one = {**raw.get(own.get("like", ""), {}), **own}
        found[name] = PaperTask(
            name=name,
            title=one["title"],
            num_examples=one["num_examples"],
            settings=one["settings"],
            scales={scale: one[scale] for scale in CHANGING},
            domains=tuple(one.get("domains", ())),
            num_groups=one.get("num_groups", len(one.get("domains", ())) or PaperTask.num_groups),
        )
    return found


def _row(one: str | Mapping[str, Any]) -> Row:
    if not isinstance(one, str):
        return Row(**one)
    if one not in ALGORITHMS:
        raise UnknownName("algorithm", one, ALGORITHMS, "subflot algorithms")
    return Row(one, ALGORITHMS[one].__name__, one)


def _column(one: Mapping[str, Any]) -> Column:
    given = dict(one)
    scales = {scale: given.pop(scale) for scale in CHANGING if scale in given}
    mean_of = tuple(given.pop("mean_of", ()))
    task = tasks()[given.pop("task", given["name"])]
    return Column(**{"title": task.title, **given}, task=task, scales=scales, mean_of=mean_of)


def _numbers(
    rows: Mapping[str, Sequence[float]], columns: Sequence[Column]
) -> dict[tuple[str, str], float]:
    """Name the numbers of each row; columns that the paper lacks stand last."""
    return {
        (row, column.name): float(number)
        for row, numbers in rows.items()
        for column, number in zip(columns, numbers, strict=False)
    }


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("subflot.paper") / "printed" / f"{name}.toml").read_text())
