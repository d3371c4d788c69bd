"""Which channels are kept, how many, and what is refused."""

import pytest
import torch
from torch import nn
from traced import traced

from subflot import ChannelError, ChannelMap, Segment, build, put, take, trace
from subflot.channels.keep import largest, prefix, random, rolling

ONE = ChannelMap({"w": ((Segment("h"),), None), "b": ((Segment("h"),),)}, {"h": 4})


def test_prefix_keeps_the_first() -> None:
    assert prefix(ONE, 0.5)["h"].tolist() == [0, 1]


def test_rolling_starts_at_the_shift_and_wraps_around() -> None:
    assert rolling(ONE, 0.25, shift=2)["h"].tolist() == [2, 3, 0]
    assert rolling(ONE, 0.5, shift=7)["h"].tolist() == [3, 0]


def test_random_draws_without_replacement_from_the_given_stream() -> None:
    drawn = {
        tuple(random(ONE, 0.5, torch.Generator().manual_seed(seed))["h"].tolist())
        for seed in range(50)
    }
    assert drawn == {(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}


def test_largest_keeps_the_rows_of_largest_l1_norm_in_their_order() -> None:
    weights = {"w": torch.tensor([[1.0, -1], [5, 0], [0, 0], [-3, -3]]), "b": torch.zeros(4)}
    assert largest(ONE, 0.5, weights)["h"].tolist() == [1, 3]


def test_largest_adds_the_norms_of_all_layers_that_make_a_space() -> None:
    model, channels, _ = traced("two inputs")
    weights = model.state_dict()
    norms = sum(weights[f"{layer}.weight"].abs().sum(1) for layer in ("left", "right", "skip"))
    assert isinstance(norms, torch.Tensor)
    expected = norms.argsort(descending=True)[:5].sort().values
    assert largest(channels, 0.5, weights)["left"].tolist() == expected.tolist()


def test_largest_sums_over_the_block_of_a_flattened_channel() -> None:
    axes = {"w": ((Segment("h", repeat=2, copies=2),),)}
    weights = {"w": torch.tensor([1.0, 1, 0, 0, 9, 0, -1, 0, 7, 7, 0, 0])}
    # Channels own entries (0, 1, 6, 7), (2, 3, 8, 9) and (4, 5, 10, 11): norms 3, 14 and 9.
    assert largest(ChannelMap(axes, {"h": 3}), 0.5, weights)["h"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("size", "rate", "left"),
    [(64, 0.25, 48), (10, 0.7, 3), (10, 0.75, 3), (3, 0.99, 1), (1280, 0.9, 128), (7, 0.0, 7)],
)
def test_ceil_of_the_width_is_kept_and_never_less_than_one(
    size: int, rate: float, left: int
) -> None:
    channels = ChannelMap({"w": ((Segment("h"),),)}, {"h": size})
    assert channels.kept_sizes(rate) == {"h": left}


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_a_rate_outside_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ChannelError, match=r"lies in \[0, 1\)"):
        ONE.kept_sizes(rate)


def test_coupled_spaces_are_cut_in_proportion() -> None:
    axes = {"w": ((Segment("width"),), (Segment("head", copies=4),))}
    channels = ChannelMap(axes, {"width": 24, "head": 6}, coupled=[("width", "head")])
    assert channels.kept_sizes(0.25) == {"width": 20, "head": 5}
    with pytest.raises(ChannelError, match="in proportion"):
        take({"w": torch.zeros(24, 24)}, channels, {"head": torch.arange(5)})


def test_take_follows_concatenations_flattens_and_copies() -> None:
    axes = {"w": ((Segment("a", repeat=2), Segment(None, 1), Segment("b", copies=2)),)}
    channels = ChannelMap(axes, {"a": 2, "b": 3})
    kept = {"a": torch.tensor([1]), "b": torch.tensor([2, 0])}
    # Entries: a0 a0 a1 a1 fixed b0 b1 b2 b0 b1 b2.
    assert take({"w": torch.arange(11)}, channels, kept)["w"].tolist() == [2, 3, 4, 7, 5, 10, 8]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"nothing": torch.tensor([0])}, "there is no space `nothing`"),
        ({"h": torch.tensor([4])}, "each from 0 to 3"),
        ({"h": torch.tensor([-1])}, "each from 0 to 3"),
        ({"h": torch.tensor([], dtype=torch.long)}, "at least one index"),
    ],
)
def test_kept_channels_that_do_not_fit_are_refused(
    kept: dict[str, torch.Tensor], said: str
) -> None:
    weights = {"w": torch.zeros(4, 2), "b": torch.zeros(4)}
    with pytest.raises(ChannelError, match=said):
        take(weights, ONE, kept)
    with pytest.raises(ChannelError, match=said):
        put(weights, weights, ONE, kept)


def test_a_frozen_space_is_not_cut() -> None:
    model, channels, _ = traced("digits-cnn")
    frozen = next(iter(channels.frozen))
    with pytest.raises(ChannelError, match=r"cannot be cut: (out|in)put"):
        take(model.state_dict(), channels, {frozen: torch.tensor([0])})


def test_weights_of_no_width_are_refused() -> None:
    model, channels, _ = traced("digits-cnn")
    weights = dict(model.state_dict())
    weights["classifier.0.weight"] = weights["classifier.0.weight"][:, :-1]
    with pytest.raises(ChannelError, match=r"classifier.0.weight.*fits no width"):
        build(model, channels, weights)
    del weights["classifier.0.weight"]
    with pytest.raises(ChannelError, match=r"`classifier\.0\.weight` is missing"):
        build(model, channels, weights)


def test_a_part_that_does_not_fit_the_kept_channels_is_refused() -> None:
    with pytest.raises(ChannelError, match=r"`w` has 3 entries on axis 0, .* take 2"):
        put({"w": torch.zeros(3, 2)}, {"w": torch.zeros(4, 2)}, ONE, {"h": torch.arange(2)})


def test_what_is_no_tensor_in_a_state_dict_goes_along() -> None:
    class Noted(nn.Sequential):
        def get_extra_state(self) -> object:
            return {"note": 1}

        def set_extra_state(self, state: object) -> None:
            assert state == {"note": 1}

    model = Noted(nn.Linear(3, 4), nn.Linear(4, 2))
    channels = trace(model, torch.randn(2, 3))
    kept = prefix(channels, 0.5)
    part = take(model.state_dict(), channels, kept)
    build(model, channels, part).load_state_dict(part, strict=True)
    values, _ = put(part, model.state_dict(), channels, kept)
    build(model, channels, values).load_state_dict(values, strict=True)
