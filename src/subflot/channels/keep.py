"""Which channels a narrower model keeps."""

import torch
from torch import Tensor

from subflot.channels.rows import rows
from subflot.channels.space import ChannelMap
from subflot.weights import Weights


def prefix(channels: ChannelMap, pruning_rate: float) -> dict[str, Tensor]:
    """Keep the first channels of every space."""
    return {s: torch.arange(count) for s, count in channels.kept_sizes(pruning_rate).items()}


def rolling(channels: ChannelMap, pruning_rate: float, shift: int) -> dict[str, Tensor]:
    """Keep a window of every space that starts at `shift` and wraps around."""
    return {
        space: (torch.arange(count) + shift) % channels.sizes[space]
        for space, count in channels.kept_sizes(pruning_rate).items()
    }


def window(channels: ChannelMap, pruning_rate: float, start: float) -> dict[str, Tensor]:
    """Keep a window of every space that starts at a share of it and wraps around.

    Example:
        >>> from subflot.channels.space import Segment
        >>> channels = ChannelMap({"w": ((Segment("h"),),)}, {"h": 4})
        >>> window(channels, 0.5, 2.75)
        {'h': tensor([3, 0])}
    """
    return {
        space: (torch.arange(count) + int(start % 1 * channels.sizes[space]))
        % channels.sizes[space]
        for space, count in channels.kept_sizes(pruning_rate).items()
    }


def random(
    channels: ChannelMap, pruning_rate: float, generator: torch.Generator
) -> dict[str, Tensor]:
    """Keep channels drawn without replacement, in their old order."""
    return {
        space: torch.randperm(channels.sizes[space], generator=generator)[:count].sort().values
        for space, count in channels.kept_sizes(pruning_rate).items()
    }


def largest(channels: ChannelMap, pruning_rate: float, weights: Weights) -> dict[str, Tensor]:
    """Keep the channels whose weights have the largest l1 norm, in their old order.

    A channel's weights are its rows in the layers that make it; with several such layers (a
    residual sum) their norms are added.
    """
    kept = {}
    for space, count in channels.kept_sizes(pruning_rate).items():
        norm = torch.zeros(channels.sizes[space], dtype=torch.float64)
        for name, axis in channels.producers.get(space) or channels.members(space):
            segments = channels.axes[name][axis]
            assert segments is not None
            own = rows(weights[name].detach(), axis, segments, space, channels.sizes)
            norm += own.abs().double().sum(1).cpu()
        # A stable order makes ties, as among dead channels, keep the first.
        kept[space] = norm.argsort(descending=True, stable=True)[:count].sort().values
    return kept
