"""What a reader should know before trusting the numbers of a page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from subflot.results import RunRecord

MOST_FAULTS = 3
"""Rejected uploads that are told one by one; of more, the number is told."""


def notices(records: Sequence[RunRecord], digest: Mapping[str, Any]) -> list[dict[str, str]]:
    """List what is missing or odd: the run or group that it is about, and what it is."""
    found = []
    for record, run in zip(records, digest["runs"], strict=True):
        found += [{"about": run["label"], "text": text} for text in _of_run(record)]
    found += [{"about": name, "text": text} for name, text in _missing_seeds(digest["runs"])]
    if len(digest["environments"]) > 1:
        odd = sorted(_odd_keys(digest["environments"]))
        count = len(digest["environments"])
        text = f"made in {count} environments, which differ in {', '.join(odd)}"
        found.append({"about": "all runs", "text": text})
    return found


def _of_run(record: RunRecord) -> Iterator[str]:
    rounds, asked = record.rounds, record.config.get("rounds", 0)
    if not record.is_finished:
        yield f"unfinished: {len(rounds)} of {asked} rounds"
    faults = [
        f"round {line['round']}, client {client}: {fault}"
        for line in rounds
        for client, fault in zip(
            line["clients"].get("client", ()), line["clients"].get("fault", ()), strict=False
        )
        if fault
    ]
    if faults:
        more = len(faults) - MOST_FAULTS
        tail = f"; and {more} more" if more > 0 else ""
        uploads = "1 rejected upload" if len(faults) == 1 else f"{len(faults)} rejected uploads"
        yield f"{uploads}: {'; '.join(faults[:MOST_FAULTS])}{tail}"
    for line in rounds:
        if line["trained"] and line["trained"]["loss"] is None:
            yield f"the loss is not finite from round {line['round']} on: training diverged"
            break


def _missing_seeds(runs: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Find groups that lack seeds which other groups of their experiment have."""
    for experiment in dict.fromkeys(run["experiment"] for run in runs):
        seeds: dict[str, set[int]] = {}
        for run in runs:
            if run["experiment"] == experiment:
                seeds.setdefault(run["group_label"], set()).add(run["seed"])
        every = set().union(*seeds.values())
        for group, own in seeds.items():
            if every - own:
                lacking = ", ".join(map(str, sorted(every - own)))
                yield group, f"missing: seed {lacking}, which others have"


def _odd_keys(environments: Sequence[Mapping[str, Any]]) -> set[str]:
    keys = {key for one in environments for key in one}
    return {k for k in keys if len({json.dumps(one.get(k)) for one in environments}) > 1}
