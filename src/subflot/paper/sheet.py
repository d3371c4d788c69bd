"""A table read from its sheet and the records of its runs: what there is, and what is missing."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError
from subflot.reporting.choices import told
from subflot.reporting.paired import BySeed, Paired, difference, reference
from subflot.results import RunRecord, find_run

NOT_RUN = "not run"
TOLD = ("row", "column", "runs", "part", "printed", "spread", "reason")
"""What a sheet holds of a cell."""
PROTOCOL = "searched"


@dataclass(frozen=True)
class Cell:
    """Ours and the paper's number, in the unit of the sheet."""

    row: str
    column: str
    runs: tuple[str | None, ...] = ()
    """One per seed; None where there can be none."""
    part: tuple[int, int] | None = None
    """Which of how many equal parts of the clients count: those of one domain, or all."""
    printed: float | None = None
    spread: float | None = None
    """The paper's standard deviation."""
    reason: str = NOT_RUN
    """Why a run is missing."""
    values: tuple[float, ...] = ()
    """One per finished run."""
    clients: BySeed = field(default_factory=dict)
    """What the values are means of, in percent."""
    rank: int | None = None
    """Place among the rows of its group, of those that both we and the paper have; 1 is best."""
    printed_rank: int | None = None

    def told(self) -> dict[str, Any]:
        """Write it down as sheets have it; values are read off the runs."""
        return {key: getattr(self, key) for key in TOLD}

    @property
    def is_whole(self) -> bool:
        """Whether there is a number, of as many seeds as were asked for."""
        return len(self.values) >= max(1, len(self.runs))

    @property
    def mean(self) -> float | None:
        """Our number; None if it is missing."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None unless there are two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.mean is None or self.printed is None else self.mean - self.printed

    @property
    def rank_shift(self) -> int | None:
        """How many places better we rank it than the paper does; 0 if the order agrees."""
        if self.rank is None or self.printed_rank is None:
            return None
        return self.printed_rank - self.rank


@dataclass(frozen=True)
class Sheet:
    """A table: its rows and columns by name, and its cells."""

    about: Mapping[str, Any]
    """What the file says besides: title, source, scale, protocol, seeds, choices."""
    rows: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, Mapping[str, Any]]
    cells: Mapping[tuple[str, str], Cell]
    runs: tuple[Path, ...] = (Path("runs"),)
    """Folders of records."""

    @property
    def unit(self) -> str:
        """Of all numbers."""
        return str(self.about.get("unit", "%"))

    @cached_property
    def missing(self) -> dict[str, list[Cell]]:
        """Reason -> the cells without a number, or with fewer seeds than asked for."""
        found: dict[str, list[Cell]] = {}
        for cell in self.cells.values():
            if not cell.is_whole:
                found.setdefault(cell.reason, []).append(cell)
        return found

    @property
    def reference(self) -> str:
        """The row that the others are compared with, client by client."""
        names = list(self.rows)
        return names[reference(names)] if names else ""

    @cached_property
    def paired(self) -> dict[tuple[str, str], Paired]:
        """Cell -> how far it is from the reference of its column, where both have clients."""
        found = {}
        for row in self.rows:
            for column in self.columns if row != self.reference else ():
                other = self.cells[self.reference, column].clients
                one = difference(self.cells[row, column].clients, other)
                if one:
                    found[row, column] = one
        return found

    def column(self, name: str) -> list[Cell]:
        """List the cells of a column, from top to bottom."""
        return [self.cells[row, name] for row in self.rows]

    def part(self, rows: Sequence[str], columns: Sequence[str]) -> "Sheet":
        """Return the table of some rows and columns; where none are named, of all."""
        own_rows = {n: row for n, row in self.rows.items() if not rows or n in rows}
        own_columns = {n: one for n, one in self.columns.items() if not columns or n in columns}
        cells = {
            key: cell
            for key, cell in self.cells.items()
            if key[0] in own_rows and key[1] in own_columns
        }
        return replace(self, rows=own_rows, columns=own_columns, cells=cells)

    def agreement(self, column: str) -> tuple[int, int] | None:
        """Count the pairs of rows that stand in the paper's order, and all pairs; None if none.

        Rows that the paper puts level are no pair, and we never put two level but by chance.
        """
        ranked = [cell for cell in self.column(column) if cell.rank is not None]
        pairs = [
            (one, other)
            for one in ranked
            for other in ranked
            if self._group(one) == self._group(other)
            and (one.printed_rank or 0) < (other.printed_rank or 0)
        ]
        good = sum((one.rank or 0) < (other.rank or 0) for one, other in pairs)
        return (good, len(pairs)) if pairs else None

    def _group(self, cell: Cell) -> str:
        return str(self.rows[cell.row].get("group", ""))

    def records(self, cell: Cell) -> list[RunRecord]:
        """Open the finished runs of a cell."""
        found = [find_run(run, self.runs) for run in cell.runs if run]
        return [record for record in found if record.is_finished]


def read_sheet(path: Path) -> Sheet:
    """Read a table; numbers come from the records.

    They lie beside the folder of the sheet, and in what further folders it names.
    """
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise SubflotError(f"there is no sheet {path}") from None
    except ValueError as error:
        raise SubflotError(f"{path} is damaged: {error}") from None
    raw["notes"] = [*raw.get("notes", ()), *_searched(raw)]
    others = (path.parent / place for place in raw.get("records", ()))
    runs = (path.parent.parent / "runs", *others)
    rows = {row["name"]: row for row in raw.pop("rows")}
    columns = {column["name"]: column for column in raw.pop("columns")}
    found = {(one["row"], one["column"]): _cell(one, runs) for one in raw.pop("cells")}
    sheet = Sheet(raw, rows, columns, found, runs)
    ranked = {} if "unit" in raw else _ranked(sheet)
    return replace(sheet, cells={**found, **ranked})


def _searched(sheet: Mapping[str, Any]) -> list[str]:
    """Say what a sheet's runs were trained with, where this was searched for."""
    if sheet.get("protocol") != PROTOCOL:
        return []
    chosen = told(sheet["choices"]) or ["Nothing has been chosen yet."]
    return [
        "Protocol searched: batches of 32; learning rate and settings of each method chosen on "
        "validation examples, with the same number of trials for all.",
        *chosen,
    ]


