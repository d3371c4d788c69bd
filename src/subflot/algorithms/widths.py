"""Submodels whose layers have widths of their own, and pools of them that fit budgets.

A pool is a table of integers, a row for each submodel and a column for each prunable space, which
travels as a tensor. Submodels are the first channels of every space, so one lies inside another
when none of its spaces is wider.
"""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from subflot.channels import ChannelMap, take
from subflot.task import Task
from subflot.weights import Weights

Sizes = Mapping[str, int]
"""Prunable space -> how many of its channels a submodel has."""


def num_parameters(task: Task, sizes: Sizes) -> int:
    """Count the parameters of a submodel without building it."""
    every = {**task.channels.sizes, **sizes}
    total = 0
    for name, parameter in task.template.named_parameters():
        lengths = [
            length if segments is None else sum(segment.size(every) for segment in segments)
            for length, segments in zip(parameter.shape, task.channels.axes[name], strict=True)
        ]
        total += math.prod(lengths)
    return total


def budget_of(task: Task, pruning_rate: float) -> int:
    """Count the parameters that a client may train: those of the uniform model of its rate."""
    return num_parameters(task, task.channels.kept_sizes(pruning_rate))


def sizes_at(channels: ChannelMap, ratios: Mapping[str, float]) -> dict[str, int]:
    """Round down what each space keeps of its channels; one stays, and what the model needs.

    Spaces that are cut together keep the least of their ratios.

    Example:
        >>> channels = ChannelMap({}, {"a": 8, "b": 6})
        >>> sizes_at(channels, {"a": 0.3, "b": 0.01})
        {'a': 2, 'b': 1}
    """
    sizes = {}
    for group in channels.groups():
        unit = math.gcd(*(channels.sizes[space] for space in group))
        ratio = min(ratios[space] for space in group)
        left = min(unit, max(1, math.floor(round(ratio * unit, 9))))
        while any(channels.sizes[s] // unit * left < channels.least.get(s, 1) for s in group):
            left += 1
        sizes.update({space: channels.sizes[space] // unit * left for space in group})
    return {space: sizes[space] for space in channels.prunable}


def largest_that_fits(fits: Callable[[float], bool], most: float) -> float:
    """Find by halving the largest number up to `most` that fits; 0 if none does.

    What is smaller than a number that fits must fit too.
    """
    if fits(most):
        return most
    low, high = 0.0, most
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def as_pool(channels: ChannelMap, members: Iterable[Sizes]) -> Tensor:
    """Write submodels as a table."""
    return torch.tensor([[sizes[space] for space in channels.prunable] for sizes in members])


def as_sizes(channels: ChannelMap, row: Tensor) -> dict[str, int]:
    """Read a row of a table."""
    return dict(zip(channels.prunable, row.tolist(), strict=True))


def first_channels(sizes: Sizes) -> dict[str, Tensor]:
    """Name the channels of a submodel."""
    return {space: torch.arange(size) for space, size in sizes.items()}


def narrowed(weights: Weights, channels: ChannelMap, sizes: Sizes) -> dict[str, Tensor]:
    """Cut a submodel out of weights without copying them, but where an axis is not one stretch."""
    every = {**channels.sizes, **sizes}
    part = {}
    for name, tensor in weights.items():
        axes = [segments or () for segments in channels.axes[name]]
        if any(len(segments) > 1 or any(s.copies > 1 for s in segments) for segments in axes):
            part[name] = take({name: tensor}, channels, first_channels(sizes))[name]
            continue
        for axis, segments in enumerate(axes):
            if segments:
                tensor = tensor.narrow(axis, 0, segments[0].size(every))
        part[name] = tensor
    return part


def is_inside(sizes: Sizes, other: Sizes) -> bool:
    """Say whether no space of a submodel is wider than another's."""
    return all(size <= other[space] for space, size in sizes.items())


def fitted(task: Task, pool: Tensor, received: Sizes, pruning_rate: float) -> tuple[int, Sizes]:
    """Choose what a client trains: the largest submodel in what it received that fits its budget.

    Returns its row, and its sizes. Where no submodel of the pool fits, the client trains what it
    received of the uniform model of its rate, and the row is 0.
    """
    budget = budget_of(task, pruning_rate)
    members = [as_sizes(task.channels, row) for row in pool]
    counts = [
        num_parameters(task, sizes) if is_inside(sizes, received) else budget + 1
        for sizes in members
    ]
    able = [index for index, count in enumerate(counts) if count <= budget]
    if able:
        best = max(able, key=lambda index: counts[index])
        return best, members[best]
    uniform = task.channels.kept_sizes(pruning_rate)
    return 0, {space: min(size, received[space]) for space, size in uniform.items()}
