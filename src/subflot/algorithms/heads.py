"""Classifiers for early exits, as strong as there is room for.

A deep network separates classes with all of its layers; a linear map of channel means behind the
first of them is far weaker. So a head has layers of its own, as those of DepthFL and ScaleFL:
depthwise separable convolutions that halve the positions, and a linear layer that tells the
positions that are left apart. What has no grid of positions, such as tokens and what linear layers
put out, gets the mean over positions and a linear layer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subflot.channels.blocks import Cut
from subflot.seeding import generator
from subflot.training.local import seeded

SHORT = 4
"""Positions along an axis at which convolutions need not halve it."""
CONVOLUTIONS: Mapping[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
POOLS = {1: nn.AdaptiveAvgPool1d, 2: nn.AdaptiveAvgPool2d, 3: nn.AdaptiveAvgPool3d}


@dataclass(frozen=True)
class Exit:
    """A place where a model can end, and the head that it ends with there."""

    cut: Cut
    growth: int = 0
    """By how much convolutions multiply the channels each time; 0 is a head without any."""
    grid: int = 1
    """Positions along each axis that the linear layer tells apart; 1 is the mean."""

    def head(self, num_classes: int) -> nn.Module:
        """Make the head, the same every time."""
        seed = torch.randint(2**63 - 1, (), generator=generator(0, "exit", self.cut.module))
        # Not drawn from the global stream, which belongs to the caller.
        with seeded(int(seed), "cpu"):
            return self._made(num_classes)

    def num_parameters(self, num_classes: int) -> int:
        """Count what the head adds to a model."""
        with torch.device("meta"):
            head = self._made(num_classes)
        return sum(parameter.numel() for parameter in head.parameters())

    def _made(self, num_classes: int) -> nn.Module:
        if has_grid(self.cut):
            return GridHead(self.cut, num_classes, self.growth, self.grid)
        return MeanHead(self.cut, num_classes)


def has_grid(cut: Cut) -> bool:
    """Tell whether features have positions to convolve over, behind the channels."""
    return cut.axis == 1 and len(cut.positions) in CONVOLUTIONS


def exits_behind(cut: Cut) -> list[Exit]:
    """List a cut with each head that it can have, the strongest first."""
    if not has_grid(cut):
        return [Exit(cut)]
    with_layers = [Exit(cut, growth, grid) for grid in (4, 2, 1) for growth in (2, 1)]
    return [*with_layers, *(Exit(cut, 0, grid) for grid in (4, 2, 1))]


def strongest(cut: Cut, num_classes: int, room: int) -> Exit:
    """Choose the strongest head that has at most so many parameters, or the smallest one."""
    exits = exits_behind(cut)
    return next((one for one in exits if one.num_parameters(num_classes) <= room), exits[-1])


class MeanHead(nn.Module):
    """The mean over positions, then a linear layer to the classes."""

    def __init__(self, cut: Cut, num_classes: int) -> None:
        super().__init__()
        self.axis = cut.axis
        self.linear = nn.Linear(cut.num_channels, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        positions = [axis for axis in range(1, features.dim()) if axis != self.axis]
        logits: Tensor = self.linear(features.mean(dim=positions) if positions else features)
        return logits


class GridHead(nn.Module):
    """Separable convolutions, if any, then a linear layer on what a few positions show."""

    def __init__(self, cut: Cut, num_classes: int, growth: int, grid: int) -> None:
        super().__init__()
        channels, lengths = cut.num_channels, cut.positions
        layers: list[nn.Module] = []
        while growth and (not layers or max(lengths) > SHORT):
            strides = tuple(2 if length > SHORT else 1 for length in lengths)
            layers.append(separable(channels, channels * growth, lengths, strides))
            channels *= growth
            lengths = tuple(-(-n // stride) for n, stride in zip(lengths, strides, strict=True))
        left = tuple(min(length, grid) for length in lengths)
        self.features = nn.Sequential(*layers, POOLS[len(left)](left))
        self.linear = nn.Linear(channels * math.prod(left), num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        # A copy: the network may go on to change its features in place.
        logits: Tensor = self.linear(self.features(features.clone()).flatten(1))
        return logits


def separable(
    channels: int, outputs: int, lengths: tuple[int, ...], strides: tuple[int, ...]
) -> nn.Sequential:
    """Two depthwise separable convolutions, the first with strides, each with norm and ReLU."""
    convolution, norm = CONVOLUTIONS[len(lengths)], NORMS[len(lengths)]
    # An axis of one position has no neighbours to look at.
    kernel = tuple(3 if length > 1 else 1 for length in lengths)
    padding = tuple(size // 2 for size in kernel)
    layers: list[nn.Module] = []
    for wide, stride in ((channels, strides), (outputs, (1,) * len(strides))):
        layers += [
            convolution(channels, channels, kernel, stride, padding, groups=channels, bias=False),
            convolution(channels, wide, 1, bias=False),
            norm(wide),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)
