"""Records of runs that were never run, with numbers small enough to check on paper."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subflot.results import CONFIG, METRICS, SUMMARY, TIMING, RunRecord

NUM_TEST = 20


def made_run(
    folder: Path,
    accuracies: Sequence[Sequence[float]],
    *,
    seconds: Sequence[float] = (),
    is_finished: bool = True,
    seed: int = 0,
    epochs: int = 1,
) -> RunRecord:
    """Write a record: the accuracy of every client in every round, multiples of 1 / 20."""
    folder.mkdir(parents=True)
    (folder / CONFIG).write_text(f"num_clients = 0\nepochs = {epochs}\nseed = {seed}\n")
    lines = [_line(number + 1, each) for number, each in enumerate(accuracies)]
    times = [
        {"round": number + 1, "seconds": one, "phases": {"train": one, "align": one / 2}}
        for number, one in enumerate(seconds or [1.0] * len(lines))
    ]
    for name, rows in ((METRICS, lines), (TIMING, times)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if is_finished:
        (folder / SUMMARY).write_text("{}")
    return RunRecord(folder)


def _line(round: int, accuracies: Sequence[float]) -> dict[str, Any]:
    count = len(accuracies)
    mean = sum(accuracies) / count
    return {
        "round": round,
        "trained": {"mean": mean, "weighted": mean, "worst": min(accuracies), "loss": 1.0},
        "extracted": None,
        "global": None,
        "bytes_down": 1_000_000 * count,
        "bytes_up": 500_000 * count,
        "num_rejected": 0,
        "clients": {
            "client": list(range(count)),
            "num_examples": [10] * count,
            "num_test": [NUM_TEST] * count,
            "trained_correct": [round_to(NUM_TEST * one) for one in accuracies],
            "parameters": [100.0] * count,
            "multiply_adds": [1e8] * count,
        },
    }


def round_to(number: float) -> int:
    assert abs(number - round(number)) < 1e-9, "give accuracies as multiples of 1 / 20"
    return round(number)


def made_sheet(folder: Path, rows: Sequence[Any], columns: Sequence[Any], **about: Any) -> Path:
    """Write a sheet without cells' runs being there; `cells` may be given in `about`."""
    content = {
        "name": "made",
        "title": "Made up",
        "source": "nowhere",
        "scale": "smoke",
        "protocol": "printed",
        "seeds": [0],
        "settings": {},
        "choices": [],
        "rows": [row if isinstance(row, dict) else {"name": row, "title": row} for row in rows],
        "columns": [
            one if isinstance(one, dict) else {"name": one, "title": one} for one in columns
        ],
        "cells": [],
        **about,
    }
    path = folder / "tables" / "made-smoke-printed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path
