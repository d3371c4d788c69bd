"""The figures by name, each drawn from a sheet and its records, or from a record of its own."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from subflot.errors import UnknownName
from subflot.paper import bars, curves, evidence
from subflot.paper.canvas import save
from subflot.paper.ranks import diagram
from subflot.paper.sheet import Sheet, read_sheet
from subflot.paper.tables import heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FROM_SHEETS: Mapping[str, Callable[[Sheet], "Figure"]] = {
    "pruning-rates": curves.pruning_rates,
    "sensitivity": curves.sensitivity,
    "cost": curves.spending,
    "time": bars.times,
    "per-client": bars.per_client,
}
FROM_FILES: Mapping[str, Callable[[Path], "Figure"]] = {
    "attention": evidence.attention,
    "convergence": evidence.convergence,
}


def draw(
    name: str, path: Path, folder: Path, *, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[Path]:
    """Draw a figure into a folder, as PNG and PDF; return the files.

    Args:
        name: of the figure.
        path: its sheet, or the JSON file of its experiment.
        folder: for the pictures, which are named after `path`.
        rows: of the sheet, those to draw; all if none are named.
        columns: likewise.
    """
    if name in FROM_FILES:
        figure = FROM_FILES[name](path)
    elif name in FROM_SHEETS:
        sheet = read_sheet(path).part(rows, columns)
        figure = FROM_SHEETS[name](sheet)
        figure.suptitle(heading(sheet), fontsize="small", wrap=True)
    else:
        raise UnknownName("figure", name, (*FROM_SHEETS, *FROM_FILES), "subflot figure --help")
    return save(figure, folder / path.stem)


def draw_ranks(sheet: Sheet, stem: Path) -> list[Path]:
    """Draw which methods of a table differ over its columns; return the files."""
    figure = diagram(sheet)
    figure.suptitle(heading(sheet), fontsize="small", wrap=True)
    return save(figure, stem)
