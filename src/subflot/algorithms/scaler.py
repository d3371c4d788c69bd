"""HeteroFL's scaler: a narrow model trains with activations as large as the full model's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from subflot.channels import ChannelMap


@contextmanager
def scaled(model: nn.Module, channels: ChannelMap, width: float) -> Iterator[None]:
    """Divide by the width what each layer puts out that makes channels which can be cut.

    Around the forward pass of training alone: evaluation goes without. In front of batch norm it
    changes next to nothing. Layers that return more than one tensor, and those inside
    a larger one that does not call them, stay as they are.
    """
    makers = {
        name.rpartition(".")[0]
        for space in channels.prunable
        for name, _ in channels.producers.get(space, ())
    }
    modules = dict(model.named_modules())

    def shrunk(module: nn.Module, inputs: Any, output: Any) -> Any:
        return output / width if isinstance(output, Tensor) else None

    hooks = [
        modules[maker].register_forward_hook(shrunk)
        for maker in sorted(makers)
        if maker in modules and width != 1
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
