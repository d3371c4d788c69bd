"""What runs led to, as a table: one line per method, means over its seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from subflot.algorithms import ALGORITHMS
from subflot.results import RunRecord

SHARES = ("trained", "worst", "extracted", "global")
COSTS = ("parameters", "multiply-adds", "MB sent", "seconds")
CAPTION = "* ignores budgets: every client trains the full model"


def summary_rows(records: Sequence[RunRecord]) -> list[list[str]]:
    """Return a head and a line per method: accuracies with their spread over seeds, and costs."""
    has_rates = len({record.config["learning_rate"] for record in records}) > 1
    head = ["algorithm", "seeds", *(["learning rate"] if has_rates else []), *SHARES, *COSTS]
    rows = [head]
    for name in dict.fromkeys(record.config["algorithm"] for record in records):
        mine = [record for record in records if record.config["algorithm"] == name]
        summaries = [record.summary() for record in mine]
        rates = dict.fromkeys(f"{record.config['learning_rate']:g}" for record in mine)
        rows.append(
            [
                name + (" *" if ALGORITHMS[name].ignores_budgets else ""),
                ",".join(str(record.config["seed"]) for record in mine),
                *([", ".join(rates)] if has_rates else []),
                *(_percent([summary.get(key) for summary in summaries]) for key in SHARES),
                f"{fmean(s['parameters'] for s in summaries):,.0f}",
                f"{fmean(s['multiply_adds'] for s in summaries):,.0f}",
                f"{fmean(s['bytes_down'] + s['bytes_up'] for s in summaries) / 1e6:,.1f}",
                f"{fmean(s['seconds'] for s in summaries):.1f}",
            ]
        )
    return rows


def summary_table(records: Sequence[RunRecord], title: str) -> Table:
    """Draw the lines for a terminal."""
    head, *rows = summary_rows(records)
    table = Table(title=title, caption=CAPTION if _has_mark(rows) else None)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def summary_markdown(records: Sequence[RunRecord]) -> str:
    """Write the lines as a table in Markdown."""
    head, *rows = summary_rows(records)
    ruler = ["---", *("---:" for _ in head[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ruler, *rows)]
    caption = ["", CAPTION.replace("*", "\\*")] if _has_mark(rows) else []
    return "\n".join([*lines, *caption]).replace(" * |", " \\* |") + "\n"


def _has_mark(rows: Sequence[Sequence[str]]) -> bool:
    return any(row[0].endswith("*") for row in rows)


def _percent(shares: Sequence[Any]) -> str:
    """Write a mean and, of several, the standard deviation beside it.

    Example:
        >>> _percent([0.5]), _percent([0.5, 0.6]), _percent([None])
        ('50.00 %', '55.00 ± 7.07 %', '-')
    """
    found = [100 * share for share in shares if share is not None]
    if not found:
        return "-"
    spread = f" ± {stdev(found):.2f}" if len(found) > 1 else ""
    return f"{fmean(found):.2f}{spread} %"
