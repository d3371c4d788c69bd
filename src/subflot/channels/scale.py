"""The scale of layers whose inputs are cut.

A layer that keeps k of its n input channels adds up k/n of what it used to, and without a
normalisation behind it the signal shrinks from layer to layer. Multiplied by n/k along that axis it
computes what it did before as far as the channels that left were like those that stay: cut to one
of m copies each, a network keeps its function exactly.

The server keeps all weights in the scale of the full model. What a client gets goes through
`keep_scale`, what comes back through `undo_scale`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from subflot.channels.space import ChannelMap
from subflot.weights import Weights


def keep_scale(part: Weights, channels: ChannelMap, power: float = 1.0) -> dict[str, Tensor]:
    """Multiply a narrower model's weights by n/k along each input axis that keeps k of n channels.

    The map says which axes: those whose scale matters (`ChannelMap.scaled`). A model of full width
    comes back as it is.

    Args:
        part: the narrower model.
        channels: the map of the full one.
        power: of n/k; 0.5 for weights as they are drawn, which differ in sign and so add up with
            the root of their number.

    Example:
        >>> from subflot.channels.space import Segment
        >>> axes = {"w": (None, (Segment("h"), Segment(None, 1)))}
        >>> channels = ChannelMap(axes, {"h": 4}, scaled=frozenset({("w", 1)}))
        >>> keep_scale({"w": torch.tensor([[1.0, 2.0, 3.0]])}, channels)
        {'w': tensor([[2., 4., 3.]])}
    """
    result = dict(part)
    for name, axis, factor in _factors(part, channels):
        shape = [-1 if place == axis else 1 for place in range(part[name].ndim)]
        result[name] = result[name] * (factor**power).to(result[name]).view(shape)
    return result


def undo_scale(part: Weights, channels: ChannelMap) -> dict[str, Tensor]:
    """Divide a narrower model's weights by what `keep_scale` multiplied them by."""
    result = dict(part)
    for name, axis, factor in _factors(part, channels):
        shape = [-1 if place == axis else 1 for place in range(part[name].ndim)]
        result[name] = result[name] / factor.to(result[name]).view(shape)
    return result


def _factors(part: Weights, channels: ChannelMap) -> Iterator[tuple[str, int, Tensor]]:
    """Tensors and axes that lost channels, and n/k for each of the entries that are left."""
    sizes = channels.sizes_of(part)
    for name, axis in sorted(channels.scaled):
        segments = channels.axes[name][axis] or ()
        ratios = [
            1.0 if s.space is None else channels.sizes[s.space] / sizes[s.space] for s in segments
        ]
        if any(ratio != 1 for ratio in ratios):
            lengths = torch.tensor([segment.size(sizes) for segment in segments])
            yield name, axis, torch.tensor(ratios, dtype=torch.float64).repeat_interleave(lengths)
