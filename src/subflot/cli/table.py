"""`subflot table` and `subflot figure`: the results of the paper, each by its name."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from subflot.cli.show import show
from subflot.cli.watch import Watch, progress
from subflot.errors import SubflotError, UnknownName
from subflot.experiments.batch import OnRound, run_all, unfinished
from subflot.experiments.config import RunConfig, parse
from subflot.paper.estimate import Estimate, estimate
from subflot.paper.plan import RUNS, Planned
from subflot.paper.ranks import draw_ranks
from subflot.paper.results import FIGURES, RESULTS, Order, Result, find
from subflot.paper.scales import PROTOCOLS, SCALES, Terms
from subflot.paper.sheet import read_sheet
from subflot.paper.tables import FORMATS, heading, notes, terminal
from subflot.simulation.workers import default_workers

OUT, RECORDED = Path("runs/paper"), Path("results")
"""Where commands write unless they are told otherwise, and what they only read."""


def table_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(RESULTS['table'])}.")],
    scale: Annotated[
        str, typer.Option(metavar="|".join(SCALES), help="How large the runs are.")
    ] = "smoke",
    protocol: Annotated[
        str,
        typer.Option(
            metavar="|".join(PROTOCOLS),
            help="Train as the paper prints, or with settings searched for on validation examples.",
        ),
    ] = "printed",
    seeds: Annotated[
        str | None,
        typer.Option(help="Separated by commas; by default 0 for smoke, else 0,1,2."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            help="Run and show only these rows, separated by commas; any method can have one."
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Run and show only these columns; files have all.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change it in all runs."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs side by side.", min=1)] = 1,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes of each run; by default the cores, shared.", min=1),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for records, tables and figures; what is finished in "
            f"{RECORDED}/ is not run again either."
        ),
    ] = OUT,
    form: Annotated[
        str,
        typer.Option("--format", metavar="|".join(["terminal", *FORMATS]), help="On stdout."),
    ] = "terminal",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be run, and its cost.")
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Draw what there is, run nothing.")
    ] = False,
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Keep the models of finished runs on disk.")
    ] = False,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Also draw which methods differ over the columns.")
    ] = False,
) -> None:
    """Make a table of the paper: run what is missing, show ours beside the paper's numbers."""
    if form not in ("terminal", *FORMATS):
        raise UnknownName("format", form, ("terminal", *FORMATS), "subflot table --help")
    result = find("table", name)
    cells = scale, protocol, seeds, sets, rows, columns
    order = _order(result, _terms(*cells), jobs, workers, out, no_run, keep_models)
    path = _made(result, order, dry_run)
    written = result.draw(path, order)
    asked = read_sheet(path).part(order.terms.rows, order.terms.columns)
    if form == "terminal":
        show(heading(asked))
        show(terminal(asked))
        show("\n".join(notes(asked)))
    else:
        sys.stdout.write(FORMATS[form][1](asked))
    if ranks:
        written += draw_ranks(asked, out / FIGURES / f"{path.stem}-ranks")
    sys.stderr.write(f"wrote {', '.join(map(str, [path, *written]))}\n")
    _end(result.failures(path, order))


def figure_command(name: str, dry_run: bool, **options: Any) -> None:
    """Make a figure of the paper: run what is missing, draw it as PNG and PDF."""
    result = find("figure", name)
    cells = [options.pop(key) for key in ("scale", "protocol", "seeds", "sets", "rows", "columns")]
    order = _order(result, _terms(*cells), **options)
    path = _made(result, order, dry_run)
    files = result.draw(path, order)
    for line in (*result.told(path), *map(str, files)):
        show(line)
    _end(result.failures(path, order))


def _options_of_figures() -> inspect.Signature:
    """Those of tables, but for their forms; the names are others."""
    about = typer.Argument(help=f"One of: {', '.join(RESULTS['figure'])}.")
    options = inspect.signature(table_command).parameters
    name = options["name"].replace(annotation=Annotated[str, about])
    return inspect.Signature(
        [name, *(one for key, one in options.items() if key not in ("name", "form", "ranks"))]
    )


