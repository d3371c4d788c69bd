"""What runs led to, as a table: one line per method, means over its seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from subflot.algorithms import ALGORITHMS
from subflot.reporting.paired import MARK, Paired, compare, meaning, reference
from subflot.results import RunRecord

SHARES = ("trained", "worst", "extracted", "global")
COSTS = ("parameters", "multiply-adds", "MB sent", "seconds")
DELTA = "Δ"
CAPTION = "* ignores budgets: every client trains the full model"


def by_method(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Method -> its runs, in the order in which methods come first."""
    found: dict[str, list[RunRecord]] = {}
    for record in records:
        found.setdefault(record.config["algorithm"], []).append(record)
    return found


def differences(records: Sequence[RunRecord]) -> tuple[str, dict[str, Paired]]:
    """Compare methods with the recommended one, or the first; return its name, and by method."""
    methods = by_method(records)
    base = list(methods)[reference(list(methods))] if methods else ""
    found = {n: compare(mine, methods[base]) for n, mine in methods.items() if n != base}
    return base, {name: one for name, one in found.items() if one}


def summary_rows(records: Sequence[RunRecord]) -> list[list[str]]:
    """Return a head and a line per method: accuracies with their spread over seeds, and costs."""
    has_rates = len({record.config["learning_rate"] for record in records}) > 1
    base, paired = differences(records)
    first, *others = SHARES
    delta = [f"{DELTA} {base}"] if paired else []
    rates = ["learning rate"] if has_rates else []
    rows = [["algorithm", "seeds", *rates, first, *delta, *others, *COSTS]]
    for name, mine in by_method(records).items():
        summaries = [record.summary() for record in mine]
        own_rates = dict.fromkeys(f"{record.config['learning_rate']:g}" for record in mine)
        shares = {key: _percent([summary.get(key) for summary in summaries]) for key in SHARES}
        rows.append(
            [
                name + (" *" if ALGORITHMS[name].ignores_budgets else ""),
                ",".join(str(record.config["seed"]) for record in mine),
                *([", ".join(own_rates)] if has_rates else []),
                shares[first],
                *([str(paired.get(name, "-"))] if paired else []),
                *(shares[key] for key in others),
                f"{fmean(s['parameters'] for s in summaries):,.0f}",
                f"{fmean(s['multiply_adds'] for s in summaries):,.0f}",
                f"{fmean(s['bytes_down'] + s['bytes_up'] for s in summaries) / 1e6:,.1f}",
                f"{fmean(s['seconds'] for s in summaries):.1f}",
            ]
        )
    return rows


def captions(records: Sequence[RunRecord]) -> list[str]:
    """List what must be said below the lines."""
    _, paired = differences(records)
    ignores = any(ALGORITHMS[name].ignores_budgets for name in by_method(records))
    said = [CAPTION] if ignores else []
    if paired:
        said.append(
            f"{DELTA}: `trained` less that of this method on the same clients, in percentage "
            f"points, with a {meaning(paired.values())}; {MARK} where it excludes zero"
        )
    return said


def summary_table(records: Sequence[RunRecord], title: str) -> Table:
    """Draw the lines for a terminal; the difference stands below what it is a difference of."""
    head, *rows = summary_rows(records)
    table = Table(title=title, caption="\n".join(captions(records)) or None)
    place = head.index(SHARES[0])
    if head[place + 1].startswith(DELTA):
        for row in (head, *rows):
            row[place] += "\n" + row.pop(place + 1)
    for number, name in enumerate(head):
        table.add_column(name, justify="right" if number else "left", no_wrap=number == place)
    for row in rows:
        table.add_row(*row)
    return table


def summary_markdown(records: Sequence[RunRecord]) -> str:
    """Write the lines as a table in Markdown."""
    head, *rows = summary_rows(records)
    ruler = ["---", *("---:" for _ in head[1:])]
    lines = ["| " + " | ".join(row) + " |" for row in (head, ruler, *rows)]
    said = [part for one in captions(records) for part in ("", one.replace("*", "\\*"))]
    return "\n".join([*lines, *said]).replace(" * |", " \\* |") + "\n"


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
