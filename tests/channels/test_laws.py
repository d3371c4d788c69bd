"""Laws that hold for every map: of permuting, cutting and putting back."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import CASES
from tolerances import DOUBLE, EXACT
from torch import Tensor
from traced import SMALL, traced

from subflot import ChannelMap, build, put, take
from subflot.channels.keep import prefix

EVERY = [*CASES, *SMALL]


def permutation(channels: ChannelMap, space: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(channels.sizes[space], generator=generator)


def some_kept(channels: ChannelMap, seed: int, rate: float) -> dict[str, Tensor]:
    """Channels in no order, as many as the rate leaves."""
    return {
        space: permutation(channels, space, seed + place)[:count]
        for place, (space, count) in enumerate(channels.kept_sizes(rate).items())
    }


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=8)
@given(data=st.data())
def test_permuting_the_channels_of_any_space_leaves_the_function_unchanged(
    name: str, data: st.DataObject
) -> None:
    model, channels, example = traced(name)
    space = data.draw(st.sampled_from(channels.prunable))
    order = {space: permutation(channels, space, data.draw(st.integers(0, 1000)))}
    permuted = build(model, channels, take(model.state_dict(), channels, order))
    with torch.no_grad():
        torch.testing.assert_close(permuted(*example), model(*example), **DOUBLE)


@pytest.mark.parametrize("name", CASES)
def test_everything_that_can_be_cut_is_free(name: str) -> None:
    _, channels, _ = traced(name)
    assert len(channels.prunable) == CASES[name].num_prunable


@pytest.mark.parametrize("name", EVERY)
def test_input_and_output_axes_are_in_no_prunable_space(name: str) -> None:
    model, channels, example = traced(name)
    with torch.no_grad():
        shape = model(*example).shape
    half = channels.kept_sizes(0.5)
    narrow = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    with torch.no_grad():
        assert narrow(*example).shape == shape
    assert set(half).isdisjoint(channels.frozen)


@pytest.mark.parametrize("name", EVERY)
def test_a_permutation_really_moves_the_weights(name: str) -> None:
    model, channels, _ = traced(name)
    weights = model.state_dict()
    for space in channels.prunable:
        moved = take(weights, channels, {space: torch.arange(channels.sizes[space]).flip(0)})
        for tensor, _ in channels.members(space):
            assert not torch.equal(moved[tensor], weights[tensor])


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=8)
@given(seed=st.integers(0, 1000), rate=st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.75, 0.9]))
def test_take_after_put_is_the_identity_for_unsorted_channels(
    name: str, seed: int, rate: float
) -> None:
    model, channels, _ = traced(name)
    weights = model.state_dict()
    kept = some_kept(channels, seed, rate)
    part = take(weights, channels, kept)
    values, owned = put(part, weights, channels, kept)
    again, mine = take(values, channels, kept), take(owned, channels, kept)
    for tensor in part:
        torch.testing.assert_close(again[tensor], part[tensor], **EXACT)
        assert mine[tensor].all()
        assert owned[tensor].sum() == part[tensor].numel()
        torch.testing.assert_close(
            values[tensor], torch.where(owned[tensor], weights[tensor], 0), **EXACT
        )


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=8)
@given(seed=st.integers(0, 1000), rates=st.sampled_from([(0.25, 0.5), (0.5, 0.5), (0.3, 0.6)]))
def test_slicing_a_slice_equals_the_direct_slice(
    name: str, seed: int, rates: tuple[float, float]
) -> None:
    model, channels, _ = traced(name)
    weights = model.state_dict()
    outer = some_kept(channels, seed, rates[0])
    part = take(weights, channels, outer)
    narrower = channels.resized(channels.sizes_of(part))
    inner = some_kept(narrower, seed + 1, rates[1])
    direct = take(weights, channels, {space: outer[space][inner[space]] for space in outer})
    twice = take(part, narrower, inner)
    for tensor in direct:
        torch.testing.assert_close(twice[tensor], direct[tensor], **EXACT)


@pytest.mark.parametrize("name", EVERY)
def test_sizes_are_read_off_the_weights(name: str) -> None:
    model, channels, _ = traced(name)
    for rate in (0.0, 0.25, 0.5, 0.75):
        part = take(model.state_dict(), channels, some_kept(channels, 0, rate))
        sizes = channels.sizes_of(part)
        assert {s: sizes[s] for s in channels.prunable} == channels.kept_sizes(rate)
