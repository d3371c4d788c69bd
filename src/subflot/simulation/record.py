"""What is logged of a round: numbers that the seed decides, and the time that they took.

They go to two logs, so that runs of equal settings leave equal metrics, byte for byte.
"""

import math
from collections.abc import Sequence
from typing import Any

from subflot.simulation.server import Report
from subflot.training import Measurement

LAYER_SIGN = "/"
"""Stands in the name of a metric between what it tells and the layer of which it tells it."""


def metrics_line(
    round: int, reports: Sequence[Report], measured: Measurement | None
) -> dict[str, Any]:
    """Return what a round led to. Accuracies are shares from 0 to 1, losses means per example."""
    line: dict[str, Any] = {"round": round}
    for name in ("trained", "extracted"):
        line[name] = _summary([getattr(report, name) for report in reports])
    line["global"] = None if measured is None else _measurement(measured)
    line["bytes_down"] = sum(report.bytes_down for report in reports)
    line["bytes_up"] = sum(report.bytes_up for report in reports)
    line["num_rejected"] = sum(bool(report.fault) for report in reports)
    if bounds := [report.bound for report in reports if report.bound]:
        line["num_shortened"] = sum(bound.parameters < 1 for bound in bounds)
    line["clients"] = _columns([_client(report) for report in reports])
    if layers := _layers(reports):
        line["layers"] = layers
    return line


def timing_line(round: int, reports: Sequence[Report], seconds: float) -> dict[str, Any]:
    """Return where the time of a round went; phases are added up over the clients."""
    phases = sorted({phase for report in reports for phase in report.seconds})
    return {
        "round": round,
        "seconds": seconds,
        "phases": {name: sum(r.seconds.get(name, 0.0) for r in reports) for name in phases},
    }


def _client(report: Report) -> dict[str, Any]:
    trained, extracted = report.trained, report.extracted
    test = trained or extracted
    own = {
        "client": report.client.id,
        "pruning_rate": report.client.pruning_rate,
        "num_examples": report.num_examples,
        "num_test": None if test is None else test.num_examples,
        "trained_correct": None if trained is None else trained.num_correct,
        "trained_loss": None if trained is None else _finite(trained.loss / trained.num_examples),
        "extracted_correct": None if extracted is None else extracted.num_correct,
        "parameters": report.parameters,
        "multiply_adds": report.multiply_adds,
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        "shortened": report.bound.parameters if report.bound else None,
    }
    # What a client calls a number must not cover one of ours.
    named = {
        name: _finite(value)
        for name, value in report.metrics.items()
        if name not in own and LAYER_SIGN not in name
    }
    return {**own, **named, "fault": report.fault or None}


def _layers(reports: Sequence[Report]) -> dict[str, dict[str, float]]:
    """Average what is told of single layers over the clients: what is told -> layer -> mean."""
    found: dict[str, dict[str, list[float]]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            told, sign, layer = name.partition(LAYER_SIGN)
            if sign and math.isfinite(value):
                found.setdefault(told, {}).setdefault(layer, []).append(value)
    return {
        told: {layer: sum(values) / len(values) for layer, values in layers.items()}
        for told, layers in found.items()
    }


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Turn a table of rows into one of columns, which names each column once."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    return {name: column for name, column in columns.items() if any(v is not None for v in column)}


def _summary(found: Sequence[Measurement | None]) -> dict[str, Any] | None:
    """Summarise over clients: their plain mean, that by test examples, and the worst."""
    each = [one for one in found if one is not None]
    if not each:
        return None
    count = sum(one.num_examples for one in each)
    return {
        "mean": sum(one.accuracy for one in each) / len(each),
        "weighted": sum(one.num_correct for one in each) / count,
        "worst": min(one.accuracy for one in each),
        "loss": _finite(sum(one.loss for one in each) / count),
    }


def _measurement(one: Measurement) -> dict[str, Any]:
    return {
        "accuracy": one.accuracy,
        "loss": _finite(one.loss / one.num_examples),
        "num_examples": one.num_examples,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
