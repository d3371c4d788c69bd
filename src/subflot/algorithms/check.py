"""What comes from a client is checked before it is used."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from subflot.algorithms.base import Download, Upload
from subflot.channels import ChannelMap, Channels
from subflot.channels.resize import check_kept
from subflot.channels.space import Segments
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.weights import Weights

MOST_EXAMPLES = 10**12
MOST_GROWTH = 1e6
"""How many times the server's largest value, or 1, a trained value may be.

No training that goes well comes near it; one value beyond makes the merged model overflow."""
MOST_STATISTIC = 1e12
"""The same for what norm layers count, which goes with the square of the inputs' scale."""


def fault_of(task: Task, download: Download, upload: Upload, largest: float = 1.0) -> str:
    """Say what is wrong with an upload; nothing, if it may be merged.

    It must hold the tensors that the client received, finite, of the same types and not absurdly
    large. Their shapes are those of the channels that it says it kept, or as received where nobody
    named channels.

    Args:
        task: the model.
        download: what the client received; shapes and types alone are looked at.
        upload: what came back.
        largest: the largest value in the server's model.
    """
    count = upload.num_examples
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < MOST_EXAMPLES:
        return f"it claims {count!r} examples"
    if upload.weights.keys() != download.weights.keys():
        odd = sorted(upload.weights.keys() ^ download.weights.keys())
        return f"its tensors are not those that were sent: {', '.join(odd[:3])}"
    fault = _fault_of_kept(task.channels, upload.kept)
    if fault:
        return fault
    is_named = bool(upload.kept or download.kept)
    sizes = {**task.channels.sizes, **{space: len(index) for space, index in upload.kept.items()}}
    for name, tensor in upload.weights.items():
        sent = download.weights[name]
        if tensor.dtype != sent.dtype:
            return f"tensor `{name}` is {tensor.dtype}, and {sent.dtype} was sent"
        shape = shape_at(sent, task.channels.axes[name], sizes) if is_named else tuple(sent.shape)
        if tuple(tensor.shape) != shape:
            return f"tensor `{name}` has shape {tuple(tensor.shape)}, expected {shape}"
    found = {name: largest_value({name: tensor}) for name, tensor in upload.weights.items()}
    extras = {name: largest_value({name: tensor}) for name, tensor in upload.extras.items()}
    for name, value in (*found.items(), *extras.items()):
        if not math.isfinite(value):
            return f"tensor `{name}` holds NaN or infinity"
    for name, value in found.items():
        most = (MOST_GROWTH if name in task.parameters else MOST_STATISTIC) * max(1.0, largest)
        if value > most:
            return f"tensor `{name}` holds values up to {value:.3g}, expected at most {most:.3g}"
    if not all(math.isfinite(value) for value in upload.metrics.values()):
        return "its metrics hold NaN or infinity"
    return ""


def _fault_of_kept(channels: ChannelMap, kept: Channels) -> str:
    for space, index in kept.items():
        if index.dim() != 1 or index.dtype != torch.int64:
            return f"the channels of `{space}` are no list of whole numbers"
        if len(index.unique()) != len(index):
            return f"it kept a channel of `{space}` twice"
    try:
        check_kept(channels, kept)
    except SubflotError as error:
        return str(error).partition("\n")[0]
    return ""


def shape_at(
    sent: Tensor, axes: tuple[Segments | None, ...], sizes: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the shape that a tensor has when spaces have these sizes."""
    return tuple(
        length if segments is None else sum(segment.size(sizes) for segment in segments)
        for length, segments in zip(sent.shape, axes, strict=True)
    )


def largest_value(weights: Weights) -> float:
    """Return the largest fractional value, without its sign; NaN if there is one.

    Example:
        >>> largest_value({"a": torch.tensor([1.0, -3.0]), "n": torch.tensor([7])})
        3.0
    """
    found = [0.0]
    for tensor in weights.values():
        if tensor.is_floating_point() and tensor.numel():
            low, high = tensor.aminmax()  # One pass without a mask of the tensor's size.
            found += [-float(low), float(high)]
    return math.nan if any(map(math.isnan, found)) else max(found)
