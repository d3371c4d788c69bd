"""A network that is cut keeps its scale: laws on networks of every kind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import CASES
from tolerances import EXACT
from torch import Tensor, nn
from torch.testing import assert_close
from traced import SMALL, traced

from subflot import build, take, trace
from subflot.channels.example import tensors_in
from subflot.channels.keep import prefix
from subflot.channels.scale import keep_scale, undo_scale
from subflot.channels.space import ChannelMap, Segment
from subflot.models import MODELS
from subflot.weights import Weights

EVERY = [*CASES, *SMALL]
MULTIPLIED = {
    "transformer": "scores are products of activations over the cut head dimension",
    "own attention": "scores are products of activations over the cut head dimension",
    "tied": "one tensor makes the channels and takes them in again",
}
"""Networks whose channels also meet where no weight stands between, so that none can be scaled."""


@pytest.mark.parametrize("name", [name for name in EVERY if name not in MULTIPLIED])
@pytest.mark.parametrize("copies", [2, 3])
def test_one_of_m_copies_of_every_channel_has_the_function_of_all(name: str, copies: int) -> None:
    model, channels, _ = traced(name)
    weights = model.state_dict()
    often = {s: torch.arange(channels.sizes[s]).repeat(copies) for s in channels.prunable}
    wide = channels.resized({s: len(index) for s, index in often.items()})
    # What m copies put in adds up to m times as much: in the wide network it is divided by m.
    copied = keep_scale(take(weights, channels, often), channels)
    one_each = {s: torch.arange(channels.sizes[s]) for s in channels.prunable}
    narrow = keep_scale(take(copied, wide, one_each), wide)
    for tensor, value in weights.items():
        assert_close(narrow[tensor], value, rtol=1e-12, atol=0)
    before, after = (outputs(model, weights, name), outputs(model, copied, name))
    for one, other in zip(before, after, strict=True):
        assert_close(other, one, rtol=0, atol=1e-7 * float(one.abs().max()))


def outputs(model: nn.Module, weights: Weights, name: str) -> list[Tensor]:
    """What a network computes in training, with statistics of the batch and nothing dropped."""
    _, channels, example = traced(name)
    if name in SMALL:  # More than two, of which one is always above the mean and one below.
        example = (MODELS[name].example(8).double(),)
    network = build(model, channels, weights).train()
    for part in network.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        if hasattr(part, "eps"):  # What norms add to a variance hides that scale does not matter.
            part.eps = 1e-12  # type: ignore[assignment]
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        return tensors_in(network(*example))


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=8)
@given(rate=st.sampled_from([0.25, 0.3, 0.5, 0.75, 0.9]))
def test_there_and_back_is_the_identity(name: str, rate: float) -> None:
    model, channels, _ = traced(name)
    part = take(model.state_dict(), channels, prefix(channels, rate))
    there = keep_scale(part, channels)
    assert any(not torch.equal(there[tensor], part[tensor]) for tensor in part)
    back = undo_scale(there, channels)
    for tensor, value in part.items():
        assert there[tensor].dtype == value.dtype
        assert_close(back[tensor], value, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", EVERY)
def test_full_width_changes_nothing(name: str) -> None:
    model, channels, _ = traced(name)
    weights = model.state_dict()
    for change in (keep_scale, undo_scale):
        for tensor, value in change(weights, channels).items():
            assert_close(value, weights[tensor], **EXACT)


@pytest.mark.parametrize("name", EVERY)
def test_only_what_a_norm_would_undo_is_left_alone(name: str) -> None:
    """Halving an input axis that is not named changes nothing; halving a named one does."""
    model, channels, _ = traced(name)
    weights = model.state_dict()
    before = outputs(model, weights, name)
    for tensor, axis in channels.inputs:
        if axis not in channels.moving[tensor] or name in MULTIPLIED:
            continue
        after = outputs(model, {**weights, tensor: weights[tensor] * 2}, name)
        change = max(
            float((a - b).abs().max() / b.abs().max()) for a, b in zip(after, before, strict=True)
        )
        assert (tensor, axis) in channels.scaled or change < 1e-7


def test_each_stretch_of_a_concatenation_has_its_own_factor() -> None:
    _, channels, _ = traced("dense blocks")
    part = take(traced("dense blocks")[0].state_dict(), channels, {"stem": torch.arange(2)})
    factors = (keep_scale(part, channels)["grow2.weight"] / part["grow2.weight"])[0, :, 0, 0]
    assert_close(factors, torch.tensor([4.0, 4.0, *[1.0] * 6], dtype=torch.float64))


def test_layers_before_norms_are_not_scaled_whatever_the_norm_is_called() -> None:
    class Standardised(nn.Module):
        """No class of torch's, only arithmetic."""

        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean(0)) / x.std(0)

    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), Standardised(), nn.ReLU()),
        *(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 2)),
    )
    channels = trace(model, torch.randn(2, 5))
    assert channels.scaled == {("5.weight", 1), ("7.weight", 1)}


def test_a_root_of_the_scale_is_what_weights_as_drawn_need() -> None:
    """Of many numbers of either sign the sum grows with the root of their number."""
    axes = {"w": (None, (Segment("h"),))}
    channels = ChannelMap(axes, {"h": 16}, scaled=frozenset({("w", 1)}))
    part = {"w": torch.ones(1, 4)}
    assert_close(keep_scale(part, channels, power=0.5)["w"], 2 * part["w"])
    assert_close(keep_scale(part, channels)["w"], 4 * part["w"])
