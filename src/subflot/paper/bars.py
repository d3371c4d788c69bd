"""Figures of bars: where the time goes, and who gains or loses."""

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from subflot.paper.canvas import HATCHES, HERO, label, legend, panels, say_missing, spread
from subflot.paper.sheet import Sheet
from subflot.results import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TARGET, STEP = 0.8, 0.05
"""The paper's target accuracy, and the steps in which it is lowered where runs are too short."""


def times(sheet: Sheet) -> "Figure":
    """Draw seconds for all rounds by phase, and until a target accuracy is reached."""
    figure, grid = panels(2 * len(sheet.columns), width=5.5, height=4.5)
    for number, (column, about) in enumerate(sheet.columns.items()):
        left, right = grid[2 * number : 2 * number + 2]
        runs = _runs(sheet, column)
        goal = target(runs)
        label(left, f"{about['title']}: all rounds", "seconds", "")
        label(right, f"{about['title']}: until {goal:.0%} accuracy", "seconds", "")
        if not runs:
            say_missing(left)
            say_missing(right)
            continue
        _phases(left, runs)
        _until(right, runs, goal)
    legend(figure, grid)
    return figure


def target(runs: Mapping[str, Sequence[RunRecord]]) -> float:
    """Return the paper's target, or the highest step below it that half of the methods reach."""
    best = sorted(
        (max(_best(record) for record in records) for records in runs.values()), reverse=True
    )
    goal = TARGET
    while best and goal > STEP and sum(one >= goal for one in best) < -(-len(best) // 2):
        goal = round(goal - STEP, 9)
    return goal


def seconds_until(record: RunRecord, goal: float) -> float | None:
    """Return the wall time until the trained models first reached an accuracy; None if never."""
    total = 0.0
    for line, time in zip(record.rounds, record.timing, strict=True):
        total += time["seconds"]
        if line["trained"] and line["trained"]["mean"] >= goal:
            return float(total)
    return None


def _best(record: RunRecord) -> float:
    return float(record.summary()["best_trained"] or 0.0)


def _runs(sheet: Sheet, column: str) -> dict[str, list[RunRecord]]:
    """Title of a row -> its finished runs, where it has any."""
    found = {
        str(row["title"]): sheet.records(sheet.cells[name, column])
        for name, row in sheet.rows.items()
    }
    return {title: records for title, records in found.items() if records}


def _phases(axes: "Axes", runs: Mapping[str, Sequence[RunRecord]]) -> None:
    """Stack the seconds of each phase; a line marks the wall time."""
    names = list(runs)
    phases = list(
        dict.fromkeys(p for rs in runs.values() for r in rs for p in r.summary()["phases"])
    )
    start = [0.0] * len(names)
    for number, phase in enumerate(phases):
        length = [
            statistics.fmean(record.summary()["phases"].get(phase, 0.0) for record in runs[name])
            for name in names
        ]
        grey = str(0.95 - 0.7 * number / max(1, len(phases) - 1))
        hatch = HATCHES[number % len(HATCHES)]
        axes.barh(
            names, length, left=start, color=grey, hatch=hatch, edgecolor="black", label=phase
        )
        start = [one + more for one, more in zip(start, length, strict=True)]
    wall = [[record.summary()["seconds"] for record in runs[name]] for name in names]
    axes.errorbar(
        [statistics.fmean(each) for each in wall],
        names,
        xerr=[spread(each) for each in wall],
        linestyle="",
        marker="|",
        markersize=14,
        color="black",
        capsize=3,
        label="wall time",
    )
    axes.invert_yaxis()


def _until(axes: "Axes", runs: Mapping[str, Sequence[RunRecord]], goal: float) -> None:
    names = list(runs)
    for place, name in enumerate(names):
        found = [seconds_until(record, goal) for record in runs[name]]
        reached = [seconds for seconds in found if seconds is not None]
        if not reached:
            axes.text(0.0, place, " not reached", va="center")
            continue
        mean = statistics.fmean(reached)
        axes.barh(place, mean, xerr=spread(reached), color="0.8", edgecolor="black", capsize=3)
        if len(reached) < len(found):
            # Seeds that never got there are slower than any that did.
            axes.text(0.0, place, f" {len(reached)} of {len(found)} seeds", va="center")
    _name_rows(axes, names)


def per_client(sheet: Sheet) -> "Figure":
    """Draw the accuracy of every client, and what each gains with SubFLOT against each method."""
    figure, grid = panels(2 * len(sheet.columns), width=5.5, height=4.5)
    hero = str(sheet.rows.get(HERO, {}).get("title", HERO))
    for number, (column, about) in enumerate(sheet.columns.items()):
        left, right = grid[2 * number : 2 * number + 2]
        people = {title: clients(records) for title, records in _runs(sheet, column).items()}
        label(left, f"{about['title']}: every client", "accuracy when last trained (%)", "")
        label(right, f"{about['title']}: gain with {hero}", "percentage points", "")
        if not people:
            say_missing(left)
            say_missing(right)
            continue
        _spread_out(left, people)
        _gains(right, people, hero)
    return figure


def clients(records: Sequence[RunRecord]) -> dict[tuple[int, int], float]:
    """(Seed, client) -> its accuracy in percent."""
    return {
        (record.config["seed"], client): 100 * accuracy
        for record in records
        for client, accuracy in record.client_accuracies().items()
    }


def gains(
    own: Mapping[tuple[int, int], float], other: Mapping[tuple[int, int], float]
) -> list[float]:
    """Return what each client that both have gains, in percentage points."""
    return [own[one] - other[one] for one in own if one in other]


def _spread_out(axes: "Axes", people: Mapping[str, Mapping[tuple[int, int], float]]) -> None:
    """Draw a dot per client and a bar at the mean."""
    for place, each in enumerate(people.values()):
        axes.plot(
            list(each.values()), [place] * len(each), "o", color="black", alpha=0.35, markersize=4
        )
        axes.plot([statistics.fmean(each.values())], [place], "|", color="black", markersize=18)
    _name_rows(axes, list(people))


def _gains(axes: "Axes", people: Mapping[str, Mapping[tuple[int, int], float]], hero: str) -> None:
    """Draw boxes of what clients gain, and how many gain and lose."""
    others = [title for title in people if title != hero]
    if not others:
        say_missing(axes)
        return
    for place, title in enumerate(others):
        found = gains(people.get(hero, {}), people[title])
        if not found:
            axes.text(0.0, place, " no client in common", va="center")
            continue
        axes.boxplot(
            [found],
            positions=[place],
            orientation="horizontal",
            widths=0.6,
            manage_ticks=False,
            medianprops={"color": "black", "linewidth": 2.0},
        )
        more, less = sum(one > 0 for one in found), sum(one < 0 for one in found)
        axes.annotate(
            f"+{more} -{less}", (1.0, place), xycoords=("axes fraction", "data"), va="center"
        )
    axes.axvline(0.0, color="black", linewidth=0.8)
    _name_rows(axes, others)


def _name_rows(axes: "Axes", names: Sequence[str]) -> None:
    """Name rows from top to bottom; one without a bar has its place too."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
