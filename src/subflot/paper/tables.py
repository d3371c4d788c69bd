"""A table for the terminal, and as Markdown, CSV and LaTeX: ours, the paper's, the difference."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from subflot.paper.sheet import Cell, Sheet
from subflot.reporting.paired import DIGITS, MARK, Paired, meaning

HEADER = (
    *("table", "scale", "protocol", "row", "column", "unit"),
    *("mean", "deviation", "num_seeds", "paper", "paper_deviation"),
    *("difference", "rank", "paper_rank", "missing"),
    *("reference", "paired_difference", "paired_low", "paired_high", "paired_clients"),
)


def mark(cell: Cell) -> str:
    """Say whether a row stands at the paper's place in its column: `=`, or how far off.

    Example:
        >>> mark(Cell("a", "b", rank=1, printed_rank=3)), mark(Cell("a", "b"))
        ('▲2', '')
    """
    shift = cell.rank_shift
    if shift is None:
        return ""
    return "=" if shift == 0 else f"▲{shift}" if shift > 0 else f"▼{-shift}"


def ours(cell: Cell, sheet: Sheet) -> str:
    """Write our number with its deviation, the mark, and how many seeds are missing."""
    if cell.mean is None:
        return f"missing [{_letter(sheet, cell)}]"
    spread = "" if cell.deviation is None else f" ± {cell.deviation:.2f}"
    partly = "" if cell.is_whole else f" ({len(cell.values)} of {len(cell.runs)} seeds)"
    return " ".join(part for part in (f"{cell.mean:.2f}{spread}", mark(cell)) if part) + partly


def papers(cell: Cell, sheet: Sheet) -> str:
    """Write the paper's number, and how far ours is from it; nothing if it has none."""
    if cell.printed is None:
        return ""
    spread = "" if cell.spread is None else f" ± {cell.spread:.2f}"
    if cell.difference is None:
        return f"paper {cell.printed:.2f}{spread}"
    is_share = sheet.unit == "%"
    off = f"{cell.difference:+.2f}" if is_share else f"{cell.difference / cell.printed:+.2%}"
    return f"paper {cell.printed:.2f}{spread}, {off}"


def behind(cell: Cell, sheet: Sheet) -> str:
    """Write how far a cell is from the reference, client by client; nothing if that is unknown."""
    found = sheet.paired.get((cell.row, cell.column))
    return f"Δ {found}" if found else ""


def lines(cell: Cell, sheet: Sheet) -> list[str]:
    """List what stands in a cell: ours, the difference to the reference, the paper's."""
    return [one for one in (ours(cell, sheet), behind(cell, sheet), papers(cell, sheet)) if one]


def heading(sheet: Sheet) -> str:
    """Name the table, where it stands in the paper, its unit and on which terms it was made."""
    about = sheet.about
    unit = "accuracy in %" if sheet.unit == "%" else f"in {sheet.unit}"
    named = f"{about['name']}: {about['title']} ({about['source']}), {unit}"
    if "scale" not in about:
        return named
    seeds = ", ".join(map(str, about["seeds"]))
    return f"{named}; scale {about['scale']}, protocol {about['protocol']}, seeds {seeds}"


def notes(sheet: Sheet) -> list[str]:
    """List what must be said below a table: marks, protocol, remarks, and what is missing."""
    about = sheet.about
    said = list(about.get("notes", ()))
    if any(cell.rank is not None for cell in sheet.cells.values()):
        said.append(
            "Of each cell: mean and standard deviation over seeds; = the rank that the paper gives "
            "it among the rows that both have, ▲n or ▼n places better or worse; the paper's "
            "number and ours less the paper's."
        )
    if sheet.paired:
        said.append(_of_pairs(sheet))
    if about.get("settings"):
        changed = ", ".join(f"{key}={value}" for key, value in about["settings"].items())
        said.append(f"Settings changed for all runs: {changed}.")
    if about.get("protocol") == "printed":
        said.append("Protocol printed: learning rate 0.001 and batches of 256, as in the paper.")
    if about.get("protocol") == "tuned":
        said.append(_tuned(sheet))
    for row in sheet.rows.values():
        if row.get("remark"):
            said.append(f"{row['title']}: {row['remark']}.")
    for reason, cells in sheet.missing.items():
        said.append(f"[{_letter(sheet, cells[0])}] {reason} ({_counted(cells, sheet)}).")
    return said


def _of_pairs(sheet: Sheet) -> str:
    title = sheet.rows[sheet.reference]["title"]
    return (
        f"Δ: accuracy less that of {title} on the same clients and seeds, in percentage points, "
        f"with a {meaning(sheet.paired.values())}; {MARK} where it excludes zero. There is none "
        "where too few clients differ."
    )


def _tuned(sheet: Sheet) -> str:
    chosen = [
        f"{one['algorithm']} on {one['task']} {one['learning_rate']:g}"
        + ("" if one["is_complete"] else " (not all rates were tried or finished)")
        for one in sheet.about["choices"]
        if one["learning_rate"] is not None
    ]
    return (
        "Protocol tuned: batches of 32; learning rates chosen on validation examples from 0.01, "
        f"0.05 and 0.1: {'; '.join(chosen) or 'none yet'}."
    )


def _counted(cells: Sequence[Cell], sheet: Sheet) -> str:
    titles = list(dict.fromkeys(str(sheet.columns[cell.column]["title"]) for cell in cells))
    count = f"{len(cells)} cell" + ("s" if len(cells) > 1 else "")
    return f"{count} in {', '.join(titles)}"


