"""How examples are divided among clients: laws of every partition, and what each one promises."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from subflot.data.allot import counts_by_shares, dirichlet_shares, fill_up, pair_up
from subflot.data.partition import (
    PARTITIONS,
    Clients,
    by_group,
    dirichlet,
    divide,
    iid,
    pathological,
)
from subflot.errors import SubflotError
from subflot.seeding import numpy_generator

LABELS = np.random.default_rng(0).integers(0, 10, 3000)
TEN_EACH: list[Callable[..., Clients]] = [
    iid,
    partial(pathological, classes_per_client=3),
    partial(dirichlet, concentration=0.1),
    by_group,
]


def kinds(labels: NDArray[np.int64], clients: Clients) -> list[int]:
    """The number of unlike labels of each client."""
    return [len(np.unique(labels[client])) for client in clients]


def check_is_partition(clients: Clients, num_clients: int, num_examples: int) -> None:
    assert len(clients) == num_clients
    assert all(len(client) > 0 for client in clients)
    assert all((np.diff(client) > 0).all() for client in clients)
    assert {client.dtype for client in clients} == {np.dtype(np.int64)}
    assert sorted(np.concatenate(clients)) == list(range(num_examples))


@given(data=st.data(), num_examples=st.integers(1, 300), seed=st.integers(0, 50))
def test_iid_uses_every_example_once_in_sizes_that_differ_by_one(
    data: st.DataObject, num_examples: int, seed: int
) -> None:
    num_clients = data.draw(st.integers(1, num_examples))
    clients = iid(np.zeros(num_examples, dtype=int), num_clients, seed)
    check_is_partition(clients, num_clients, num_examples)
    assert np.ptp([len(client) for client in clients]) <= 1


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    num_clients=st.integers(1, 25),
    data=st.data(),
    seed=st.integers(0, 50),
)
def test_pathological_gives_every_client_exactly_the_asked_number_of_classes(
    sizes: list[int], num_clients: int, data: st.DataObject, seed: int
) -> None:
    each = data.draw(st.integers(1, len(sizes)))
    assume(len(sizes) <= num_clients * each <= sum(min(n, num_clients) for n in sizes))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    clients = pathological(labels, num_clients, each, seed)
    check_is_partition(clients, num_clients, len(labels))
    assert set(kinds(labels, clients)) == {each}


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=200),
    concentration=st.sampled_from([1e-320, 1e-9, 0.01, 0.1, 1.0, 100.0, 1e300]),
    min_examples=st.integers(1, 4),
    data=st.data(),
    seed=st.integers(0, 50),
)
def test_dirichlet_always_ends_and_leaves_no_client_below_the_minimum(
    labels: list[int], concentration: float, min_examples: int, data: st.DataObject, seed: int
) -> None:
    assume(len(labels) >= min_examples)
    num_clients = data.draw(st.integers(1, len(labels) // min_examples))
    clients = dirichlet(labels, num_clients, concentration, seed, min_examples=min_examples)
    check_is_partition(clients, num_clients, len(labels))
    assert min(len(client) for client in clients) >= min_examples


@given(
    groups=st.lists(st.integers(0, 5), min_size=1, max_size=100),
    each=st.integers(1, 4),
    seed=st.integers(0, 50),
)
def test_by_group_keeps_groups_apart_and_divides_each_evenly(
    groups: list[int], each: int, seed: int
) -> None:
    values, sizes = np.unique_counts(np.array(groups))
    assume(sizes.min() >= each)
    clients = by_group(groups, each * len(values), seed)
    check_is_partition(clients, each * len(values), len(groups))
    owners = [set(np.array(groups)[client]) for client in clients]
    assert owners == [{value} for value in values for _ in range(each)]
    for first in range(0, len(clients), each):
        assert np.ptp([len(client) for client in clients[first : first + each]]) <= 1


@pytest.mark.parametrize("function", TEN_EACH)
def test_the_seed_fixes_the_partition_and_another_seed_gives_another(
    function: Callable[..., Clients],
) -> None:
    one, same, other = (function(LABELS, 20, seed=seed) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_one_client_per_group_by_default_in_the_order_of_the_groups() -> None:
    clients = by_group([4, 2, 4, 9, 2])
    assert [list(client) for client in clients] == [[1, 4], [0, 2], [3]]


def test_iid_clients_have_the_classes_in_the_proportion_of_the_whole() -> None:
    labels = np.repeat(np.arange(10), 2000)
    counts = np.array([np.bincount(labels[client]) for client in iid(labels, 20)])
    # Each count is hypergeometric, nearly normal; their chi-square has 19 * 9 degrees of freedom.
    value = ((counts - 100) ** 2 / 100).sum()
    assert 0.001 < stats.chi2.cdf(value, 19 * 9) < 0.999


def test_pathological_classes_have_equally_many_owners_and_owners_equal_shares() -> None:
    labels = np.repeat(np.arange(10), 60)
    clients = pathological(labels, 20, 2)
    counts = np.array([np.bincount(labels[client], minlength=10) for client in clients])
    assert list((counts > 0).sum(axis=0)) == [4] * 10
    assert set(counts[counts > 0]) == {15}


def test_pathological_clients_do_not_all_share_the_same_pairs_of_classes() -> None:
    labels = np.repeat(np.arange(10), 60)
    pairs = {tuple(np.unique(labels[client])) for client in pathological(labels, 20, 2)}
    assert len(pairs) > 10


def test_what_is_left_over_of_a_class_goes_to_no_fixed_client() -> None:
    # Seven examples for four clients: three get two, and any of them may get one.
    alone = [[len(c) for c in pathological([0] * 7, 4, 1, seed)].index(1) for seed in range(30)]
    assert set(alone) == {0, 1, 2, 3}


def test_a_class_with_few_examples_has_fewer_owners() -> None:
    labels = np.repeat([0, 1, 2], [2, 100, 100])
    clients = pathological(labels, 10, 2)
    owners = [sum(c in labels[client] for client in clients) for c in range(3)]
    assert owners == [2, 9, 9]


@pytest.mark.parametrize("concentration", [0.01, 0.1, 1.0, 10.0])
def test_the_share_of_a_client_in_a_class_follows_its_beta_marginal(concentration: float) -> None:
    num_clients, num_classes, size = 10, 400, 2000
    labels = np.repeat(np.arange(num_classes), size)
    clients = dirichlet(labels, num_clients, concentration, seed=1)
    shares = np.array([np.bincount(labels[client], minlength=num_classes) for client in clients])
    marginal = stats.beta(concentration, (num_clients - 1) * concentration)
    for share in (shares[0] / size, shares[-1] / size):
        # Counts are whole numbers: compare the chances of falling short of half a step more.
        steps = np.concatenate([[0.5], np.geomspace(1.5, size, 40).round() - 0.5]) / size
        found = (share[:, None] < steps).mean(axis=0)
        # The bound of Kolmogorov and Smirnov at a level of one in a thousand.
        assert np.abs(found - marginal.cdf(steps)).max() < 1.95 / np.sqrt(num_classes)


@pytest.mark.parametrize("concentration", [0.3, 1.0, 5.0])
def test_drawn_shares_pass_a_test_against_the_beta_distribution(concentration: float) -> None:
    shares = dirichlet_shares(concentration, (4000, 6), numpy_generator(0, "test"))
    marginal = stats.beta(concentration, 5 * concentration)
    assert stats.kstest(shares[:, 2], marginal.cdf).pvalue > 0.01
    # Two clients together are Beta distributed too, which shares drawn apart would not be.
    pair = stats.beta(2 * concentration, 4 * concentration)
    assert stats.kstest(shares[:, 0] + shares[:, 5], pair.cdf).pvalue > 0.01


@given(exponent=st.integers(-320, 300), seed=st.integers(0, 1000))
@example(exponent=-323, seed=0)
def test_shares_are_numbers_that_add_up_to_one_for_every_concentration(
    exponent: int, seed: int
) -> None:
    shares = dirichlet_shares(10.0**exponent, (3, 50), numpy_generator(seed))
    assert (shares >= 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-12)
    if exponent <= -6:
        np.testing.assert_allclose(shares.max(axis=1), 1, rtol=1e-6)


def test_counts_are_the_shares_rounded_up_or_down_and_right_on_average() -> None:
    shares = np.array([0.15, 0.0, 0.05, 0.3, 0.4, 0.1])
    sizes = np.full(20_000, 3)
    random = numpy_generator(0)
    counts = counts_by_shares(sizes, np.tile(shares, (len(sizes), 1)), random)
    assert (counts.sum(axis=1) == 3).all()
    assert (np.abs(counts - 3 * shares) < 1).all()
    # The mean of 20,000 roundings has a deviation of 0.5 / 141 at most; this is five of them.
    assert np.abs(counts.mean(axis=0) - 3 * shares).max() < 0.018


def test_a_too_small_client_is_filled_up_from_the_largest() -> None:
    # Client 0 has one example of class 1, which client 2, the largest, has too; client 1 has
    # nothing and is given two of the largest class of client 2.
    before = np.array([[0, 0, 5, 3], [1, 0, 4, 3], [0, 0, 0, 1]])
    after = np.array([[0, 2, 3, 3], [2, 0, 3, 3], [0, 0, 0, 1]])
    assert fill_up(before, 2).tolist() == after.tolist()


def test_filling_up_leaves_large_enough_clients_alone() -> None:
    before = np.array([[2, 3, 40]])
    assert fill_up(before, 2).tolist() == before.tolist()


def test_a_client_without_a_pair_gets_one_from_whoever_has_most_of_the_class() -> None:
    # Client 0 has one example each of classes 0 and 2, of which client 1 has most: five of class 2.
    before = np.array([[1, 3, 4], [0, 0, 9], [1, 5, 1]])
    after = np.array([[1, 3, 4], [0, 0, 9], [2, 4, 1]])
    assert pair_up(before, 2).tolist() == after.tolist()


@pytest.mark.parametrize(
    ("counts", "least"),
    [
        ([[1, 2], [1, 0], [0, 1]], 2),  # The other would lose its own pair.
        ([[1, 3], [1, 0]], 3),  # It would have too few left.
        ([[2, 5], [1, 0]], 2),  # There is a pair already.
    ],
)
def test_nothing_is_moved_that_would_be_missed(counts: list[list[int]], least: int) -> None:
    assert pair_up(np.array(counts), least).tolist() == counts


def test_every_client_can_be_tested_when_there_are_examples_enough() -> None:
    for seed in range(10):
        clients = dirichlet(LABELS, 100, 0.1, seed)
        assert min(np.bincount(LABELS[client]).max() for client in clients) >= 2


def test_a_partition_is_called_by_its_name_with_its_settings() -> None:
    by_name = divide("dirichlet", LABELS, num_clients=7, seed=5, concentration=0.3, min_examples=9)
    directly = dirichlet(LABELS, 7, 0.3, 5, min_examples=9)
    assert all(np.array_equal(a, b) for a, b in zip(by_name, directly, strict=True))
    assert PARTITIONS["dirichlet"].settings == {"concentration": 0.1, "min_examples": 2}
    assert PARTITIONS["pathological"].settings == {"classes_per_client": 2}
    assert len(divide("iid", LABELS)) == 20
    assert len(divide("by_domain", LABELS, LABELS % 3)) == 3


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: divide("dirichlt", LABELS), "unknown partition `dirichlt`\n.*mean `dirichlet`"),
        (lambda: divide("iid", LABELS, alpha=1), "`iid` has no setting `alpha`\n.*: none"),
        (lambda: divide("dirichlet", LABELS, alpha=1), "hint: its settings: concentration, min_"),
        (lambda: divide("by_group", LABELS), "needs groups.*\n.*iid, pathological, dirichlet"),
        (lambda: iid(LABELS, 0), "num_clients is 0"),
        (lambda: iid([0, 1], 3), "2 examples are too few for 3 clients.*\n.*use 2 clients"),
        (lambda: dirichlet([0] * 9, 5), "9 examples .* with 2 or more each\n.*use 4 clients"),
        (lambda: dirichlet([0], 1), "1 examples are too few .*\n.*lower min_examples"),
        (lambda: dirichlet([0] * 9, 2, min_examples=0), "min_examples is 0"),
        *(
            (partial(dirichlet, LABELS, 5, wrong), f"concentration is {wrong}\n.*above 0")
            for wrong in (0.0, -1.0, float("nan"), float("inf"))
        ),
        (lambda: pathological(LABELS, 20, 0), "classes_per_client is 0\n.*10 classes"),
        (lambda: pathological(LABELS, 20, 11), "classes_per_client is 11\n.*between 1 and 10"),
        (lambda: pathological(LABELS, 4, 2), "4 clients with 2 classes each cannot cover 10"),
        (lambda: pathological([0, 0, 1, 1, 1], 3, 2), "too few examples.*\n.*has 2 examples"),
        (lambda: by_group(LABELS, 25), "25 clients cannot be .* 10 groups\n.*10 or a multiple"),
        (lambda: by_group([3, 3, 3, 8], 4), "group 8 has 1 examples, too few for 2 clients"),
        (lambda: iid([], 1), r"labels of shape \(0,\)"),
        (lambda: iid([0.5, 1.0], 1), "type float64"),
        (lambda: by_group([[0], [1]]), r"groups of shape \(2, 1\)"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_a_reason(
    call: Callable[[], Clients], said: str
) -> None:
    with pytest.raises(SubflotError, match=said):
        call()
