"""A subset looks like the whole: every class of every group keeps its share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subflot.data.dataset import Dataset
from subflot.data.subset import subset
from subflot.errors import SubflotError
from subflot.experiments import RunConfig


def made(sizes: list[list[int]]) -> Dataset:
    """So many examples of each class in each group; an input is the number of its example."""
    labels = [k for group in sizes for k, size in enumerate(group) for _ in range(size)]
    groups = [g for g, group in enumerate(sizes) for size in group for _ in range(size)]
    return Dataset(
        "made",
        np.arange(len(labels), dtype=np.float32)[:, None],
        np.array(labels),
        tuple("abc"),
        np.array(groups),
        ("g", "h"),
    )


SIZES = st.lists(st.lists(st.integers(1, 30), min_size=3, max_size=3), min_size=2, max_size=2)


@given(SIZES, st.integers(1, 100), st.integers(0, 3))
def test_every_class_of_every_group_keeps_its_share(
    sizes: list[list[int]], count: int, seed: int
) -> None:
    whole = made(sizes)
    part = subset(whole, count, seed)
    assert len(part) == min(count, len(whole))
    assert part.groups is not None
    for group, classes in enumerate(sizes):
        for label, size in enumerate(classes):
            kept = int(((part.labels == label) & (part.groups == group)).sum())
            assert abs(kept - size * len(part) / len(whole)) < 1


@given(SIZES, st.integers(1, 60))
def test_kept_examples_are_those_of_the_whole_each_once(sizes: list[list[int]], count: int) -> None:
    whole = made(sizes)
    part = subset(whole, count)
    numbers = part.inputs[:, 0].astype(int)
    assert len(set(numbers)) == len(numbers)
    assert (np.diff(numbers) > 0).all()
    assert (part.labels == whole.labels[numbers]).all()
    assert (part.groups == np.asarray(whole.groups)[numbers]).all()


def test_the_seed_decides_which_are_kept() -> None:
    whole = made([[20, 20, 20], [20, 20, 20]])
    one, same, other = (subset(whole, 12, seed).inputs.ravel().tolist() for seed in (0, 0, 1))
    assert one == same
    assert one != other


def test_data_without_groups_is_fine_and_nothing_is_refused() -> None:
    whole = Dataset("plain", np.zeros((10, 1)), np.arange(10) % 2, ("a", "b"))
    assert np.bincount(subset(whole, 4).labels).tolist() == [2, 2]
    with pytest.raises(SubflotError, match="0 examples are to be kept"):
        subset(whole, 0)


def test_windows_keep_their_places_in_their_recordings() -> None:
    spans = np.array([(0, start, start + 2) for start in range(10)])
    whole = Dataset("plain", np.arange(10.0)[:, None], np.zeros(10, int), ("a",), spans=spans)
    part = subset(whole, 4)
    assert part.spans is not None
    assert part.spans[:, 1].tolist() == part.inputs[:, 0].tolist()


def test_a_run_is_renamed_only_when_examples_are_left_out() -> None:
    whole = RunConfig.of(rounds=3)
    assert RunConfig.of(rounds=3, max_examples=0).run_id == whole.run_id
    assert RunConfig.of(rounds=3, max_examples=50).run_id != whole.run_id
    with pytest.raises(SubflotError, match="max_examples is -1"):
        RunConfig.of(max_examples=-1)
