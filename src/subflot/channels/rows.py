"""What a tensor holds of each channel of a space, laid out in rows."""

from collections.abc import Mapping

import torch
from torch import Tensor

from subflot.channels.space import Segments


def rows(
    tensor: Tensor, axis: int, segments: Segments, space: str, sizes: Mapping[str, int]
) -> Tensor:
    """Return a row for each channel of a space: all entries that lie in it along an axis.

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
    pieces = tensor.movedim(axis, 0).split([segment.size(sizes) for segment in segments])
    return torch.cat(
        [
            piece.reshape(segment.copies, sizes[space], -1)
            .transpose(0, 1)
            .reshape(sizes[space], -1)
            for piece, segment in zip(pieces, segments, strict=True)
            if segment.space == space
        ],
        dim=1,
    )
