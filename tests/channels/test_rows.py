"""Rows of channels, against loops over every entry."""

import pytest
import torch

from subflot.channels.rows import rows
from subflot.channels.space import Segment

SIZES = {"a": 3, "b": 2}
SEGMENTS = (Segment("a", repeat=2), Segment("b"), Segment("a", copies=2))
"""Along the axis: a0 a0 a1 a1 a2 a2, b0 b1, a0 a1 a2 a0 a1 a2."""
CHANNEL = ["a0", "a0", "a1", "a1", "a2", "a2", "b0", "b1", "a0", "a1", "a2", "a0", "a1", "a2"]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("space", ["a", "b"])
def test_a_row_holds_the_entries_of_its_channel(axis: int, space: str) -> None:
    shape = [4, 5, 6]
    shape[axis] = len(CHANNEL)
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    found = rows(tensor, axis, SEGMENTS, space, SIZES)
    assert len(found) == SIZES[space]
    for channel, row in enumerate(found):
        places = [place for place, of in enumerate(CHANNEL) if of == f"{space}{channel}"]
        expected = torch.cat([tensor.select(axis, place).flatten() for place in places])
        assert sorted(row.tolist()) == sorted(expected.tolist())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_all_rows_have_their_entries_in_one_order(axis: int) -> None:
    turn = torch.tensor([CHANNEL[:place].count(of) for place, of in enumerate(CHANNEL)])
    others = 10.0 * torch.arange(20).view(4, 5)
    tensor = (others[..., None] + turn).movedim(-1, axis)  # The same for every channel.
    first, *more = rows(tensor, axis, SEGMENTS, "a", SIZES)
    assert len(set(first.tolist())) == len(first)
    assert all(torch.equal(row, first) for row in more)
