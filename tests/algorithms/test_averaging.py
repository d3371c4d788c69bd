"""Merging against loops over single entries."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT32
from torch import Tensor
from torch.testing import assert_close

from subflot.algorithms.averaging import owner_average, placed, residual_recovery
from subflot.algorithms.base import Arrival, Client, Upload
from subflot.channels import ChannelMap, Channels, Segment, take
from subflot.weights import Weights

H, K = Segment("h"), Segment("k", repeat=2)
MAP = ChannelMap(
    {
        "one": ((H,), None),
        "bias": ((H,),),
        "two": (None, (H, K)),
        "both": ((H,), (K,)),
        "count": (),
    },
    {"h": 4, "k": 3},
)
"""A row per channel of `h`; a tensor behind a concatenation of `h` and of `k`, two entries each;
one that is cut along two axes."""
NAMES = ("one", "bias", "two", "both")


def weights(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = {"one": (4, 2), "bias": (4,), "two": (3, 10), "both": (4, 6)}
    found = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {**found, "count": torch.tensor(seed)}


def arrival(seed: int, num_examples: int, kept: Channels) -> Arrival:
    part = take(weights(seed), MAP, kept)
    return Arrival(Client(seed), Upload(part, num_examples, kept))


def entries(kept: Channels) -> dict[str, list[list[int]]]:
    """For each tensor the entries along each axis that a client owns, in its order."""
    h = kept["h"].tolist() if "h" in kept else [0, 1, 2, 3]
    k = kept["k"].tolist() if "k" in kept else [0, 1, 2]
    pairs = [2 * channel + place for channel in k for place in (0, 1)]
    behind = h + [4 + at for at in pairs]
    return {"one": [h, [0, 1]], "bias": [h], "two": [[0, 1, 2], behind], "both": [h, pairs]}


def by_loops(old: Weights, arrivals: Sequence[Arrival], *, fill: bool) -> dict[str, Tensor]:
    result = {name: tensor.double().clone() for name, tensor in old.items()}
    for name in NAMES:
        for place in product(*map(range, old[name].shape)):
            total, count, touched = 0.0, 0, False
            for one in arrivals:
                owned = entries(one.upload.kept)[name]
                mine = all(at in axis for at, axis in zip(place, owned, strict=True))
                touched |= mine
                if mine:
                    where = tuple(axis.index(at) for at, axis in zip(place, owned, strict=True))
                    total += float(one.upload.weights[name][where]) * one.upload.num_examples
                elif fill:
                    total += float(old[name][place]) * one.upload.num_examples
                if mine or fill:
                    count += one.upload.num_examples
            if touched:
                result[name][place] = total / count
    return result


def kept_sets() -> st.SearchStrategy[dict[str, Tensor]]:
    def some(size: int) -> st.SearchStrategy[Tensor]:
        orders = st.permutations(range(size))
        return st.builds(lambda order, n: torch.tensor(order[:n]), orders, st.integers(1, size))

    return st.one_of(st.just({}), st.fixed_dictionaries({"h": some(4), "k": some(3)}))


@pytest.mark.parametrize("merge", [owner_average, residual_recovery])
@given(parts=st.lists(st.tuples(kept_sets(), st.integers(1, 50)), min_size=1, max_size=4))
def test_merging_equals_loops_over_entries(merge, parts) -> None:  # type: ignore[no-untyped-def]
    old = weights(100)
    arrivals = [arrival(seed, count, kept) for seed, (kept, count) in enumerate(parts)]
    expected = by_loops(old, arrivals, fill=merge is residual_recovery)
    found = merge(old, MAP, iter(arrivals))
    for name, tensor in old.items():
        assert found[name].dtype == tensor.dtype
        assert_close(found[name].double(), expected[name].double(), **FLOAT32)


def test_two_owners_by_hand() -> None:
    channels = ChannelMap({"w": ((H,),)}, {"h": 3})
    old = {"w": torch.tensor([10.0, 20.0, 30.0])}
    first = Upload({"w": torch.tensor([1.0, 2.0])}, 1, {"h": torch.tensor([0, 1])})
    second = Upload({"w": torch.tensor([6.0])}, 3, {"h": torch.tensor([1])})
    arrivals = [Arrival(Client(0), first), Arrival(Client(1), second)]
    owners = owner_average(old, channels, arrivals)["w"]
    assert owners.tolist() == [1.0, 5.0, 30.0]  # (2 + 3 * 6) / 4
    filled = residual_recovery(old, channels, arrivals)["w"]
    assert filled.tolist() == [(1 + 3 * 10) / 4, 5.0, 30.0]


@pytest.mark.parametrize("merge", [owner_average, residual_recovery])
def test_what_nobody_trained_stays_to_the_bit_and_counters_too(merge) -> None:  # type: ignore[no-untyped-def]
    old = weights(3)
    kept = {"h": torch.tensor([2]), "k": torch.tensor([1])}
    found = merge(old, MAP, [arrival(seed, 7 + seed, kept) for seed in range(3)])
    untouched = [0, 1, 3]
    assert torch.equal(found["one"][untouched], old["one"][untouched])
    assert not torch.equal(found["one"][2], old["one"][2])
    assert torch.equal(found["count"], old["count"])


@pytest.mark.parametrize("merge", [owner_average, residual_recovery])
def test_uploads_and_the_old_model_are_not_changed(merge) -> None:  # type: ignore[no-untyped-def]
    old = weights(3)
    arrivals = [arrival(0, 2, {}), arrival(1, 3, {"h": torch.tensor([1, 0])})]
    merge(old, MAP, arrivals)
    assert all(torch.equal(tensor, weights(3)[name]) for name, tensor in old.items())
    assert torch.equal(arrivals[0].upload.weights["one"], weights(0)["one"])
    assert torch.equal(arrivals[1].upload.weights["one"], weights(1)["one"][[1, 0]])


@pytest.mark.parametrize("merge", [owner_average, residual_recovery])
def test_tensors_that_an_upload_lacks_are_not_its_own(merge) -> None:  # type: ignore[no-untyped-def]
    old = weights(3)
    shallow = Upload({"one": torch.zeros(4, 2)}, 5)
    found = merge(old, MAP, [Arrival(Client(0), shallow)])
    assert torch.equal(found["one"], torch.zeros(4, 2))
    assert torch.equal(found["two"], old["two"])


def test_a_restriction_counts_for_values_and_for_examples() -> None:
    channels = ChannelMap({"w": ((H,),)}, {"h": 2})
    old = {"w": torch.tensor([9.0, 9.0])}

    def only_first(one: Arrival, name: str, owned: Tensor) -> Tensor:
        return owned & (torch.tensor([True, False]) if one.client.id else torch.tensor(True))

    arrivals = [Arrival(Client(n), Upload({"w": torch.full((2,), 4.0 * n)}, 1)) for n in (0, 1)]
    assert owner_average(old, channels, arrivals, only_first)["w"].tolist() == [2.0, 0.0]


def test_without_uploads_the_model_stays() -> None:
    old = weights(3)
    found = owner_average(old, MAP, [])
    assert all(torch.equal(tensor, old[name]) for name, tensor in found.items())


def test_a_whole_model_in_another_order_is_put_in_place() -> None:
    order = torch.tensor([3, 1, 0, 2])
    part = take(weights(5), MAP, {"h": order})
    values, owned = placed(part, weights(0), MAP, {"h": order})
    assert torch.equal(values["one"], weights(5)["one"])
    assert owned["one"].all()
