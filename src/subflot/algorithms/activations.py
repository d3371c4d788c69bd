"""What the channels of a model carry when it runs, read where the next layers take it in.

Activations may be modules or plain functions, so they are not looked for: the inputs of
convolutions and linear layers are what came out of them, after a pooling where there is one.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from subflot.channels import ChannelMap
from subflot.channels.rows import rows
from subflot.task import Task
from subflot.training.evaluate import BATCH
from subflot.weights import Weights

See = Callable[[str, Tensor], None]
"""Takes a space and its activations in one layer's input, shape (channels, values)."""


@torch.no_grad()
def watch(task: Task, weights: Weights, inputs: Tensor, see: See) -> None:
    """Run the full model on some inputs and show what each layer reads of each space.

    Norms use the statistics of the batch, as in training; nothing is dropped at random. A space
    that is read neither by a convolution nor by a linear layer is not seen.
    """
    with task.lend(weights) as model, _reading(model, task.channels, see):
        model.eval()
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                module.train()
        for batch in inputs.split(BATCH):
            # Batch norm has no spread over one.
            some = batch if len(batch) > 1 else batch.repeat_interleave(2, 0)
            model(some.to(task.device))


@contextmanager
def _reading(model: nn.Module, channels: ChannelMap, see: See) -> Iterator[None]:
    """Show what goes into the layers of a model while the context lasts."""
    prunable = set(channels.prunable)

    def show(name: str, axis: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        segments = channels.axes[name][axis] or ()
        spaces = {s.space for s in segments if s.space is not None} & prunable
        num_entries = sum(segment.size(channels.sizes) for segment in segments)

        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            # Counted from the back: linear layers take any number of axes, and a batch may lack.
            entries = len(module.kernel_size) + 1 if isinstance(module, _ConvNd) else 1
            read: Tensor = args[0]
            if read.shape[-entries] == num_entries:  # Groups read a part each.
                for space in sorted(spaces):
                    see(space, rows(read, -entries, segments, space, channels.sizes))

        return hook

    layers = {
        f"{path}.weight".lstrip("."): module
        for path, module in model.named_modules()
        if isinstance(module, _ConvNd | nn.Linear)
    }
    hooks = [
        layers[name].register_forward_pre_hook(show(name, axis))
        for name, axis in sorted(channels.inputs)
        if name in layers
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
