"""Models with their maps, traced once per test process."""

from functools import cache

import torch
from networks import CASES
from torch import Tensor, nn

from subflot import ChannelMap, trace
from subflot.models import MODELS

SMALL = ["vgg11", "mobilenetv2", "digits-cnn", "harcnn"]
"""Bundled networks light enough to be tried many times."""


@cache
def traced(name: str) -> tuple[nn.Module, ChannelMap, tuple[Tensor, ...]]:
    """A model with weights that tell every channel from every other, its map and an example."""
    torch.manual_seed(0)
    if name in CASES:
        model, example = CASES[name].model(), CASES[name].example()
    else:
        model, example = MODELS[name].model(), (MODELS[name].example(2),)
    stir(model)
    channels = trace(model, example)
    return model.double().eval(), channels, as_double(example)


def stir(model: nn.Module) -> None:
    """Give normalisation statistics and constant parameters values that differ per channel."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and (tensor.dim() == 1 or not tensor.std() > 0):
                noise = torch.rand(tensor.shape, generator=generator)
                tensor.copy_(0.5 + noise if name.endswith(("var", "weight")) else noise - 0.5)


def as_double(example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """An example in double precision; tokens stay integers."""
    return tuple(x.double() if x.is_floating_point() else x for x in example)
