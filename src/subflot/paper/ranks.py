"""Which methods differ over several columns of a table: average ranks and their critical distance.

Paper: "Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR 2006. Friedman's test,
as Iman and Davenport corrected it, asks whether the methods differ at all; Nemenyi's says how far
apart two average ranks must lie. Both count columns as independent data sets.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from subflot.drawing import blank
from subflot.errors import SubflotError
from subflot.paper.canvas import save
from subflot.paper.sheet import Sheet
from subflot.paper.tables import heading
from subflot.reporting.paired import DIGITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVEL = 0.05
"""How often methods that are all alike may be told apart."""
LEAST = 3
"""Methods and columns that a diagram needs."""
LINE, BAR = 0.32, 0.16
"""Inches between names of methods, and between bars."""
MOST_NUMBERS = 16
"""On the axis."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """How methods rank on average.

    Attributes:
        ranks: title of a method -> its average rank, the best first.
        columns: titles of the columns that count.
        chance: how likely ranks so unlike are if all methods are alike (Friedman's test).
        distance: by which two average ranks must differ (Nemenyi's test).
    """

    ranks: Mapping[str, float]
    columns: tuple[str, ...]
    chance: float
    distance: float

    @property
    def groups(self) -> list[tuple[int, int]]:
        """List the first and last place of methods that are not told apart, the longest runs."""
        found = list(self.ranks.values())
        if self.chance > LEVEL:
            return [(0, len(found) - 1)]
        runs: list[tuple[int, int]] = []
        for first, rank in enumerate(found):
            last = max(n for n, other in enumerate(found) if other - rank <= self.distance)
            if last > first and (not runs or last > runs[-1][1]):
                runs.append((first, last))
        return runs


def average_ranks(numbers: Floats) -> Floats:
    """Rank the methods of each column, 1 for the highest, and average; ties share their places.

    Args:
        numbers: shape (columns, methods).

    Example:
        >>> average_ranks(np.array([[80.0, 90.0, 80.0], [70.0, 60.0, 50.0]])).tolist()
        [1.75, 1.5, 2.75]
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(-numbers.round(DIGITS), axis=1).mean(0))


def chance_of(ranks: Floats, num_columns: int) -> float:
    """Return the p-value of average ranks, by the F statistic of Iman and Davenport."""
    from scipy.stats import f

    count = len(ranks)
    chi = 12 * num_columns / (count * (count + 1)) * ((ranks - (count + 1) / 2) ** 2).sum()
    left = num_columns * (count - 1) - chi
    if left <= 1e-9:  # All columns agree.
        return 0.0
    freedom = (count - 1, (count - 1) * (num_columns - 1))
    return float(f.sf((num_columns - 1) * chi / left, *freedom))


def critical_distance(num_methods: int, num_columns: int) -> float:
    """Return by how much two average ranks must differ (Nemenyi)."""
    from scipy.stats import studentized_range

    quantile = studentized_range.ppf(1 - LEVEL, num_methods, np.inf) / math.sqrt(2)
    return float(quantile * math.sqrt(num_methods * (num_methods + 1) / (6 * num_columns)))


def ranking(sheet: Sheet) -> Ranking:
    """Rank the methods of a table, over the columns that all of them have in full.

    Columns without any result are left out; then rows that lack one of the others.
    """
    if sheet.unit != "%":
        raise SubflotError(
            f"the table is in {sheet.unit}, and ranks are of accuracies", hint="leave out --ranks"
        )
    columns = [c for c in sheet.columns if any(one.is_whole for one in sheet.column(c))]
    rows = [r for r in sheet.rows if all(sheet.cells[r, c].is_whole for c in columns)]
    if len(columns) < LEAST or len(rows) < LEAST:
        found = ", ".join(columns) or "none"
        raise SubflotError(
            f"a diagram of ranks needs {LEAST} columns with results and {LEAST} methods that have "
            f"all of them; there are {len(columns)} ({found}) and {len(rows) if columns else 0}",
            hint="run more of the table, or name complete --columns and --rows",
        )
    numbers = np.array([[sheet.cells[row, column].mean for row in rows] for column in columns])
    ranks = average_ranks(numbers)
    order = np.argsort(ranks, kind="stable")
    return Ranking(
        {str(sheet.rows[rows[n]]["title"]): float(ranks[n]) for n in order},
        tuple(str(sheet.columns[column]["title"]) for column in columns),
        chance_of(ranks, len(columns)),
        critical_distance(len(rows), len(columns)),
    )


def caption(found: Ranking, sheet: Sheet) -> str:
    """Say what the diagram shows, and how far it can be trusted."""
    verdict = "methods differ" if found.chance <= LEVEL else "no difference is shown"
    said = [
        f"Average ranks, 1 is best, over {len(found.columns)} columns: {', '.join(found.columns)}.",
        f"Friedman's test: p = {found.chance:.2g}, {verdict}. Methods that a bar joins are not "
        f"told apart (Nemenyi, critical distance {found.distance:.2f}, level {LEVEL}).",
    ]
    if _have_common_runs(sheet):
        said.append(
            "Some columns are parts of the same runs; counted as independent, they make the "
            "distance too short."
        )
    left = [str(row["title"]) for row in sheet.rows.values() if row["title"] not in found.ranks]
    if left:
        said.append(f"Left out, for want of results: {', '.join(left)}.")
    return "\n".join(said)


def _have_common_runs(sheet: Sheet) -> bool:
    return any(
        len(runs) > len(set(runs))
        for row in sheet.rows
        for runs in [[run for c in sheet.columns for run in sheet.cells[row, c].runs if run]]
    )


def diagram(sheet: Sheet) -> "Figure":
    """Draw a critical-difference diagram: an axis of ranks, names at both sides, bars between."""
    found = ranking(sheet)
    names, ranks = list(found.ranks), list(found.ranks.values())
    depth = BAR * (len(found.groups) + 1)
    lines = -(-len(names) // 2)
    figure = blank(9.0, 1.6 + depth + LINE * lines + 0.9)
    axes = figure.subplots()
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(-depth - LINE * lines, 0.9)
    axes.set_axis_off()
    _scale(axes, len(names), found.distance)
    for place, (name, rank) in enumerate(zip(names, ranks, strict=True)):
        is_left = place < lines
        line = place if is_left else len(names) - 1 - place
        height, end = -depth - LINE * line, 0.2 if is_left else 0.8
        at = _across(rank, len(names))
        axes.plot([at, at, end], [0.0, height, height], color="black", linewidth=0.8)
        side = "right" if is_left else "left"
        text = f"{name}  {rank:.2f}" if is_left else f"{rank:.2f}  {name}"
        axes.text(end + (-0.01 if is_left else 0.01), height, text, ha=side, va="center")
    for line, (first, last) in enumerate(found.groups, start=1):
        ends = [_across(ranks[place], len(names)) for place in (first, last)]
        span = [ends[0] - 0.006, ends[1] + 0.006]
        axes.plot(span, [-BAR * line] * 2, color="black", linewidth=3.5)
    figure.supxlabel(caption(found, sheet), fontsize="small", wrap=True)
    return figure


def _across(rank: float, num_methods: int) -> float:
    """Place a rank on the axis, the best at the left."""
    return 0.25 + 0.5 * (rank - 1) / (num_methods - 1)


def _scale(axes: "Axes", num_methods: int, distance: float) -> None:
    """Draw the axis of ranks and, above it, the critical distance; one that is longer is cut."""
    axes.plot([0.25, 0.75], [0.0, 0.0], color="black", linewidth=1.2)
    step = -(-num_methods // MOST_NUMBERS)
    for rank in range(1, num_methods + 1):
        at = _across(rank, num_methods)
        axes.plot([at, at], [0.0, 0.08], color="black", linewidth=1.2)
        if (rank - 1) % step == 0:
            axes.text(at, 0.12, str(rank), ha="center", va="bottom", fontsize="small")
    end = _across(1 + distance, num_methods)
    text = f"critical distance {distance:.2f}"
    if end > 0.75:
        end, text = 0.75, f"{text}, more than the axis"
    axes.plot([0.25, end], [0.55, 0.55], color="black", linewidth=1.2)
    for at in (0.25, end):
        axes.plot([at, at], [0.5, 0.6], color="black", linewidth=1.2)
    axes.text((0.25 + end) / 2, 0.63, text, ha="center", va="bottom", fontsize="small")


def draw_ranks(sheet: Sheet, stem: Path) -> list[Path]:
    """Draw which methods of a table differ over its columns; return the files."""
    figure = diagram(sheet)
    figure.suptitle(heading(sheet), fontsize="small", wrap=True)
    return save(figure, stem)
