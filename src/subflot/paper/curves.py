"""Figures of lines: accuracy against pruning rate, against settings, against what was spent."""

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from subflot.paper.canvas import Style, label, legend, panels, say_missing, spread, styles
from subflot.paper.sheet import Cell, Sheet
from subflot.results import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCURACY = "accuracy of trained models (%)"
PASSES = 3
"""Training an example costs about three forward passes: one forward, two backward."""
Point = tuple[float, Cell]


def pruning_rates(sheet: Sheet) -> "Figure":
    """Draw accuracy against the rate that all clients prune, a line per method."""
    lines = list(dict.fromkeys(str(column["line"]) for column in sheet.columns.values()))
    figure, grid = panels(len(lines))
    style = styles(sheet.rows)
    for axes, line in zip(grid, lines, strict=True):
        columns = [name for name, column in sheet.columns.items() if column["line"] == line]
        for row, about in sheet.rows.items():
            points = [(float(sheet.columns[c]["x"]), sheet.cells[row, c]) for c in columns]
            _line(axes, points, style[row], str(about["title"]))
        label(axes, line, "share of channels that every client prunes", ACCURACY)
        _say_if_empty(axes)
    legend(figure, grid)
    return figure


def sensitivity(sheet: Sheet) -> "Figure":
    """Draw accuracy against alpha and lambda, a line per task."""
    groups = list(dict.fromkeys(str(row["group"]) for row in sheet.rows.values()))
    figure, grid = panels(len(groups))
    style = styles(sheet.columns)
    for axes, group in zip(grid, groups, strict=True):
        rows = [name for name, row in sheet.rows.items() if row["group"] == group]
        for column, about in sheet.columns.items():
            points = [
                (float(str(sheet.rows[row]["title"]).split()[-1]), sheet.cells[row, column])
                for row in rows
            ]
            _line(axes, points, style[column], str(about["title"]))
        label(axes, group, group, ACCURACY)
        if not _say_if_empty(axes) and group == "lambda":
            _count_by_factors(axes)
    legend(figure, grid)
    return figure


def spending(sheet: Sheet) -> "Figure":
    """Draw accuracy against bytes sent and multiply-adds of training so far, a line per method."""
    figure, grid = panels(2 * len(sheet.columns))
    style = styles(sheet.rows)
    for number, (column, about) in enumerate(sheet.columns.items()):
        pair = grid[2 * number : 2 * number + 2]
        for row, method in sheet.rows.items():
            records = sheet.records(sheet.cells[row, column])
            for axes, spent in zip(pair, (sent, computed), strict=True):
                _curve(
                    axes, [_course(one, spent) for one in records], style[row], str(method["title"])
                )
        titles = ("megabytes sent, both ways", "multiply-adds of training, in billions")
        for axes, title in zip(pair, titles, strict=True):
            label(axes, str(about["title"]), title, ACCURACY)
            if not _say_if_empty(axes):
                _count_by_factors(axes)
    legend(figure, grid)
    return figure


def sent(record: RunRecord) -> list[float]:
    """Megabytes of each round, down and up."""
    return [(line["bytes_down"] + line["bytes_up"]) / 1e6 for line in record.rounds]


def computed(record: RunRecord) -> list[float]:
    """Billions of multiply-adds that training took in each round."""
    epochs = record.config["epochs"]
    return [
        PASSES
        * epochs
        * sum(
            count * each
            for count, each in zip(
                line["clients"]["num_examples"], line["clients"]["multiply_adds"], strict=True
            )
        )
        / 1e9
        for line in record.rounds
    ]


Course = list[tuple[float, float]]
"""What was spent until a round, and the accuracy after it."""


Spent = Callable[[RunRecord], list[float]]


def _course(record: RunRecord, spent: Spent) -> Course:
    """Follow a run through the rounds that were measured."""
    total, found = 0.0, []
    for line, cost in zip(record.rounds, spent(record), strict=True):
        total += cost
        if line["trained"]:
            found.append((total, 100 * line["trained"]["mean"]))
    return found


def _curve(axes: "Axes", courses: Sequence[Course], style: Style, title: str) -> None:
    """Draw the mean of the courses of several seeds, which have their rounds in common."""
    points = []
    for each in zip(*courses, strict=False):
        x, y = zip(*each, strict=True)
        points.append((statistics.fmean(x), statistics.fmean(y), spread(y)))
    _draw(axes, points, style, title)


def _line(axes: "Axes", points: Sequence[Point], style: Style, title: str) -> None:
    """Draw means with error bars of one standard deviation; missing cells are gaps."""
    there = [(x, cell.mean, cell.deviation or 0.0) for x, cell in points if cell.mean is not None]
    _draw(axes, there, style, title)


def _draw(
    axes: "Axes", points: Sequence[tuple[float, float, float]], style: Style, title: str
) -> None:
    """Draw a line through (x, y, spread)."""
    if not points:
        return
    x, y, errors = zip(*points, strict=True)
    axes.errorbar(
        x,
        y,
        errors,
        linestyle=style.dashes,
        color=style.colour,
        marker=style.marker,
        markersize=5,
        linewidth=style.width,
        elinewidth=0.7,
        capsize=3,
        label=title,
    )


def _count_by_factors(axes: "Axes") -> None:
    """Let the x axis count by factors, with plain numbers at 1, 2, 5, 10 and so on."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def _say_if_empty(axes: "Axes") -> bool:
    """Say in a panel without lines that they are missing; return whether it is one."""
    if axes.has_data():
        return False
    say_missing(axes)
    return True
