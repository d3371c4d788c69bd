"""Fill a table: run what it asks for and is not there, choose settings, write its sheet.

A sheet is a JSON file beside the records that says which record fills which cell. Tables and
figures are drawn from both, without torch, data or this package's settings, so they can be drawn
again anywhere.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from subflot.algorithms import ALGORITHMS
from subflot.experiments.tuning import Runner
from subflot.paper.grids import Grid
from subflot.paper.plan import RUNS, Choices, Planned, asked, choose, slots
from subflot.paper.scales import Terms, at_hand
from subflot.paper.sheet import Cell
from subflot.texts import write_text

SHEETS = "tables"


def fill(
    grid: Grid,
    terms: Terms,
    out: Path,
    runner: Runner | None = None,
    recorded: Path | None = None,
) -> Path:
    """Run what is asked for, and write the sheet, which has all cells; return its path.

    Args:
        grid: the table.
        terms: its scale, protocol, seeds and settings, and the cells to run.
        out: folder of the results; records lie in `runs` in it and sheets in `tables`.
        runner: runs configs; None to run nothing and take what there is.
        recorded: another folder of results, which is read and not written to.
    """
    terms.check(grid)
    places = [out] if recorded is None else [out, recorded]
    runs = [place / RUNS for place in places]
    every = slots(grid, terms)
    chosen: Choices = {}
    if terms.is_searched:
        searched = choose(asked(every, grid, terms), terms, runs, runner)
        chosen = {**choose(every, terms, runs), **searched}
        every = slots(grid, terms, chosen)
    failures: Mapping[str, str] = {}
    if runner:
        configs = [one.config for one in asked(every, grid, terms) if one.config]
        failures = runner(list({config.run_id: config for config in configs}.values()))
    content = sheet(grid, terms, every, chosen, failures)
    return write_sheet(content, [place / SHEETS for place in places], runs[1:])


def sheet(
    grid: Grid,
    terms: Terms,
    every: Sequence[Planned],
    choices: Choices,
    failures: Mapping[str, str],
) -> dict[str, Any]:
    """Describe a table for drawing: rows, columns, and of every cell its runs and printed number.

    Args:
        grid: the table.
        terms: its scale, protocol and seeds.
        every: its runs.
        choices: the learning rates and settings of the protocol `searched`.
        failures: run -> why it did not finish.
    """
    cells = _empty(grid, terms)
    for one in every:
        key = one.row.name, one.column.name
        run = one.config.run_id if one.config else None
        reason = cells[key].reason or one.reason or failures.get(run or "", "")
        cells[key] = replace(cells[key], runs=(*cells[key].runs, run), reason=reason)
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
        "cells": [cell.told() for cell in cells.values()],
        "choices": [choice.told() for choice in choices.values()],
    }


def _empty(grid: Grid, terms: Terms) -> dict[tuple[str, str], Cell]:
    """Make the cells with the paper's numbers, of as many domains as are here."""
    found = {}
    domains = {column.name: column.domain for column in grid.columns}
    for column in grid.columns:
        here = at_hand(column, terms.of(column))
        there = [name for name in column.mean_of if domains[name] in here.domains]
        is_partly = not here.missing and len(there) < len(column.mean_of)
        part = None
        if column.domain and not here.missing:
            # Partitions by domain number the clients of the first domain first.
            part = (here.domains.index(column.domain), len(here.domains))
        for row in grid.rows:
            key = row.name, column.name
            printed, spread = grid.printed.get(key), grid.spread.get(key)
            if is_partly:
                printed, spread = grid.printed_mean(row.name, there), None
            found[key] = Cell(*key, part=part, printed=printed, spread=spread, reason="")
    return found


def _notes(grid: Grid, terms: Terms) -> list[str]:
    """Say which means are of fewer domains than the paper's."""
    there = [(column, at_hand(column, terms.of(column))) for column in grid.columns]
    return [
        f"{column.title}: of the domains at hand, {', '.join(here.domains)}; the paper's number is "
        "the mean of what it prints for these."
        for column, here in there
        if not here.missing and len(here.domains) < len(column.mean_of)
    ]


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
