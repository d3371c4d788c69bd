"""Folders of runs whose numbers the tests choose, written the way the engine writes them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from subflot.algorithms.base import Client
from subflot.experiments.config import RunConfig
from subflot.results import (
    CHANNELS,
    CONFIG,
    ENVIRONMENT,
    METRICS,
    PLANS,
    SUMMARY,
    TIMING,
    RunRecord,
)
from subflot.simulation.record import metrics_line, timing_line
from subflot.simulation.server import Report
from subflot.training import Measurement

RATES = (0.0, 0.25, 0.5, 0.75)


def report(client: int, correct: int | None, num_test: int = 20, fault: str = "") -> Report:
    """What a client did; None if it was not measured."""
    rate = RATES[client % len(RATES)]
    trained = extracted = None
    if correct is not None:
        trained = Measurement(num_test, correct, 2.5)
        extracted = Measurement(num_test, correct // 2, 7.5)
    return Report(
        Client(client, rate),
        num_examples=30 + client,
        trained=trained,
        extracted=extracted,
        parameters=1000.0 * (1 - rate),
        multiply_adds=5000.0 * (1 - rate),
        bytes_down=4000,
        bytes_up=400 + client,
        metrics={"delta_p": 1.5 + client, "delta_ot": 0.25, "moved/conv.weight": client / 8},
        seconds={"train": 1.5, "align": 0.25},
        fault=fault,
    )


def write_run(
    folder: Path,
    rounds: Sequence[Sequence[Report]],
    *,
    is_finished: bool = True,
    environment: dict[str, Any] | None = None,
    channels: dict[str, Any] | None = None,
    plans: Sequence[dict[str, Any]] = (),
    **settings: Any,
) -> RunRecord:
    """Write a run: what each client did in each round; settings go to its config."""
    folder.mkdir(parents=True)
    lines: dict[str, list[dict[str, Any]]] = {METRICS: [], TIMING: []}
    for number, reports in enumerate(rounds, 1):
        is_measured = any(one.trained for one in reports)
        measured = Measurement(100, min(100, 40 + number), 90.0) if is_measured else None
        lines[METRICS].append(metrics_line(number, reports, measured))
        lines[TIMING].append(timing_line(number, reports, seconds=2.0 + number))
    for log, entries in lines.items():
        (folder / log).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    config = RunConfig.of(rounds=max(1, len(rounds)), **settings)
    (folder / CONFIG).write_text(config.toml())
    (folder / ENVIRONMENT).write_text(json.dumps(environment or {"python": "3.11.7", "cores": 2}))
    for name, noted in ((CHANNELS, channels), (PLANS, plans)):
        if noted:
            (folder / name).write_text(json.dumps(noted))
    record = RunRecord(folder)
    if is_finished:
        (folder / SUMMARY).write_text(json.dumps(record.summary()))
    return record
