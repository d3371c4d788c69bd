"""`subflot report`: the runs of a folder as one page."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from subflot.errors import SubflotError
from subflot.reporting.page import render
from subflot.results import find_runs
from subflot.texts import write_text


def report_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of runs, at any depth.")],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to write it; by default report.html in DIR."),
    ] = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models/--no-models",
            help="Show the channel maps and transport plans that runs noted.",
        ),
    ] = True,
) -> None:
    """Write one HTML page about the runs of a folder; it needs no server and no network.

    PNG files in DIR/figures are shown on the page.
    """
    if not folder.is_dir():
        raise SubflotError(f"there is no folder {folder}", hint="`subflot run` makes one in runs/")
    path = output or folder / "report.html"
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SubflotError(f"cannot write {path}", hint="name a file in a folder that exists")
    records = list(find_runs(folder))
    pictures = sorted((folder / "figures").glob("*.png"))
    page = render(records, folder, with_models=models, pictures=pictures)
    write_text(path, page)
    count = "1 run" if len(records) == 1 else f"{len(records)} runs"
    sys.stderr.write(f"wrote {path}: {count}, {len(page.encode()) / 1e6:.2f} MB\n")
