"""What of each client's examples is trained on, validated on and tested on."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from subflot.data.partition import dirichlet, iid
from subflot.data.split import Shares, split
from subflot.errors import SubflotError

some_labels = st.lists(st.integers(0, 6), min_size=1, max_size=120).map(np.array)
shares = st.sampled_from([0.06, 1 / 11, 1 / 6, 0.2, 2 / 7, 0.5, 0.9])


def split_all(labels: NDArray[np.int64], **settings: float) -> Shares:
    """Split the examples of a single client that holds everything."""
    (one,) = split(labels, (np.arange(len(labels)),), **settings)  # type: ignore[arg-type]
    return one


@given(labels=some_labels, test=shares, validation=shares | st.just(0.0), data=st.data())
def test_every_example_of_every_client_is_in_exactly_one_part(
    labels: NDArray[np.int64], test: float, validation: float, data: st.DataObject
) -> None:
    clients = iid(labels, data.draw(st.integers(1, len(labels))))
    parts = split(labels, clients, test_share=test, validation_share=validation)
    for client, part in zip(clients, parts, strict=True):
        assert len(part.train) > 0
        assert all((np.diff(p) > 0).all() for p in (part.train, part.validation, part.test))
        together = np.concatenate([part.train, part.validation, part.test])
        assert np.array_equal(np.sort(together), client)


@given(labels=some_labels, test=shares, validation=shares | st.just(0.0))
def test_train_and_test_hold_the_same_classes_save_single_examples(
    labels: NDArray[np.int64], test: float, validation: float
) -> None:
    part = split_all(labels, test_share=test, validation_share=validation)
    values, sizes = np.unique_counts(labels)
    assert set(labels[part.train]) == set(values)
    assert set(labels[part.test]) == set(values[sizes >= 2])


@given(labels=some_labels, test=shares)
def test_each_class_is_tested_in_its_share_to_the_nearest_example(
    labels: NDArray[np.int64], test: float
) -> None:
    part = split_all(labels, test_share=test)
    tested = np.bincount(labels[part.test], minlength=7)
    assert (np.abs(tested - test * np.bincount(labels, minlength=7)) < 1).all()


@given(sizes=st.lists(st.integers(20, 60), min_size=1, max_size=12), test=shares)
def test_sizes_are_those_asked_for_when_classes_are_large_enough(
    sizes: list[int], test: float
) -> None:
    part = split_all(np.repeat(np.arange(len(sizes)), sizes), test_share=test, validation_share=0.1)
    assert abs(len(part.test) - test * sum(sizes)) < 1
    # A class with a handful left may have no validation example to spare.
    assert len(part.validation) < 0.1 * (sum(sizes) - len(part.test)) + 1


def test_shares_are_worked_out_by_hand() -> None:
    # A fifth of 7, 6 and 2 is 1.4, 1.2 and 0.4, in all 3: one each, as each class must be tested.
    # A quarter of the 6, 5 and 1 left is 1.5, 1.25 and 0.25, in all 3: one, one and none rounded
    # down, and one more for the first class, which loses most.
    labels = np.repeat([0, 1, 2], [7, 6, 2])
    part = split_all(labels, test_share=0.2, validation_share=0.25)
    assert np.bincount(labels[part.test], minlength=3).tolist() == [1, 1, 1]
    assert np.bincount(labels[part.validation], minlength=3).tolist() == [2, 1, 0]
    assert np.bincount(labels[part.train], minlength=3).tolist() == [4, 4, 1]


def test_no_class_is_favoured_where_remainders_are_equal() -> None:
    # Each of ten classes wants 2.4 examples, in all 24: two each, and four get one more.
    labels = np.repeat(np.arange(10), 12)
    totals = np.zeros(10)
    for seed in range(300):
        totals += np.bincount(labels[split_all(labels, test_share=0.2, seed=seed).test])
    # Each class gets the odd one in four of ten seeds: 120 of 300, with a deviation of 8.5.
    assert np.abs(totals - 300 * 2.4).max() < 5 * 8.5


def test_small_clients_have_one_to_train_and_one_to_test() -> None:
    part = split_all(np.array([4, 4]), test_share=0.06)
    assert (len(part.train), len(part.test)) == (1, 1)
    part = split_all(np.array([4]), test_share=0.5)
    assert (len(part.train), len(part.test)) == (1, 0)


def test_the_total_over_many_clients_is_not_rounded_one_way() -> None:
    labels = np.zeros(20_000, dtype=int)
    clients = np.array_split(np.arange(20_000), 1500)  # 13 or 14 each
    parts = split(labels, tuple(clients), test_share=1 / 6)
    # 2.17 or 2.33 each. The total of 1500 roundings has a deviation of 18, or 0.0009 of all.
    assert abs(sum(len(part.test) for part in parts) / 20_000 - 1 / 6) < 0.004


def test_a_client_depends_on_its_own_examples_and_number_only() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    clients = dirichlet(labels, 4, 1.0)
    whole = split(labels, clients, test_share=0.2)
    part = split(labels, clients[:2], test_share=0.2)
    assert np.array_equal(whole[1].test, part[1].test)


def test_seed_and_validation_share() -> None:
    labels = np.random.default_rng(0).integers(0, 5, 400)
    one = split_all(labels, test_share=0.2)
    assert np.array_equal(one.test, split_all(labels, test_share=0.2).test)
    assert not np.array_equal(one.test, split_all(labels, test_share=0.2, seed=1).test)
    assert np.array_equal(one.test, split_all(labels, test_share=0.2, validation_share=0.3).test)
    assert len(one.validation) == 0


def test_without_a_test_share_everything_is_trained_on() -> None:
    part = split_all(np.array([0, 0, 0, 1]), test_share=0.0)
    assert len(part.train) == 4


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"test_share": 1.0}, "test_share is 1.0"),
        ({"test_share": -0.1}, "test_share is -0.1"),
        ({"test_share": float("nan")}, "test_share is nan"),
        ({"test_share": 0.2, "validation_share": 1.5}, "validation_share is 1.5"),
    ],
)
def test_shares_lie_between_none_and_all(settings: dict[str, float], said: str) -> None:
    with pytest.raises(SubflotError, match=said):
        split_all(np.zeros(5, dtype=int), **settings)


@st.composite
def recordings(draw: st.DrawFn) -> NDArray[np.int64]:
    """Spans of windows of several recordings, in any order; windows are of one length or not."""
    rows = []
    for recording in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 25))):
            start = draw(st.integers(0, 60))
            rows.append((recording * 7, start, start + draw(st.sampled_from([1, 4, 8]))))
    return np.array(draw(st.permutations(rows)), dtype=np.int64)


def steps(spans: NDArray[np.int64]) -> set[tuple[int, int]]:
    """Every step of a recording that some window covers."""
    return {(int(r), step) for r, start, stop in spans for step in range(start, stop)}


@given(spans=recordings(), test=shares, validation=shares | st.just(0.0), data=st.data())
def test_no_two_parts_share_a_step_of_a_recording_whoever_holds_it(
    spans: NDArray[np.int64], test: float, validation: float, data: st.DataObject
) -> None:
    labels = np.zeros(len(spans), dtype=int)
    clients = iid(labels, data.draw(st.integers(1, min(3, len(spans)))))
    try:
        parts = split(labels, clients, test_share=test, validation_share=validation, spans=spans)
    except SubflotError:  # A client has late windows only.
        assume(len(clients) == 1)
        raise
    train, held, tested = (
        steps(spans[np.concatenate([getattr(part, name) for part in parts])])
        for name in ("train", "validation", "test")
    )
    assert not train & tested
    assert not train & held
    assert not held & tested
    for recording in np.unique(spans[:, 0]):
        later = [step for r, step in tested if r == recording]
        assert max(s for r, s in train if r == recording) < min(later, default=10**6)


def half_overlapping(*counts: int, length: int = 8) -> NDArray[np.int64]:
    """So many windows of each recording, each beginning in the middle of the one before."""
    return np.array(
        [
            (recording, start, start + length)
            for recording, count in enumerate(counts)
            for start in range(0, count * length // 2, length // 2)
        ]
    )


def test_a_recording_is_parted_in_time_by_hand() -> None:
    # Of twenty windows the last four are tested; the one before them reaches into the first of
    # these. Of fifteen left, three are for validation, and again the one before them is left out.
    spans = half_overlapping(20)
    (part,) = split(
        np.zeros(20), (np.arange(20),), test_share=0.2, validation_share=0.2, spans=spans
    )
    assert part.train.tolist() == list(range(11))
    assert part.validation.tolist() == [12, 13, 14]
    assert part.test.tolist() == [16, 17, 18, 19]


def test_windows_that_only_touch_are_all_used() -> None:
    spans = np.array([(0, start, start + 5) for start in range(0, 50, 5)])
    (part,) = split(np.zeros(10), (np.arange(10),), test_share=0.3, spans=spans)
    assert part.train.tolist() == list(range(7))
    assert part.test.tolist() == [7, 8, 9]


def test_a_recording_too_short_to_be_parted_is_trained_on() -> None:
    # Two windows share half; of three, the outer two do not.
    spans = half_overlapping(2, 3, 1)
    (part,) = split(np.zeros(6), (np.arange(6),), test_share=0.9, spans=spans)
    assert part.train.tolist() == [0, 1, 2, 5]
    assert part.test.tolist() == [4]


def test_a_client_with_late_windows_only_is_an_error_that_names_it() -> None:
    clients = (np.arange(15), np.arange(15, 20))
    with pytest.raises(SubflotError, match="client 1 has 5 windows, all late") as caught:
        split(np.zeros(20), clients, test_share=0.5, spans=half_overlapping(20))
    assert "by_group" in caught.value.hint


def test_the_test_part_in_time_does_not_depend_on_validation_or_on_who_holds_it() -> None:
    spans = half_overlapping(*range(5, 45))
    labels, everything = np.zeros(len(spans)), np.arange(len(spans))
    by_recording = tuple(np.flatnonzero(spans[:, 0] == number) for number in range(40))
    one = split(labels, (everything,), test_share=0.2, spans=spans)[0]
    for parts in (
        split(labels, (everything,), test_share=0.2, validation_share=0.3, spans=spans),
        split(labels, by_recording, test_share=0.2, spans=spans),
    ):
        assert np.array_equal(np.concatenate([part.test for part in parts]), one.test)
    assert abs(len(one.test) - 0.2 * len(spans)) < 1


def test_the_seed_rounds_the_shares_of_equal_recordings() -> None:
    # A fifth of thirteen is 2.6: of forty recordings 24 have three windows for testing.
    spans = half_overlapping(*[13] * 40)
    whole = (np.arange(len(spans)),)
    one, same, other = (
        split(np.zeros(len(spans)), whole, test_share=0.2, spans=spans, seed=seed)[0].test
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert sorted(np.bincount(spans[one, 0])) == [2] * 16 + [3] * 24
