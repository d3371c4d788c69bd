"""What a run notes of its model for those who only read records: its channel map, its last plans.

channels.json     when it starts: what can be cut, and what is left of it at each pruning rate
plans.json        when it ends: how the next round would cut the clients' submodels
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from subflot.algorithms.base import Client, Turn
from subflot.algorithms.subflot import SubFLOT
from subflot.experiments.config import RunConfig
from subflot.results import CHANNELS, PLANS, RunRecord
from subflot.simulation.store import Manifest, Store
from subflot.task import Task
from subflot.texts import write_text
from subflot.transport.align import align
from subflot.transport.plan import Plan

MOST_CLIENTS, MOST_LAYERS, MOST_CELLS = 4, 12, 32
"""Of one run: clients whose plans are drawn, one per width; layers of each, first and last among
them; and rows and columns of a picture, which adds up neighbouring channels beyond that."""
SHADES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
"""One character per cell, from nothing to all."""

T = TypeVar("T")


def note_channels(folder: Path, config: RunConfig, task: Task) -> None:
    """Write the channel map of a run's model, unless it is there."""
    if not (folder / CHANNELS).is_file():
        write_text(folder / CHANNELS, json.dumps(channel_map(config, task)) + "\n")


def note_plans(folder: Path, config: RunConfig, task: Task) -> None:
    """Write the plans at the end of a run, if its method has any."""
    if plans := last_plans(folder, config, task):
        write_text(folder / PLANS, json.dumps(plans) + "\n")


def channel_map(config: RunConfig, task: Task) -> dict[str, Any]:
    """Describe which channels are cut together, how many are left, and what each axis holds."""
    channels = task.channels
    rates = _spread(sorted({0.0, *config.pruning_rates, *config.client_rates}), MOST_CLIENTS + 1)
    kept = [channels.kept_sizes(rate) for rate in rates]
    return {
        "ignores_budgets": config.method.ignores_budgets,
        "model": config.model,
        "data": config.data,
        "rates": rates,
        "spaces": [
            {
                "name": name,
                "channels": size,
                "kept": [sizes.get(name, size) for sizes in kept],
                "num_tensors": len(channels.members(name)),
                "frozen": str(channels.frozen.get(name, "")),
            }
            for name, size in channels.sizes.items()
        ],
        "tensors": [
            (name, " x ".join(map(str, task.initial[name].shape)), " | ".join(map(_axis, axes)))
            for name, axes in channels.axes.items()
        ],
    }


def last_plans(folder: Path, config: RunConfig, task: Task) -> list[dict[str, Any]]:
    """Return the plans that carry the global model to one client per width, from the checkpoint.

    Nothing comes out for a method that cuts submodels without plans, and before the first round.
    """
    method, store = config.method, Store(folder)
    manifest = store.manifest()
    if not isinstance(method, SubFLOT) or method.extract != "transport":
        return []
    if manifest is None or not _is_whole(folder, manifest):
        return []
    state, turn = store.state(manifest), Turn(manifest.round + 1, config.rounds, config.seed)
    found = []
    for client in _one_per_width(RunRecord(folder), set(state.history)):
        alignment = align(
            state.weights,
            method.reference(task, state, client, turn),
            task.channels,
            plan=method.plan,
            residual=method.residual,
            input_map=method.input_map,
            entropy=method.entropy,
        )
        plans = [
            (origin[0], one) for each in alignment.plans.values() for origin, one in each.items()
        ]
        found.append(
            {
                "client": client.id,
                "pruning_rate": client.pruning_rate,
                "round": manifest.round,
                "num_layers": len(plans),
                "layers": [picture(name, plan) for name, plan in _spread(plans, MOST_LAYERS)],
            }
        )
    return found


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether the checkpoint is all there; records are often kept without."""
    files = (manifest.state, *manifest.history.values())
    return bool(manifest.history) and all((folder / file).is_file() for file in files)


def _one_per_width(record: RunRecord, known: set[int]) -> list[Client]:
    """Choose, among clients with a history, the first of every rate; of many rates, a few."""
    rates: dict[int, float] = {}
    for line in record.rounds:
        columns = line["clients"]
        rates.update(zip(columns["client"], columns["pruning_rate"], strict=True))
    chosen: dict[float, int] = {}
    for client in sorted(known & rates.keys()):
        chosen.setdefault(rates[client], client)
    return [Client(chosen[rate], rate) for rate in _spread(sorted(chosen), MOST_CLIENTS)]


def _spread(items: Sequence[T], most: int) -> list[T]:
    """Take at most so many, at even distances, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def picture(layer: str, plan: Plan) -> dict[str, Any]:
    """Draw a plan as a grid of shades, source channels down, target channels across.

    Cells are row by row, a character of SHADES each: the share of its column's mass.
    """
    shares = binned(plan.share, plan.source, plan.target, plan.shape)
    # What is there at all is seen.
    levels = [0 if v == 0 else max(1, round(v * (len(SHADES) - 1))) for v in shares.flat]
    return {
        "layer": layer,
        "shape": plan.shape,
        "grid": shares.shape,
        "cells": "".join(SHADES[min(level, len(SHADES) - 1)] for level in levels),
        "moved": plan.share_moved(),
    }


def binned(
    share: NDArray[np.float64],
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    shape: tuple[int, int],
) -> NDArray[np.float64]:
    """Return a plan's shares as a matrix of at most MOST_CELLS rows and columns.

    Neighbouring channels share a cell where there are more; a column stays the mean of what its
    channels receive, so that columns still sum to one where every target receives something.
    """
    rows, columns = (min(size, MOST_CELLS) for size in shape)
    row, column = source * rows // shape[0], target * columns // shape[1]
    matrix = np.zeros((rows, columns))
    np.add.at(matrix, (row, column), share)
    per_column = np.bincount(np.arange(shape[1]) * columns // shape[1], minlength=columns)
    return matrix / per_column


def _axis(segments: Iterable[object] | None) -> str:
    return " + ".join(map(str, segments)) if segments else "-"
