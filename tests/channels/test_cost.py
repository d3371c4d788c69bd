"""Costs against hand counts and against the paper's table."""

import pytest
import torch
from torch import nn
from traced import traced

from subflot import trace
from subflot.channels.cost import cost, mean_cost
from subflot.models import MODELS


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


@pytest.mark.parametrize("name", ["vgg11", "mobilenetv2", "resnet18"])
def test_the_papers_table_is_met_within_one_percent_or_the_difference_is_explained(
    name: str,
) -> None:
    network = MODELS[name]
    model = network.model()
    channels = trace(model, network.example())
    costs = [cost(model, channels, network.example(1), rate) for rate in (0, 0.25, 0.5, 0.75)]
    assert network.printed is not None
    cells = list(network.printed.compare(costs[0], mean_cost(costs)))
    assert len(cells) == 4
    for cell in cells:
        assert cell.difference == pytest.approx(cell.ours / cell.printed - 1)
        if name == "mobilenetv2" and cell.quantity == "multiply_adds":
            assert "batch norm, activations and pooling" in cell.reason
            assert f"{cell.printed / 1e6:.2f} million" in cell.reason
        else:
            assert abs(cell.difference) < 0.01
            assert not cell.reason
