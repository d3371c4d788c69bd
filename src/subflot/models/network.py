"""One entry of the registry: how to build a network and what to feed it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A network by name: its builder, its usual classes and the input it expects.

    Attributes:
        build: takes the number of classes, returns a freshly initialised module.
        num_classes: used where the data set does not say otherwise.
        input_shape: one example, without the batch axis.
        vocabulary: None for float input; otherwise inputs are integer tokens below it, and
            token 0 is padding.
        summary: one line for listings.
    """

    build: Callable[[int], nn.Module]
    num_classes: int
    input_shape: tuple[int, ...]
    vocabulary: int | None
    summary: str

    def model(self, num_classes: int | None = None) -> nn.Module:
        """A freshly initialised module; its weights are drawn from torch's global stream."""
        return self.build(self.num_classes if num_classes is None else num_classes)

    def example(self, batch: int = 2) -> Tensor:
        """The same random inputs every time, shape (batch, *input_shape); no token is padding."""
        generator = torch.Generator().manual_seed(0)
        shape = (batch, *self.input_shape)
        if self.vocabulary is None:
            return torch.randn(shape, generator=generator)
        return torch.randint(1, self.vocabulary, shape, generator=generator)
