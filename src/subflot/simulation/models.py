"""Models that clients bring along: trained elsewhere, of any width, checked before use."""

import math
from collections.abc import Mapping

from subflot.algorithms import ALGORITHMS
from subflot.algorithms.base import Algorithm
from subflot.algorithms.check import largest_value, shape_at
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.weights import Weights


def check_models(
    algorithm: Algorithm, task: Task, models: Mapping[int, Weights], num_clients: int
) -> None:
    """Refuse models that do not belong to the family of the task's, or that nobody would look at.

    Args:
        algorithm: the method.
        task: as the method prepared it.
        models: client -> the weights that it brings.
        num_clients: how many clients the data knows.
    """
    if models:
        check_taken(algorithm)
    for client in sorted(models):
        if not 0 <= client < num_clients:
            raise SubflotError(
                f"there is a model for client {client}",
                hint=f"the data knows those from 0 to {num_clients - 1}",
            )
        fault = _fault_of(task, models[client])
        if fault:
            raise SubflotError(
                f"the model of client {client} cannot be used: {fault}",
                hint="it must be the task's model at some width, as `subflot export` writes one",
            )


def check_taken(algorithm: Algorithm) -> None:
    """Refuse a method that cannot take models which clients bring."""
    if not algorithm.takes_models:
        able = ", ".join(name for name, kind in ALGORITHMS.items() if kind.takes_models)
        raise SubflotError(
            f"{algorithm.name} cannot take models that clients bring", hint=f"these can: {able}"
        )


def _fault_of(task: Task, weights: Weights) -> str:
    """Say what is wrong with a client's own model; nothing, if it is one of the family."""
    if weights.keys() != task.initial.keys():
        odd = sorted(weights.keys() ^ task.initial.keys())
        return f"its tensors are not those of the model: {', '.join(odd[:3])}"
    try:
        sizes = task.channels.sizes_of(weights)
    except SubflotError as error:
        return str(error).partition("\n")[0]
    for space, size in sizes.items():
        if size > task.channels.sizes[space]:
            return f"`{space}` has {size} channels, and the full model {task.channels.sizes[space]}"
    for name, full in task.initial.items():
        tensor, shape = weights[name], shape_at(full, task.channels.axes[name], sizes)
        if tensor.dtype != full.dtype:
            return f"tensor `{name}` is {tensor.dtype}, expected {full.dtype}"
        if tuple(tensor.shape) != shape:
            return f"tensor `{name}` has shape {tuple(tensor.shape)}, expected {shape}"
        if not math.isfinite(largest_value({name: tensor})):
            return f"tensor `{name}` holds NaN or infinity"
    return ""
