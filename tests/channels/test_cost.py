"""Costs against hand counts and against the paper's table."""

import torch
from torch import nn
from traced import traced

from subflot import trace
from subflot.channels.cost import cost


def test_cost_of_a_small_network_counted_by_hand() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )
    example = torch.randn(2, 2, 4, 4)
    half = cost(model, trace(model, example), example[:1], 0.5)
    # Two channels of 4 x 4: convolution 2 x (2 x 9), linear 32 x 3.
    assert half.multiply_adds == 16 * 2 * 18 + 32 * 3
    assert half.parameters == (2 * 18 + 2) + 4 + (32 * 3 + 3)
    # Batch norm carries mean and variance (float32) and a counter (int64).
    assert half.bytes == 4 * (half.parameters + 4) + 8
    assert half.elementwise == 2 * 32 + 32


def test_tied_weights_are_counted_and_sent_once() -> None:
    model, channels, example = traced("tied")
    full = cost(model.float(), channels, example, 0.0)
    model.double()
    assert full.parameters == 20 * 12 + 12 * 12 + 12
    assert full.bytes == 4 * full.parameters


def test_a_model_that_needs_numbers_is_counted_too() -> None:
    model, channels, example = traced("branching")
    one = (example[0][:1],)
    assert cost(model, channels, one, 0.0).multiply_adds == 6 * 10 + 10 * 10 + 10 * 3
