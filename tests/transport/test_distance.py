"""Distances between channels: exact where rows are alike, at any scale, between numbers only."""

import math

import pytest
import torch

from subflot.errors import SubflotError
from subflot.transport import distances


def test_distances_equal_the_subtraction_of_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    source, target = torch.randn(30, 4, 9, generator=rng), torch.randn(20, 4, 9, generator=rng)
    target[:5] = source[7:12]
    target[5] = source[3] + 1e-4 * torch.randn(4, 9, generator=rng)
    exact = (source.double()[:, None] - target.double()).flatten(2).norm(dim=2)
    found = distances(source, target)
    assert found.dtype == torch.float32
    assert (found[range(7, 12), range(5)] == 0).all()
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=0.0)  # Loses two digits.


def test_almost_equal_rows_beside_much_larger_ones_keep_their_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 40, generator=generator) * torch.logspace(-3, 3, 24)[:, None]
    near = rows + 1e-4 * rows * torch.randn(24, 40, generator=generator)
    for source, target in ((rows, near), (near, rows)):
        exact = torch.cdist(source.double(), target.double()).float()
        torch.testing.assert_close(distances(source, target), exact, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e19, 1e30])
def test_distances_of_huge_and_tiny_rows_neither_overflow_nor_vanish(scale: float) -> None:
    rows = torch.randn(12, 7, generator=torch.Generator().manual_seed(0))
    found = distances(rows[:8] * scale, rows[4:] * scale)
    expected = torch.cdist(rows[:8].double(), rows[4:].double()) * scale
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0.0)


def test_distances_of_equal_rows_are_zero() -> None:
    rows = torch.full((50, 33), 0.1)
    assert (distances(rows, rows[:40]) == 0).all()
    assert (distances(torch.zeros(5, 3), torch.zeros(4, 3)) == 0).all()
    assert distances(torch.zeros(5, 0), torch.zeros(4, 0)).shape == (5, 4)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_distances_between_no_numbers_name_their_layer(value: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 1] = value
    for source, target in ((rows, torch.ones(2, 4)), (torch.ones(2, 4), rows)):
        with pytest.raises(SubflotError, match=r"weights of 'conv2' hold NaN or infinity"):
            distances(source, target, name="conv2")
