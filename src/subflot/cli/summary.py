"""What runs led to, as a table: one line per method, means over its seeds."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from subflot.algorithms import ALGORITHMS
from subflot.results import RunRecord

SHARES = ("trained", "worst", "extracted", "global")
COSTS = ("parameters", "multiply-adds", "MB sent", "seconds")


def summary_table(records: Sequence[RunRecord], title: str) -> Table:
    """Draw a line per method: accuracies with their spread over the seeds, and what they cost."""
    has_rates = len({record.config["learning_rate"] for record in records}) > 1
    table = Table(title=title)
    table.add_column("algorithm")
    for name in ("seeds", *(("learning rate",) if has_rates else ()), *SHARES, *COSTS):
        table.add_column(name, justify="right")
    for name in dict.fromkeys(record.config["algorithm"] for record in records):
        mine = [record for record in records if record.config["algorithm"] == name]
        summaries = [record.summary() for record in mine]
        rates = dict.fromkeys(f"{record.config['learning_rate']:g}" for record in mine)
        table.add_row(
            name + (" *" if ALGORITHMS[name].ignores_budgets else ""),
            ",".join(str(record.config["seed"]) for record in mine),
            *([", ".join(rates)] if has_rates else ()),
            *(_percent([summary.get(key) for summary in summaries]) for key in SHARES),
            f"{fmean(s['parameters'] for s in summaries):,.0f}",
            f"{fmean(s['multiply_adds'] for s in summaries):,.0f}",
            f"{fmean(s['bytes_down'] + s['bytes_up'] for s in summaries) / 1e6:,.1f}",
            f"{fmean(s['seconds'] for s in summaries):.1f}",
        )
    if any(ALGORITHMS[record.config["algorithm"]].ignores_budgets for record in records):
        table.caption = "* ignores budgets: every client trains the full model"
    return table


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
