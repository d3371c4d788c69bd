"""A table at a scale: which runs it needs, and the sheet that says which record fills which cell.

A sheet is a JSON file beside the records. Tables and figures are drawn from both, without torch,
data or this package's settings, so they can be drawn again anywhere.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from subflot.algorithms import ALGORITHMS
from subflot.errors import SubflotError, UnknownName
from subflot.experiments.config import RunConfig
from subflot.experiments.tuning import Choice
from subflot.paper.grids import Column, Grid, Row
from subflot.paper.scales import DataAtHand, Terms, at_hand
from subflot.texts import write_text

RUNS = "runs"
"""Folder of all records, of whichever table: what two tables share is run once."""
Choices = Mapping[tuple[str, str], Choice]


@dataclass(frozen=True)
class Slot:
    """One run of a cell, or why there is none."""

    row: Row
    column: Column
    seed: int
    config: RunConfig | None
    reason: str = ""


@dataclass(frozen=True)
class Wanted:
    """Which cells are to be run; empty for all that the scale fills."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def check(self, grid: Grid) -> None:
        """Refuse names that the grid does not have."""
        for kind, names, known in (
            ("row", self.rows, [row.name for row in grid.rows]),
            ("column", self.columns, [column.name for column in grid.columns]),
        ):
            for name in names:
                if name not in known:
                    raise UnknownName(f"{kind} of {grid.name}", name, known, "subflot table --help")

    def has(self, slot: Slot, grid: Grid, terms: Terms) -> bool:
        """Whether a run is asked for. `smoke` fills one column and one row where nothing is."""
        if self.rows and slot.row.name not in self.rows:
            return False
        if self.columns and slot.column.name not in self.columns:
            return False
        if terms.scale != "smoke" or self.rows or self.columns:
            return True
        names = [row.name for row in grid.rows]
        across = "subflot" if "subflot" in names else names[0]
        return slot.column.name == grid.anchor or slot.row.name == across


def slots(grid: Grid, terms: Terms, choices: Choices | None) -> list[Slot]:
    """Name every run of a grid, column by column.

    Args:
        grid: the table.
        terms: its scale, protocol and seeds.
        choices: of the protocol `searched`; None takes the usual settings, which is good enough
            to count runs.
    """
    found = []
    for column in grid.columns:
        settings = terms.of(column)
        here = at_hand(column, settings)
        for seed in terms.seeds:
            for row in grid.rows:
                one = _slot(row, column, seed, settings, here, terms, choices)
                found.append(one)
    _check_settings(found, terms)
    return found


def _slot(
    row: Row,
    column: Column,
    seed: int,
    settings: Mapping[str, Any],
    here: DataAtHand,
    terms: Terms,
    choices: Choices | None,
) -> Slot:
    if here.missing:
        return Slot(row, column, seed, None, here.missing)
    own: dict[str, Any] = {**settings, **row.settings, **here.settings}
    try:
        config = RunConfig.of(**{**own, "name": RUNS, "algorithm": row.algorithm, "seed": seed})
    except SubflotError as error:
        return Slot(row, column, seed, None, error.args[0])
    if choices is None or not terms.is_searched:
        return Slot(row, column, seed, config)
    choice = choices.get((row.algorithm, column.task.name))
    if choice is None or choice.learning_rate is None:
        failed = choice.reason if choice else ""
        return Slot(row, column, seed, None, f"no learning rate works: {failed}" if failed else "")
    return Slot(row, column, seed, choice.applied(config, held=row.settings))


def _check_settings(found: Sequence[Slot], terms: Terms) -> None:
    """Refuse a setting that fits no run at all: it is a slip, not a matter of one column."""
    if not terms.settings or any(slot.config for slot in found):
        return
    raise SubflotError(
        f"no run fits these settings: {found[0].reason}",
        hint=f"--set gave {', '.join(terms.settings)}",
    )


