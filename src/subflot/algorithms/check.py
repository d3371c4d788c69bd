"""What comes from a client is checked before it is used."""

import math

import torch

from subflot.algorithms.base import Download, Upload
from subflot.channels.resize import check_kept
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.weights import Weights

MOST_EXAMPLES = 10**12


def fault_of(task: Task, download: Download, upload: Upload) -> str:
    """Say what is wrong with an upload; nothing, if it may be merged.

    It must hold the tensors that the client received, finite, of the same types, and of the shapes
    that it received or of the channels that it says it kept.
    """
    count = upload.num_examples
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < MOST_EXAMPLES:
        return f"it claims {count!r} examples"
    if upload.weights.keys() != download.weights.keys():
        odd = sorted(upload.weights.keys() ^ download.weights.keys())
        return f"its tensors are not those that were sent: {', '.join(odd[:3])}"
    if upload.weights.keys() == task.channels.axes.keys():
        try:
            check_kept(task.channels, upload.kept)
            sizes = task.channels.sizes_of(upload.weights)
        except SubflotError as error:
            return str(error).partition("\n")[0]
        for space, index in upload.kept.items():
            if len(index) != sizes[space]:
                return f"it kept {len(index)} channels of `{space}` and sent {sizes[space]}"
            if len(index.unique()) != len(index):
                return f"it kept a channel of `{space}` twice"
    is_cut = any(
        space not in download.kept or len(index) != len(download.kept[space])
        for space, index in upload.kept.items()
    )
    for name, tensor in upload.weights.items():
        sent = download.weights[name]
        if tensor.dtype != sent.dtype:
            return f"tensor `{name}` is {tensor.dtype}, and {sent.dtype} was sent"
        if tensor.dim() != sent.dim() or (tensor.shape != sent.shape and not is_cut):
            return f"tensor `{name}` has shape {tuple(tensor.shape)}, sent as {tuple(sent.shape)}"
    for part in (upload.weights, upload.extras):
        name = _not_finite(part)
        if name:
            return f"tensor `{name}` holds NaN or infinity"
    if not all(math.isfinite(value) for value in upload.metrics.values()):
        return "its metrics hold NaN or infinity"
    return ""


def _not_finite(weights: Weights) -> str:
    for name, tensor in weights.items():
        # One pass without a mask of the tensor's size: a sum is finite only if its parts are.
        if (
            tensor.is_floating_point()
            and not torch.isfinite(tensor.sum())
            and not tensor.isfinite().all()
        ):
            return name
    return ""
