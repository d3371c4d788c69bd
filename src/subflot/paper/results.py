"""Every table and figure by its name: the runs that it needs, and what is drawn of them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subflot.algorithms import ALGORITHMS
from subflot.errors import SubflotError, UnknownName
from subflot.experiments.tuning import Runner
from subflot.paper import bars, curves, evidence, grids, tables
from subflot.paper.attention import attention
from subflot.paper.canvas import save
from subflot.paper.convergence import ROUNDS, convergence
from subflot.paper.fill import SHEETS, fill
from subflot.paper.plan import RUNS, Planned, plan, slots
from subflot.paper.resources import resources
from subflot.paper.scales import Terms, at_hand
from subflot.paper.sheet import NOT_RUN, Sheet, read_sheet
from subflot.texts import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

FIGURES = "figures"


@dataclass(frozen=True)
class Order:
    """What is asked for: the terms, and where results are.

    Attributes:
        terms: scale, protocol, seeds, settings, and the cells that are run and shown.
        out: folder of the results.
        recorded: a folder of results that are only read.
        runner: runs configs; None to draw what there is.
        workers: processes of each run.
    """

    terms: Terms
    out: Path
    recorded: Path | None = None
    runner: Runner | None = None
    workers: int | None = None

    @property
    def runs(self) -> list[Path]:
        """The folders of records, the first of which is written to."""
        return [place / RUNS for place in (self.out, self.recorded) if place]


class Result(ABC):
    """A table or a figure of the paper."""

    needs_models = False
    """Whether runs must leave their models, so that none on record will do."""
    aside = ""
    """What to say of its runs where a grid does not name them."""

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(self, order: Order) -> list[Planned]:
        """List the runs that it needs, finished or not."""
        return []

    def missing_data(self, order: Order) -> list[str]:
        """Say which of its data are not here."""
        return []

    @abstractmethod
    def make(self, order: Order) -> Path:
        """Run what is asked for, and write what it is drawn from."""

    @abstractmethod
    def draw(self, path: Path, order: Order) -> list[Path]:
        """Draw what `make` wrote; return the files."""

    def told(self, path: Path) -> list[str]:
        """Say in words what a reader should know of it."""
        return []

    def failures(self, path: Path, order: Order) -> list[str]:
        """Name cells that were asked for and are missing though they could be run."""
        return []


class Table(Result):
    """A table: a grid of runs."""

    def grid(self, order: Order) -> grids.Grid:
        """Read the grid, with a row for every method that is named and has none."""
        found = grids.find(self.name)
        return found.with_rows([row for row in order.terms.rows if row in ALGORITHMS])

    def plan(self, order: Order) -> list[Planned]:
        grid = self.grid(order)
        order.terms.check(grid)
        return plan(grid, order.terms, order.runs)

    def missing_data(self, order: Order) -> list[str]:
        columns = self.grid(order).columns
        found = [at_hand(column, order.terms.of(column)).missing for column in columns]
        return [reason for reason in dict.fromkeys(found) if reason]

    def make(self, order: Order) -> Path:
        return fill(self.grid(order), order.terms, order.out, order.runner, order.recorded)

    def draw(self, path: Path, order: Order) -> list[Path]:
        return tables.write_all(read_sheet(path), path)

    def failures(self, path: Path, order: Order) -> list[str]:
        asked = read_sheet(path).part(order.terms.rows, order.terms.columns)
        expected = {NOT_RUN, *(one.reason for one in slots(self.grid(order), order.terms))}
        return [
            f"{', '.join(f'{cell.row} on {cell.column}' for cell in cells)}: {reason}"
            for reason, cells in asked.missing.items()
            if reason not in expected
        ]


class Figure(Table):
    """A figure of the runs of a grid."""

    def __init__(self, name: str, drawing: "Callable[[Sheet], Drawing]") -> None:
        super().__init__(name)
        self.drawing = drawing

    def draw(self, path: Path, order: Order) -> list[Path]:
        super().draw(path, order)
        asked = read_sheet(path).part(order.terms.rows, order.terms.columns)
        drawn = self.drawing(asked)
        drawn.suptitle(tables.heading(asked), fontsize="small", wrap=True)
        return save(drawn, order.out / FIGURES / path.stem)


class Resources(Result):
    """A table that is counted rather than run."""

    aside = "0 runs: this table is counted"

    def make(self, order: Order) -> Path:
        return _write(order.out / SHEETS / f"{self.name}.json", resources())

    def draw(self, path: Path, order: Order) -> list[Path]:
        return tables.write_all(read_sheet(path), path)


class Attention(Table):
    """Maps of the models of runs."""

    needs_models = True

    def make(self, order: Order) -> Path:
        sheet = super().make(order)
        found = read_sheet(sheet)
        folders = [one.folder for cell in found.cells.values() for one in found.records(cell)]
        if not folders:
            raise SubflotError(
                "there is no finished run to look at",
                hint="; ".join(found.missing) or "leave out --no-run",
            )
        path = order.out / FIGURES / sheet.name
        return _write(path, attention(folders, path.with_suffix(".npz"), workers=order.workers))

    def draw(self, path: Path, order: Order) -> list[Path]:
        return save(evidence.attention(path), path.with_suffix(""))

    def told(self, path: Path) -> list[str]:
        found = json.loads(path.read_text())
        return [
            f"similarity of {found['kinds'][kind]} to the historical model: {one['mean']:.3f}"
            for kind, one in found["similarity"].items()
        ]

    def failures(self, path: Path, order: Order) -> list[str]:
        return []


class Convergence(Result):
    """A run of its own, beside a bound."""

    aside = "1 run of minutes at most, on the bundled digits"

    def make(self, order: Order) -> Path:
        scale, name = order.terms.scale, f"{self.name}-{order.terms.scale}.json"
        path = order.out / FIGURES / name
        if order.runner:
            return _write(path, convergence(ROUNDS[scale], order.terms.seeds[0]))
        if order.recorded and not path.is_file():
            path = order.recorded / FIGURES / name
        if not path.is_file():
            raise SubflotError(f"there is no {path}", hint="leave out --no-run")
        return path

    def draw(self, path: Path, order: Order) -> list[Path]:
        return save(evidence.convergence(path), order.out / FIGURES / path.stem)

    def told(self, path: Path) -> list[str]:
        found = json.loads(path.read_text())
        where = "below" if found["is_below"] else "NOT below"
        return [
            *(f"{name} = {value:.6g}" for name, value in found["constants"].items()),
            *(f"term {name} = {value:.6g}" for name, value in found["terms"].items()),
            f"the gap is {where} the bound in every one of {len(found['gaps']) - 1} rounds",
        ]


def _write(path: Path, content: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1) + "\n")
    return path


RESULTS: Mapping[str, Mapping[str, Result]] = {
    kind: {one.name: one for one in found}
    for kind, found in {
        "table": (
            Table("label-skew"),
            Table("feature-shift"),
            Table("clients"),
            Table("heterogeneity"),
            Table("sparsity"),
            Resources("resources"),
            Table("ablation"),
            Table("hyperparameters"),
            Table("proxy"),
            Table("personalised"),
            Table("further"),
            Table("ladder"),
        ),
        "figure": (
            Attention("attention"),
            Figure("time", bars.times),
            Figure("sensitivity", curves.sensitivity),
            Figure("pruning-rates", curves.pruning_rates),
            Convergence("convergence"),
            Figure("cost", curves.spending),
            Figure("per-client", bars.per_client),
        ),
    }.items()
}
"""Kind -> name -> what is made."""


def find(kind: str, name: str) -> Result:
    """Find a table or a figure; an unknown name offers the nearest."""
    if name not in RESULTS[kind]:
        raise UnknownName(kind, name, RESULTS[kind], f"subflot {kind} --help")
    return RESULTS[kind][name]