def sheet(
    grid: Grid,
    terms: Terms,
    choices: Choices,
    failures: Mapping[str, str],
) -> dict[str, Any]:
    """Describe a table for drawing: rows, columns, and of every cell its runs and printed number.

    Args:
        grid: the table.
        terms: its scale, protocol and seeds.
        choices: the learning rates and settings of the protocol `searched`.
        failures: run -> why it did not finish.
    """
    by_cell: dict[tuple[str, str], list[Slot]] = {}
    for slot in slots(grid, terms, choices):
        by_cell.setdefault((slot.row.name, slot.column.name), []).append(slot)
    return {
        "name": grid.name,
        "title": grid.title,
        "source": grid.source,
        "scale": terms.scale,
        "protocol": terms.protocol,
        "seeds": list(terms.seeds),
        "settings": dict(terms.settings),
        "notes": _notes(grid, terms),
        "rows": [
            {
                "name": row.name,
                "title": row.title,
                "group": row.group,
                "remark": ALGORITHMS[row.algorithm].remark,
            }
            for row in grid.rows
        ],
        "columns": [
            {"name": c.name, "title": c.title, "x": c.x, "line": c.line} for c in grid.columns
        ],
        "cells": [_cell(grid, terms, slots, failures) for slots in by_cell.values()],
        "choices": [choice.told() for choice in choices.values()],
    }


def _cell(
    grid: Grid, terms: Terms, slots: Sequence[Slot], failures: Mapping[str, str]
) -> dict[str, Any]:
    row, column = slots[0].row, slots[0].column
    here = at_hand(column, terms.of(column))
    key = (row.name, column.name)
    printed, spread = grid.printed.get(key), grid.spread.get(key)
    if column.mean_of and not here.missing:
        domains = {c.name: c.domain for c in grid.columns}
        there = [name for name in column.mean_of if domains[name] in here.domains]
        if len(there) < len(column.mean_of):
            printed, spread = grid.printed_mean(row.name, there), None
    reasons = [slot.reason or failures.get(_run(slot) or "", "") for slot in slots]
    return {
        "row": row.name,
        "column": column.name,
        "runs": [_run(slot) for slot in slots],
        "part": _part(column, here),
        "printed": printed,
        "spread": spread,
        "reason": next((reason for reason in reasons if reason), ""),
    }


def _notes(grid: Grid, terms: Terms) -> list[str]:
    """Say which means are of fewer domains than the paper's."""
    said = []
    for column in grid.columns:
        here = at_hand(column, terms.of(column))
        if column.mean_of and not here.missing and len(here.domains) < len(column.mean_of):
            said.append(
                f"{column.title}: of the domains at hand, {', '.join(here.domains)}; the paper's "
                "number is the mean of what it prints for these."
            )
    return said


def _run(slot: Slot) -> str | None:
    return slot.config.run_id if slot.config else None


def _part(column: Column, here: DataAtHand) -> list[int] | None:
    """Say which of how many equal parts of the clients count: those of one domain, or all.

    Partitions by domain number the clients of the first domain first.
    """
    if not column.domain or here.missing:
        return None
    return [here.domains.index(column.domain), len(here.domains)]


def write_sheet(
    content: Mapping[str, Any], folders: Sequence[Path], runs: Sequence[Path] = ()
) -> Path:
    """Write a sheet under the name that its table, scale and protocol give it.

    Which runs fill a cell cannot be told without its data, so where these are not here, what an
    earlier sheet of the same terms says of it stays.

    Args:
        content: the sheet.
        folders: the first is written to; earlier sheets are looked for in all.
        runs: where else there are records than beside the folder of the sheet.
    """
    folder = folders[0]
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{content['name']}-{content['scale']}-{content['protocol']}.json"
    for earlier in (_earlier(place / name) for place in folders):
        if all(earlier.get(key) == content[key] for key in ("seeds", "settings")):
            content = _completed(content, earlier)
    if runs:
        content = {**content, "records": [os.path.relpath(place, folder) for place in runs]}
    write_text(folder / name, json.dumps(content, indent=1) + "\n")
    return folder / name


def _earlier(path: Path) -> dict[str, Any]:
    """Read the sheet that is there; nothing if there is none that can be read."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _completed(content: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Take cells without runs, choices without trials and notes from an earlier sheet."""
    cells = {(cell["row"], cell["column"]): cell for cell in earlier["cells"] if any(cell["runs"])}
    choices = {(one["algorithm"], one["task"]): one for one in earlier["choices"]}
    return {
        **content,
        "notes": content["notes"] or earlier["notes"],
        "cells": [
            cell if any(cell["runs"]) else cells.get((cell["row"], cell["column"]), cell)
            for cell in content["cells"]
        ],
        "choices": [
            one if one["trials"] else choices.get((one["algorithm"], one["task"]), one)
            for one in content["choices"]
        ],
    }
