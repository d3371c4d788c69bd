"""Which channels a narrower model keeps."""

import torch
from torch import Tensor

from subflot.channels.space import ChannelMap, Segment, Segments
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
            norm += _norms(weights[name], axis, segments, space, channels).cpu()
        # A stable order makes ties, as among dead channels, keep the first.
        kept[space] = norm.argsort(descending=True, stable=True)[:count].sort().values
    return kept


def _norms(
    tensor: Tensor, axis: int, segments: Segments, space: str, channels: ChannelMap
) -> Tensor:
    """Sum of absolute values per channel of a space along one axis of a tensor."""
    rows = tensor.detach().abs().double().movedim(axis, 0)
    sums = rows.reshape(len(rows), -1).sum(1)
    pieces = sums.split([segment.size(channels.sizes) for segment in segments])
    return sum(
        (
            _per_channel(piece, s)
            for piece, s in zip(pieces, segments, strict=True)
            if s.space == space
        ),
        torch.zeros(channels.sizes[space], dtype=torch.float64, device=sums.device),
    )


def _per_channel(piece: Tensor, segment: Segment) -> Tensor:
    return piece.view(segment.copies, -1, segment.repeat).sum(dim=(0, 2))
