"""What a tensor holds of each channel of a space, laid out in rows."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from subflot.channels.space import Segments


def rows(
    tensor: Tensor, axis: int, segments: Segments, space: str, sizes: Mapping[str, int]
) -> Tensor:
    """Return a row for each channel of a space: all entries that lie in it along an axis.

    Where they lie together in memory, the rows are the tensor's own.

    Args:
        tensor: of any shape.
        axis: where its channels lie.
        segments: what lies along that axis; one of them at least is of the space.
        space: whose channels are asked for.
        sizes: channels of every space, as the tensor has them.

    Example:
        >>> from subflot.channels.space import Segment
        >>> flat = torch.arange(6).view(1, 6)
        >>> rows(flat, 1, (Segment("h", repeat=2),), "h", {"h": 3})
        tensor([[0, 1],
                [2, 3],
                [4, 5]])
    """
    axis %= tensor.ndim
    found = [
        piece.unflatten(axis, (segment.copies, sizes[space], segment.repeat))
        .movedim(axis + 1, 0)
        .reshape(sizes[space], -1)
        for piece, segment in zip(split(tensor, axis, segments, sizes), segments, strict=True)
        if segment.space == space
    ]
    return torch.cat(found, 1) if len(found) > 1 else found[0]


def split(
    tensor: Tensor, axis: int, segments: Segments, sizes: Mapping[str, int]
) -> Sequence[Tensor]:
    """Cut a tensor along an axis into its stretches."""
    if len(segments) == 1:
        return (tensor,)
    pieces: Sequence[Tensor] = tensor.split([s.size(sizes) for s in segments], axis)
    return pieces
