"""`subflot table` and `subflot figure`: the results of the paper, each by its name."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from subflot.cli import order as options
from subflot.cli.order import (
    Order,
    end_with_failures,
    read_terms,
    read_wanted,
    recorded_beside,
    show_plan,
)
from subflot.cli.show import show
from subflot.errors import SubflotError, UnknownName
from subflot.paper import grids as paper
from subflot.paper.fill import SHEETS
from subflot.paper.sheet import read_sheet
from subflot.paper.tables import FORMATS, heading, notes, terminal, write_all
from subflot.texts import write_text

FIGURES = "figures"


def table_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(paper.TABLES)}.")],
    scale: options.Scale = "smoke",
    protocol: options.ProtocolName = "printed",
    seeds: options.Seeds = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    sets: options.Sets = None,
    jobs: options.Jobs = 1,
    workers: options.WorkersEach = None,
    out: options.Out = options.OUT,
    form: Annotated[
        str, typer.Option("--format", metavar="|".join(["terminal", *FORMATS]), help="On stdout.")
    ] = "terminal",
    dry_run: options.DryRun = False,
    no_run: options.NoRun = False,
    keep_models: options.KeepModels = False,
    ranks: Annotated[
        bool,
        typer.Option("--ranks", help="Also draw which methods differ over the columns."),
    ] = False,
) -> None:
    """Make a table of the paper: run what is missing, show ours beside the paper's numbers."""
    if form not in ("terminal", *FORMATS):
        raise UnknownName("format", form, ("terminal", *FORMATS), "subflot table --help")
    terms, wanted = read_terms(scale, protocol, seeds, sets), read_wanted(rows, columns)
    recorded = recorded_beside(out)
    order = Order(terms, wanted, out, recorded, jobs, workers, keep_models, not no_run)
    if name == "resources":
        if dry_run:
            show("0 runs: this table is counted")
            return
        path = _resources(out)
    else:
        grid = order.grid(name, paper.TABLES)
        if dry_run:
            show_plan(grid, order)
            return
        path = order.fill(grid)
    sheet = read_sheet(path)
    written = write_all(sheet, path)
    asked = sheet.part(wanted.rows, wanted.columns)
    if form == "terminal":
        show(heading(asked))
        show(terminal(asked))
        show("\n".join(notes(asked)))
    else:
        sys.stdout.write(FORMATS[form][1](asked))
    if ranks:
        from subflot.paper.figures import draw_ranks

        written += draw_ranks(asked, out / FIGURES / f"{path.stem}-ranks")
    sys.stderr.write(f"wrote {', '.join(map(str, [path, *written]))}\n")
    if name != "resources":
        end_with_failures(asked, grid, terms)


def figure_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(paper.FIGURES)}.")],
    scale: options.Scale = "smoke",
    protocol: options.ProtocolName = "printed",
    seeds: options.Seeds = None,
    rows: options.Rows = None,
    columns: options.Columns = None,
    sets: options.Sets = None,
    jobs: options.Jobs = 1,
    workers: options.WorkersEach = None,
    out: options.Out = options.OUT,
    dry_run: options.DryRun = False,
    no_run: options.NoRun = False,
    keep_models: options.KeepModels = False,
) -> None:
    """Make a figure of the paper: run what is missing, draw it as PNG and PDF."""
    terms, wanted = read_terms(scale, protocol, seeds, sets), read_wanted(rows, columns)
    needs_models = name == "attention"  # Of recorded runs there are none.
    recorded = None if needs_models else recorded_beside(out)
    is_kept = keep_models or needs_models
    order = Order(terms, wanted, out, recorded, jobs, workers, is_kept, not no_run)
    if name == "convergence":
        if dry_run:
            show("1 run of minutes at most, on the bundled digits")
            return
        path = _convergence(order)
    else:
        grid = order.grid(name, paper.FIGURES)
        if dry_run:
            show_plan(grid, order)
            return
        path = order.fill(grid)
        if needs_models:
            path = _attention(order, path)
        else:
            write_all(read_sheet(path), path)
    from subflot.paper.figures import FROM_SHEETS, draw

    asked = {"rows": wanted.rows, "columns": wanted.columns}
    for file in draw(name, path, out / FIGURES, **asked):
        show(str(file))
    if name in FROM_SHEETS:
        end_with_failures(read_sheet(path).part(**asked), grid, terms)


def _resources(out: Path) -> Path:
    from subflot.paper.resources import resources

    return _write(out / SHEETS / "resources.json", resources())


def _convergence(order: Order) -> Path:
    from subflot.paper.convergence import ROUNDS, convergence

    path = order.out / FIGURES / f"convergence-{order.terms.scale}.json"
    if not order.is_run and order.recorded and not path.is_file():
        path = order.recorded / FIGURES / path.name
    if order.is_run:
        _write(path, convergence(ROUNDS[order.terms.scale], order.terms.seeds[0]))
    found = json.loads(_there(path).read_text())
    for group in ("constants", "terms"):
        for name, value in found[group].items():
            show(f"{name} = {value:.6g}" if group == "constants" else f"term {name} = {value:.6g}")
    where = "below" if found["is_below"] else "NOT below"
    show(f"the gap is {where} the bound in every one of {len(found['gaps']) - 1} rounds")
    return path


def _attention(order: Order, sheet: Path) -> Path:
    from subflot.paper.attention import attention

    found = read_sheet(sheet)
    records = [one for cell in found.cells.values() for one in found.records(cell)]
    if not records:
        raise SubflotError(
            "there is no finished run to look at",
            hint="; ".join(found.missing) or "leave out --no-run",
        )
    path = order.out / FIGURES / sheet.name
    folders = [record.folder for record in records]
    content = attention(folders, path.with_suffix(".npz"), workers=order.workers)
    _write(path, content)
    for kind, one in content["similarity"].items():
        name = content["kinds"][kind]
        show(f"similarity of {name} to the historical model: {one['mean']:.3f}")
    return path


def _there(path: Path) -> Path:
    if not path.is_file():
        raise SubflotError(f"there is no {path}", hint="leave out --no-run")
    return path


def _write(path: Path, content: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(content, indent=1) + "\n")
    return path
