"""What the auction relies on: what sources remember, in which order entries come, precision."""

import sys
from typing import Any

import numpy as np
import ot
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subflot.transport import solve
from subflot.transport.auction import find_below, recall, recall_below
from subflot.transport.ledger import LANES, Lanes, Memory
from subflot.transport.survey import survey


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_sources", range(1, 10))
def test_one_look_tells_the_extent_and_what_each_target_costs(num_sources: int, dtype: Any) -> None:
    rng = np.random.default_rng(num_sources)
    for place in np.ndindex(num_sources, 3):  # The extremes may stand anywhere.
        cost = rng.integers(1, 100, (num_sources, 3)).astype(dtype)
        for extreme in (-5, 1000):
            cost[place] = extreme
            lowest, highest, total = survey(cost)
            assert (lowest, highest) == (cost.min(), cost.max())
            np.testing.assert_array_equal(total, cost.sum(0))
            assert total.dtype == dtype
        for value in (np.nan, np.inf, -np.inf):
            cost[place] = value
            assert not np.isfinite(survey(cost)[2][place[1]])


@settings(max_examples=100)
@given(
    st.integers(1, 70),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([3, 10**6]),
    st.integers(0, 2**32 - 1),
)
def test_no_target_that_is_not_remembered_comes_below_the_bound(
    num_targets: int, dtype: Any, num_values: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(num_values, size=num_targets).astype(dtype)  # Few values: many ties.
    price = rng.integers(num_values, size=num_targets).astype(dtype)
    memory = Memory(
        np.full((2, LANES), -1, np.int32),
        np.full((2, LANES), np.nan, dtype),
        np.zeros(2, np.int32),
        np.full(2, -np.inf, dtype),
    )
    lanes = Lanes(np.empty(LANES, dtype), np.empty(LANES, dtype), np.empty(LANES, np.int32))
    recall(memory, 1, row, price, lanes)
    known = memory.target[1, : memory.num_known[1]]
    value = row + price
    assert len(set(known.tolist())) == len(known) > 0
    np.testing.assert_array_equal(memory.cost[1, : len(known)], row[known])
    assert value[known].min() == value.min()
    others = np.delete(value, known)
    if len(others):
        assert memory.bound[1] == others.min()
        assert (value[known] <= memory.bound[1]).all()
    else:
        assert memory.bound[1] == np.inf
    assert (memory.num_known[0], memory.bound[0]) == (0, -np.inf)


@settings(max_examples=100)
@given(
    st.integers(1, 200),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([3, 10**6]),
    st.integers(0, 2**32 - 1),
)
def test_below_a_limit_the_row_and_the_memory_hold_the_same_targets(
    num_targets: int, dtype: Any, num_values: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.integers(num_values, size=num_targets).astype(dtype)
    price = rng.integers(num_values, size=num_targets).astype(dtype)
    memory = Memory(
        np.empty((1, LANES), np.int32),
        np.empty((1, LANES), dtype),
        np.zeros(1, np.int32),
        np.empty(1, dtype),
    )
    lanes = Lanes(np.empty(LANES, dtype), np.empty(LANES, dtype), np.empty(LANES, np.int32))
    recall(memory, 0, row, price, lanes)
    price = price.astype(np.float64)
    rises = rng.random(num_targets) < 0.2
    price[rises] += rng.integers(num_values, size=rises.sum())
    found = np.empty(num_targets, np.int32)
    middle, bound = float(np.median(row + price)), float(memory.bound[0])
    for limit in (middle, min(bound, middle), -1.0):
        expected = np.flatnonzero(row + price < limit).tolist()
        assert found[: find_below(row, price, limit, found)].tolist() == expected
        if limit <= bound:
            num_found = recall_below(memory, 0, row, price, limit, found)
            assert sorted(found[:num_found].tolist()) == expected


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["balanced", "partial"]),
    st.integers(0, 2**32 - 1),
)
def test_entries_come_by_target_and_then_by_source_each_pair_once(
    num_sources: int, num_targets: int, kind: Any, seed: int
) -> None:
    cost = np.random.default_rng(seed).random((num_sources, num_targets))
    plan = solve(cost, plan=kind)
    pairs = list(zip(plan.target.tolist(), plan.source.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert plan.source.dtype == plan.target.dtype == np.int64


@pytest.mark.parametrize(("n", "k"), [(60, 60), (60, 45), (60, 20), (45, 60)])
def test_costs_too_close_for_single_precision_are_auctioned_in_double(
    n: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the auction gave up")

    monkeypatch.setattr(sys.modules["subflot.transport.solve"], "_network_simplex", fail)
    cost = (1e4 + np.random.default_rng(0).random((n, k))).astype(np.float32)
    plan = solve(cost)
    assert plan.is_optimal
    least = ot.emd2(np.full(n, 1 / n), np.full(k, 1 / k), cost.astype(np.float64) - 1e4)
    assert plan.cost - 1e4 == pytest.approx(least, rel=1e-7)  # Four digits are lost to the offset.
