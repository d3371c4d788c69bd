"""Read channel maps and transport plans off the models of runs.

Runs record no plans. What a run folder still holds, the global model and what each client last
returned, gives the plans by which the next round would cut the clients' submodels.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from subflot.algorithms.base import Client, Turn
from subflot.algorithms.subflot import SubFLOT
from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.runner import assemble
from subflot.reporting.survey import ClientPlans, ModelMap, Picture, Space, Survey
from subflot.results import SENSELESS, RunRecord
from subflot.simulation.store import Manifest, Store
from subflot.task import Task
from subflot.transport.align import align
from subflot.transport.plan import Plan
from subflot.weights import Weights

MOST_CLIENTS, MOST_LAYERS, MOST_CELLS = 4, 12, 32
"""Of one run: clients whose plans are drawn, one per width; layers of each, first and last among
them; and rows and columns of a picture, which adds up neighbouring channels beyond that."""
SHADES = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
"""One character per cell, from nothing to all."""

T = TypeVar("T")


def study(records: Sequence[RunRecord]) -> Survey:
    """Build the models of runs and read their last states.

    Each model is built once. What cannot be built, as its data are not at hand, is a remark.
    """
    tasks: dict[str, Task] = {}
    models: dict[str, ModelMap] = {}
    model_of, plans, ignoring, remarks = {}, {}, set(), []
    for record in records:
        try:
            # Where no digest is named, one would be looked for, which imports packages.
            settings = {"model_digest": "unknown", **record.config}
            config = replace(RunConfig.of(**settings), device="cpu")
            if config.method.ignores_budgets:
                ignoring.add(config.algorithm)
            key = _key(config)
            if key not in tasks:
                tasks[key] = _task(config)
                models[key] = _model_map(tasks[key], config)
            model_of[record.folder] = list(models).index(key)
            plans[record.folder] = last_plans(record, config, tasks[key])
        except SubflotError as error:
            remarks.append((record.folder, f"channel map or plans not drawn: {error.args[0]}"))
        except SENSELESS as error:
            what = f"{type(error).__name__}: {error}"
            remarks.append((record.folder, f"channel map or plans not drawn, damaged? {what}"))
    return Survey(tuple(models.values()), model_of, plans, frozenset(ignoring), tuple(remarks))


def last_plans(record: RunRecord, config: RunConfig, task: Task) -> tuple[ClientPlans, ...]:
    """Return the plans of one client per width, from the run's checkpoint.

    Nothing comes out for a method that cuts submodels without plans, and before the first round.
    """
    method, store = config.method, Store(record.folder)
    manifest = store.manifest()
    if not isinstance(method, SubFLOT) or method.extract != "transport":
        return ()
    if manifest is None or not _is_whole(record.folder, manifest):
        return ()
    state, turn = store.state(manifest), Turn(manifest.round + 1, config.rounds, config.seed)
    found = []
    for client in _one_per_width(record, set(state.history)):
        reference = method.reference(task, state, client, turn)
        plans = _plans(method, task, state.weights, reference)
        layers = tuple(_picture(name, plan) for name, plan in _spread(plans, MOST_LAYERS))
        found.append(
            ClientPlans(client.id, client.pruning_rate, manifest.round, len(plans), layers)
        )
    return tuple(found)


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    """Whether the checkpoint is all there; records are often kept without."""
    files = (manifest.state, *manifest.history.values())
    return bool(manifest.history) and all((folder / file).is_file() for file in files)


def _plans(method: SubFLOT, task: Task, source: Weights, target: Weights) -> list[tuple[str, Plan]]:

    alignment = align(
        source,
        target,
        task.channels,
        plan=method.plan,
        residual=method.residual,
        input_map=method.input_map,
        entropy=method.entropy,
    )
    return [
        (origin[0], plan) for plans in alignment.plans.values() for origin, plan in plans.items()
    ]


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


def _picture(layer: str, plan: Plan) -> Picture:
    shares = binned(plan.share, plan.source, plan.target, plan.shape)
    # What is there at all is seen.
    levels = [0 if v == 0 else max(1, round(v * (len(SHADES) - 1))) for v in shares.flat]
    cells = "".join(SHADES[min(level, len(SHADES) - 1)] for level in levels)
    rows, columns = shares.shape
    return Picture(layer, plan.shape, (rows, columns), cells, plan.share_moved())


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


def _key(config: RunConfig) -> str:
    """What decides the model: its name and settings, and the data that it is for."""
    parts = (config.model, config.model_settings, config.data, config.data_settings)
    return json.dumps(parts, sort_keys=True, default=list)


def _task(config: RunConfig) -> Task:
    if ":" in config.model:
        raise SubflotError(f"{config.model} is code, which is not run because a record names it")
    return assemble(config)[0]


def _model_map(task: Task, config: RunConfig) -> ModelMap:
    channels = task.channels
    rates = _spread(sorted({0.0, *config.pruning_rates, *config.client_rates}), MOST_CLIENTS + 1)
    kept = [channels.kept_sizes(rate) for rate in rates]
    spaces = tuple(
        Space(
            name,
            size,
            tuple(sizes.get(name, size) for sizes in kept),
            len(channels.members(name)),
            str(channels.frozen.get(name, "")),
        )
        for name, size in channels.sizes.items()
    )
    tensors = tuple(
        (name, " x ".join(map(str, task.initial[name].shape)), " | ".join(map(_axis, axes)))
        for name, axes in channels.axes.items()
    )
    return ModelMap(config.model, config.data, tuple(rates), spaces, tensors)


def _axis(segments: Iterable[object] | None) -> str:
    return " + ".join(map(str, segments)) if segments else "-"