def _cell(one: Mapping[str, Any], runs: Sequence[Path]) -> Cell:
    values, clients = list(one.get("values", ())), {}
    for name in filter(None, one.get("runs", ())):
        record = find_run(name, runs)
        found = _clients(record, one.get("part")) if record.is_finished else None
        if found:
            values.append(100 * statistics.fmean(found.values()))
            own = {client: 100 * share for client, share in found.items()}
            clients[int(record.config["seed"])] = own
    cell = Cell(**{key: one[key] for key in TOLD if key in one})
    reason = cell.reason or NOT_RUN
    return replace(
        cell, runs=tuple(cell.runs), values=tuple(values), clients=clients, reason=reason
    )


def _clients(record: RunRecord, part: Sequence[int] | None) -> dict[int, float]:
    """Give the accuracy of all clients, or of those in one of so many equal parts."""
    found = record.client_accuracies()
    if part:
        number, num_parts = part
        num_clients = _num_clients(record)
        first, last = (num_clients * k // num_parts for k in (number, number + 1))
        found = {client: one for client, one in found.items() if first <= client < last}
    return found


def _num_clients(record: RunRecord) -> int:
    """Count the clients; where the settings leave it to the data, by those that took part."""
    named = int(record.config["num_clients"])
    return named or 1 + max(max(line["clients"]["client"]) for line in record.rounds)


def _ranked(sheet: Sheet) -> dict[tuple[str, str], Cell]:
    """Rank the cells of each column and group that have both numbers."""
    found = {}
    for column in sheet.columns:
        both = [c for c in sheet.column(column) if c.mean is not None and c.printed is not None]
        for cell in both:
            peers = [other for other in both if sheet._group(other) == sheet._group(cell)]
            if len(peers) < 2:
                continue
            found[cell.row, column] = replace(
                cell,
                rank=_rank([c.mean or 0.0 for c in peers], cell.mean or 0.0),
                printed_rank=_rank([c.printed or 0.0 for c in peers], cell.printed or 0.0),
            )
    return found


def _rank(numbers: Sequence[float], own: float) -> int:
    return 1 + sum(number > own for number in numbers)
