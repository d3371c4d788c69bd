"""What the commands that make tables and figures share: their options, and how they run."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from subflot.algorithms import ALGORITHMS
from subflot.cli.show import show
from subflot.cli.watch import Watch, progress
from subflot.errors import SubflotError
from subflot.experiments.batch import OnRound, run_all, unfinished
from subflot.experiments.config import RunConfig, parse
from subflot.experiments.tuning import Runner
from subflot.paper import grids as paper
from subflot.paper.estimate import estimate
from subflot.paper.fill import Planned, fill, plan
from subflot.paper.plan import RUNS, Wanted, slots
from subflot.paper.scales import PROTOCOLS, SCALES, Terms, at_hand
from subflot.paper.sheet import NOT_RUN, Sheet
from subflot.simulation.workers import default_workers

Scale = Annotated[str, typer.Option(metavar="|".join(SCALES), help="How large the runs are.")]
ProtocolName = Annotated[
    str,
    typer.Option(
        metavar="|".join(PROTOCOLS),
        help="Train as the paper prints, or with settings searched for on validation examples.",
    ),
]
Seeds = Annotated[
    str | None, typer.Option(help="Separated by commas; by default 0 for smoke, else 0,1,2.")
]
Rows = Annotated[
    str | None,
    typer.Option(
        help="Run and show only these rows, separated by commas; any method can have one."
    ),
]
Columns = Annotated[
    str | None, typer.Option(help="Run and show only these columns; files have all.")
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change it in all runs.")
]
Jobs = Annotated[int, typer.Option(help="Runs side by side.", min=1)]
WorkersEach = Annotated[
    int | None, typer.Option(help="Processes of each run; by default the cores, shared.", min=1)
]
OUT, RECORDED = Path("runs/paper"), Path("results")
"""Where commands write unless they are told otherwise, and what they only read."""
Out = Annotated[
    Path,
    typer.Option(
        help=f"Folder for records, tables and figures; what is finished in {RECORDED}/ is not run "
        "again either."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be run, and its cost.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Draw what there is, run nothing.")]
KeepModels = Annotated[
    bool, typer.Option("--keep-models", help="Keep the models of finished runs on disk.")
]


@dataclass(frozen=True)
class Order:
    """What was asked for on the command line.

    Attributes:
        terms: scale, protocol, seeds and settings.
        wanted: rows and columns to run.
        out: folder of the results.
        recorded: a folder of results that are only read.
        jobs: runs side by side.
        workers: processes of each.
        keep_models: whether the models of finished runs stay.
        is_run: whether anything is run at all.
    """

    terms: Terms
    wanted: Wanted
    out: Path
    recorded: Path | None
    jobs: int
    workers: int | None
    keep_models: bool
    is_run: bool

    @property
    def runs(self) -> list[Path]:
        """The folders of records, the first of which is written to."""
        return [place / RUNS for place in (self.out, self.recorded) if place]

    def grid(self, name: str, among: Sequence[str]) -> paper.Grid:
        """Find a table, with a row for every method that was named and has none."""
        grid = paper.find(name, among)
        return grid.with_rows([row for row in self.wanted.rows if row in ALGORITHMS])

    def fill(self, grid: paper.Grid) -> Path:
        """Run what is asked for and write the sheet."""
        with progress() as bar:

            def watched(config: RunConfig) -> OnRound:
                title = f"{config.algorithm} on {config.data}, seed {config.seed}"
                return Watch(title, config.rounds, bar)

            runner: Runner = partial(
                run_all,
                folder=self.out / RUNS,
                recorded=self.runs[1:],
                jobs=self.jobs,
                workers=self.workers,
                keep_models=self.keep_models,
                watched=watched,
                on_end=_say_end,
            )
            try:
                chosen = runner if self.is_run else None
                return fill(grid, self.terms, self.wanted, self.out, chosen, self.recorded)
            except KeyboardInterrupt:
                sys.stderr.write("stopped; the same command goes on where it was\n")
                raise typer.Exit(130) from None


def recorded_beside(out: Path) -> Path | None:
    """Return the folder of recorded results, if there is one here and it is not the other."""
    is_other = RECORDED.is_dir() and RECORDED.resolve() != out.resolve()
    return RECORDED if is_other else None


def read_terms(scale: str, protocol: str, seeds: str | None, sets: Sequence[str] | None) -> Terms:
    """Read the options that say on which terms runs are made."""
    seeds = seeds or ("0" if scale == "smoke" else "0,1,2")
    try:
        numbers = tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise SubflotError(f"`{seeds}` are no seeds", hint="write them as 0,1,2") from None
    return Terms(scale, protocol, numbers, parse(sets or ()))


def read_wanted(rows: str | None, columns: str | None) -> Wanted:
    """Read the options that say which cells to run."""
    return Wanted(*(tuple(names.split(",")) if names else () for names in (rows, columns)))


def _say_end(config: RunConfig, reason: str) -> None:
    if reason:
        sys.stderr.write(f"{config.run_id} failed: {reason}\n")
    elif not sys.stderr.isatty():
        sys.stderr.write(f"{config.run_id} is finished\n")


def show_plan(grid: paper.Grid, order: Order) -> None:
    """Show the runs that a table needs: how many, how long, how much disk."""
    order.wanted.check(grid)
    planned = plan(grid, order.terms, order.wanted, order.runs)
    left = {one.run_id for one in unfinished([one.config for one in planned], order.runs)}
    table = Table("task", "runs", "of these trials", "finished", "core hours left", "GB of models")
    for task in dict.fromkeys(one.task.name for one in planned):
        _add(table, task, [one for one in planned if one.task.name == task], left)
    table.add_section()
    _add(table, "all", planned, left)
    show(table)
    cores = default_workers("cpu")
    total = estimate((p.config, p.task) for p in planned if p.config.run_id in left)
    show(
        f"about {total.hours(cores):.2g} hours on {cores} cores; {total.record_bytes / 1e6:.2g} MB "
        "of records stay on disk, and with --keep-models all models"
    )
    for reason in dict.fromkeys(missing_data(grid, order.terms)):
        show(f"missing: {reason}")


def _add(table: Table, title: str, planned: Sequence[Planned], left: set[str]) -> None:
    unfinished = [one for one in planned if one.config.run_id in left]
    cost = estimate((one.config, one.task) for one in unfinished)
    table.add_row(
        title,
        str(len(planned)),
        str(sum(one.is_trial for one in planned)),
        str(len(planned) - len(unfinished)),
        f"{cost.hours(1):.2g}",
        f"{cost.model_bytes / 1e9:.2g}",
    )


def end_with_failures(asked: Sheet, grid: paper.Grid, terms: Terms) -> None:
    """End the command as failed if a cell that was asked for is missing though it could be run."""
    expected = {NOT_RUN, *(slot.reason for slot in slots(grid, terms, None))}
    failed = {reason: cells for reason, cells in asked.missing.items() if reason not in expected}
    for reason, cells in failed.items():
        names = ", ".join(f"{cell.row} on {cell.column}" for cell in cells)
        sys.stderr.write(f"failed: {names}: {reason}\n")
    if failed:
        raise typer.Exit(1)


def missing_data(grid: paper.Grid, terms: Terms) -> list[str]:
    """List why columns cannot be run on this machine."""
    found = [at_hand(column, terms.of(column)).missing for column in grid.columns]
    return [reason for reason in found if reason]