vars(figure_command)["__signature__"] = _options_of_figures()


def _order(
    result: Result,
    terms: Terms,
    jobs: int,
    workers: int | None,
    out: Path,
    no_run: bool,
    keep_models: bool,
) -> Order:
    # Of recorded runs there are no models.
    recorded = None if result.needs_models else _recorded_beside(out)

    def runner(configs: Sequence[RunConfig]) -> dict[str, str]:
        with progress() as bar:

            def watched(config: RunConfig) -> OnRound:
                title = f"{config.algorithm} on {config.data}, seed {config.seed}"
                return Watch(title, config.rounds, bar)

            return run_all(
                configs,
                out / RUNS,
                recorded=[recorded / RUNS] if recorded else [],
                jobs=jobs,
                workers=workers,
                keep_models=keep_models or result.needs_models,
                watched=watched,
                on_end=_say_end,
            )

    return Order(terms, out, recorded, None if no_run else runner, workers)


def _made(result: Result, order: Order, is_dry: bool) -> Path:
    """Make a result; a dry run ends the command."""
    if is_dry:
        _show_plan(result, order)
        raise typer.Exit
    try:
        return result.make(order)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command goes on where it was\n")
        raise typer.Exit(130) from None


def _end(failures: Sequence[str]) -> None:
    sys.stderr.writelines(f"failed: {one}\n" for one in failures)
    if failures:
        raise typer.Exit(1)


def _recorded_beside(out: Path) -> Path | None:
    """Return the folder of recorded results, if there is one here and it is not the other."""
    is_other = RECORDED.is_dir() and RECORDED.resolve() != out.resolve()
    return RECORDED if is_other else None


def _terms(
    scale: str,
    protocol: str,
    seeds: str | None,
    sets: Sequence[str] | None,
    rows: str | None,
    columns: str | None,
) -> Terms:
    seeds = seeds or ("0" if scale == "smoke" else "0,1,2")
    try:
        numbers = tuple(int(seed) for seed in seeds.split(","))
    except ValueError:
        raise SubflotError(f"`{seeds}` are no seeds", hint="write them as 0,1,2") from None
    cells = (tuple(names.split(",")) if names else () for names in (rows, columns))
    return Terms(scale, protocol, numbers, parse(sets or ()), *cells)


def _say_end(config: RunConfig, reason: str) -> None:
    if reason:
        sys.stderr.write(f"{config.run_id} failed: {reason}\n")
    elif not sys.stderr.isatty():
        sys.stderr.write(f"{config.run_id} is finished\n")


def _show_plan(result: Result, order: Order) -> None:
    """Show the runs that are needed: how many, how long, how much disk."""
    if result.aside:
        show(result.aside)
        return
    planned = result.plan(order)
    left = {one.run_id for one in unfinished([p.config for p in planned if p.config], order.runs)}
    table = Table("task", "runs", "of these trials", "finished", "core hours left", "GB of models")
    for task in dict.fromkeys(one.column.task.name for one in planned):
        _add(table, task, [one for one in planned if one.column.task.name == task], left)
    table.add_section()
    total = _add(table, "all", planned, left)
    show(table)
    cores = default_workers("cpu")
    show(
        f"about {total.hours(cores):.2g} hours on {cores} cores; {total.record_bytes / 1e6:.2g} MB "
        "of records stay on disk, and with --keep-models all models"
    )
    for reason in result.missing_data(order):
        show(f"missing: {reason}")


def _add(table: Table, title: str, planned: Sequence[Planned], left: set[str]) -> Estimate:
    """Add a line about some runs; return what those that are left take."""
    runs = [(one.config, one.column.task) for one in planned if one.config]
    to_run = [(config, task) for config, task in runs if config.run_id in left]
    cost = estimate(to_run)
    table.add_row(
        title,
        str(len(runs)),
        str(sum(one.is_trial for one in planned)),
        str(len(runs) - len(to_run)),
        f"{cost.hours(1):.2g}",
        f"{cost.model_bytes / 1e9:.2g}",
    )
    return cost