def _letter(sheet: Sheet, cell: Cell) -> str:
    number = list(sheet.missing).index(cell.reason)
    return chr(ord("a") + number) if number < 26 else str(number)


def _orders(sheet: Sheet) -> list[str]:
    """Say for each column how many pairs of rows stand in the paper's order; empty if in none."""
    found = [sheet.agreement(column) for column in sheet.columns]
    if not any(found):
        return []
    return ["" if pairs is None else f"{pairs[0]} of {pairs[1]} pairs" for pairs in found]


def terminal(sheet: Sheet) -> Table:
    """Draw a table for a terminal, with our number above the others in each cell.

    It has neither heading nor notes.
    """
    table = Table(show_lines=True)
    table.add_column("")
    for column in sheet.columns.values():
        table.add_column(str(column["title"]), justify="right")
    for name, row in sheet.rows.items():
        cells = [sheet.cells[name, column] for column in sheet.columns]
        table.add_row(str(row["title"]), *("\n".join(lines(cell, sheet)) for cell in cells))
    if orders := _orders(sheet):
        table.add_section()
        table.add_row("in the paper's order", *orders)
    return table


def markdown(sheet: Sheet) -> str:
    """Write a table as Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    titles = [str(column["title"]) for column in sheet.columns.values()]
    text = [
        f"**{heading(sheet)}**",
        "",
        line(["", *titles]),
        line([":--", *["--:"] * len(titles)]),
    ]
    for name, row in sheet.rows.items():
        cells = [sheet.cells[name, column] for column in sheet.columns]
        text.append(line([str(row["title"]), *("<br>".join(lines(one, sheet)) for one in cells)]))
    if orders := _orders(sheet):
        text.append(line(["in the paper's order", *orders]))
    text += ["", *(f"- {note}" for note in notes(sheet))]
    return "\n".join(text) + "\n"


def csv_text(sheet: Sheet) -> str:
    """Write a table as CSV, a line per cell, at full precision.

    Of intervals it has what all processors agree on.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADER)
    about = sheet.about
    for cell in sheet.cells.values():
        writer.writerow(
            [
                *(about["name"], about.get("scale"), about.get("protocol")),
                *(cell.row, cell.column, sheet.unit),
                *(cell.mean, cell.deviation, len(cell.values)),
                *(cell.printed, cell.spread, cell.difference, cell.rank, cell.printed_rank),
                "" if cell.is_whole else cell.reason,
                *_pair(cell, sheet),
            ]
        )
    return out.getvalue()


def _pair(cell: Cell, sheet: Sheet) -> tuple[str | float | None, ...]:
    found = sheet.paired.get((cell.row, cell.column))
    if not found:
        return ("",) * 5
    ends = (None if end is None else round(end, DIGITS) for end in (found.low, found.high))
    return (sheet.reference, round(found.mean, DIGITS), *ends, found.num_clients)


def latex(sheet: Sheet) -> str:
    """Write a table as LaTeX for the package booktabs; the best of ours in each column is bold.

    Below a row, in small print, is how far it is from the reference.
    """
    best = {
        column: max((c.mean for c in sheet.column(column) if c.mean is not None), default=None)
        for column in sheet.columns
    }

    def shown(cell: Cell) -> str:
        if cell.mean is None:
            return "--"
        number = f"{cell.mean:.2f}"
        if sheet.unit == "%" and cell.mean == best[cell.column]:
            number = rf"\textbf{{{number}}}"
        if cell.deviation is not None:
            number += rf" $\pm$ {cell.deviation:.2f}"
        return number + ("" if cell.printed is None else f" ({cell.printed:.2f})")

    text = [
        rf"% {heading(sheet)}; the paper's numbers in parentheses",
        *([f"% {_of_pairs(sheet)}"] if sheet.paired else []),
        rf"\begin{{tabular}}{{l{'r' * len(sheet.columns)}}}",
        r"\toprule",
        " & ".join(["", *(_escaped(str(c["title"])) for c in sheet.columns.values())]) + r" \\",
        r"\midrule",
    ]
    for name, row in sheet.rows.items():
        cells = [shown(sheet.cells[name, column]) for column in sheet.columns]
        text.append(" & ".join([_escaped(str(row["title"])), *cells]) + r" \\")
        pairs = [sheet.paired.get((name, column)) for column in sheet.columns]
        if any(pairs):
            text.append(" & ".join(["", *map(_small, pairs)]) + r" \\")
    return "\n".join([*text, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _small(found: Paired | None) -> str:
    if not found:
        return ""
    text = str(found).replace(f" {MARK}", r"$^\dagger$").replace("-", "$-$")
    return rf"{{\footnotesize {text}}}"


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "&%$#_{}" else sign for sign in text)


FORMATS: Mapping[str, tuple[str, Callable[[Sheet], str]]] = {
    "markdown": (".md", markdown),
    "csv": (".csv", csv_text),
    "latex": (".tex", latex),
}
"""Format -> the ending of its files, and what writes it."""


def write_all(sheet: Sheet, path: Path) -> list[Path]:
    """Write a table in every format beside its sheet."""
    written = []
    for ending, draw in FORMATS.values():
        file = path.with_suffix(ending)
        file.write_text(draw(sheet), encoding="utf-8")
        written.append(file)
    return written
