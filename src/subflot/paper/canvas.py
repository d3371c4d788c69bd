"""What all figures share: readable in black and white, saved as PNG and PDF."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from subflot.drawing import PICTURES, blank

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MARKERS = "osD^v<>Pp*X"
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++")
ACROSS = 2
"""Panels side by side."""
ENTRY = 1.6
"""Inches that an entry of a legend takes."""
HERO = "subflot"
"""Drawn heavier than the others."""


@dataclass(frozen=True)
class Style:
    """How one line is drawn; marker and dashes tell it from others without colour."""

    marker: str
    dashes: str
    colour: str
    width: float


def styles(names: Iterable[str]) -> dict[str, Style]:
    """Give every name a style of its own."""
    found = {}
    for number, name in enumerate(names):
        is_hero = name == HERO
        found[name] = Style(
            MARKERS[number % len(MARKERS)],
            "-" if is_hero else LINES[number % len(LINES)],
            "black" if is_hero else f"C{number % 10}",
            2.4 if is_hero else 1.2,
        )
    return found


def panels(count: int, *, width: float = 5.0, height: float = 4.0) -> "tuple[Figure, list[Axes]]":
    """Make a figure with panels, two side by side."""
    across = min(count, ACROSS)
    down = -(-count // across)
    figure = blank(width * across, height * down)
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation over seeds, which a single one has not."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def label(axes: "Axes", title: str, x: str, y: str) -> None:
    """Name a panel and its axes."""
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, linewidth=0.3)


def say_missing(axes: "Axes") -> None:
    """Say in a panel that there is nothing to draw yet."""
    axes.text(0.5, 0.5, "missing", ha="center", va="center", transform=axes.transAxes)


def legend(figure: "Figure", axes: "Sequence[Axes]") -> None:
    """Put one legend for all panels below them."""
    found: dict[str, Any] = {}
    for one in axes:
        handles, names = one.get_legend_handles_labels()
        found.update(zip(names, handles, strict=True))
    if found:
        columns = min(len(found), max(1, int(figure.get_figwidth() / ENTRY)))
        figure.legend(found.values(), found, loc="outside lower center", ncols=columns)


def save(figure: "Figure", stem: Path) -> list[Path]:
    """Write a figure in every kind; return the files."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(stem.name + kind) for kind in PICTURES]
    for file in files:
        # Without the date two drawings of one record are equal.
        figure.savefig(file, metadata={"CreationDate": None} if file.suffix == ".pdf" else None)
    return files
