"""What a model of each width costs: parameters, multiply-adds, bytes to send."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from subflot.channels.example import Example, arguments, moved
from subflot.channels.keep import prefix
from subflot.channels.record import on_meta
from subflot.channels.resize import build, state_of, take
from subflot.channels.space import ChannelMap
from subflot.weights import num_bytes

aten = torch.ops.aten


@dataclass(frozen=True)
class Cost:
    """What one model costs; multiply-adds are those of one forward pass on the example."""

    parameters: float
    multiply_adds: float
    """Of convolutions and matrix products alone."""
    elementwise: float
    """Two for each entry that batch norm writes, one for each an activation writes or a pooling
    reads: some published counts add these to the multiply-adds."""
    bytes: float
    """Of the state dict, buffers included, tensors that are shared counted once."""


def cost(model: nn.Module, channels: ChannelMap, example: Example, pruning_rate: float) -> Cost:
    """Count what the model costs once the share `pruning_rate` of its channels is removed."""
    weights = take(state_of(model), channels, prefix(channels, pruning_rate))
    return cost_of(build(model, channels, weights), example)


def cost_of(model: nn.Module, example: Example) -> Cost:
    """Count what a model costs as it is."""
    try:
        return _count(on_meta(model), moved(example, "meta"))
    except (RuntimeError, NotImplementedError):  # It needs numbers to run.
        return _count(copy.deepcopy(model), moved(example))


def mean_cost(costs: Sequence[Cost]) -> Cost:
    """Average costs, as over clients that are equally many at each rate."""
    columns = zip(*(vars(one).values() for one in costs), strict=True)
    return Cost(*(sum(column) / len(costs) for column in columns))


def _count(model: nn.Module, example: Example) -> Cost:
    model.eval()
    args, kwargs = arguments(example)
    counter = FlopCounterMode(display=False, custom_mapping=ELEMENTWISE)
    with torch.no_grad(), counter:
        model(*args, **kwargs)
    counted: Mapping[Any, int] = counter.get_flop_counts()["Global"]
    elementwise = sum(count for op, count in counted.items() if op in ELEMENTWISE)
    sent = {id(tensor): tensor for tensor in state_of(model).values()}
    return Cost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        multiply_adds=(sum(counted.values()) - elementwise) // 2,  # One is two operations.
        elementwise=elementwise,
        bytes=num_bytes({str(number): tensor for number, tensor in enumerate(sent.values())}),
    )


def _written(*_: object, out_shape: Any, **__: object) -> int:
    return math.prod(out_shape)


def _normalised(x_shape: Sequence[int], *_: object, **__: object) -> int:
    return 2 * math.prod(x_shape)


def _read(x_shape: Sequence[int], *_: object, **__: object) -> int:
    return math.prod(x_shape)


ELEMENTWISE = {
    aten.native_batch_norm: _normalised,
    aten._native_batch_norm_legit_no_training: _normalised,
    **dict.fromkeys((aten.relu, aten.relu_, aten.hardtanh, aten.hardtanh_), _written),
    **dict.fromkeys((aten.max_pool2d_with_indices, aten.avg_pool2d, aten.mean), _read),
}
