"""Plans cost what other solvers find, have their marginals, and mistakes are named."""

import itertools
import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import KINDS, Matrix, dead_channels, near_layer, random_layer
from scipy.optimize import linear_sum_assignment

from subflot.errors import SubflotError
from subflot.transport import Plan, distances, solve

TABLE = [(512, 512), (512, 384), (512, 256), (512, 128), (1280, 1280), (1280, 960), (1280, 640)]


def simplex_cost(cost: NDArray[Any]) -> float:
    """The optimal value by another solver, with masses and costs of moderate size."""
    n, k = cost.shape
    scale = float(np.abs(cost).max()) or 1.0
    scaled = cost.astype(np.float64) / scale
    flow = ot.emd(
        np.full(n, k / math.gcd(n, k)),
        np.full(k, n / math.gcd(n, k)),
        scaled,
        numItermax=10**8,
    )
    return float((flow * scaled).sum() / math.lcm(n, k) * scale)


def assert_same_cost(found: float, expected: float, cost: NDArray[Any]) -> None:
    # A small optimum among large costs is known to the rounding of the large ones only.
    rounding = 64 * float(np.spacing(np.abs(cost).max().astype(np.float64)))
    assert found == pytest.approx(expected, rel=1e-9, abs=rounding)


def assert_balanced(plan: Plan) -> None:
    n, k = plan.shape
    matrix = plan.dense()
    assert (plan.mass > 0).all()
    assert np.abs(matrix.sum(1) - 1 / n).max() < 1e-12
    assert np.abs(matrix.sum(0) - 1 / k).max() < 1e-12
    assert len(plan.mass) == len(set(zip(plan.source.tolist(), plan.target.tolist(), strict=True)))


widths = st.integers(1, 300)


@settings(max_examples=150)
@given(st.sampled_from(KINDS), widths, widths, st.integers(0, 2**32 - 1))
def test_any_widths_cost_what_the_network_simplex_finds(
    kind: Callable[..., Matrix], n: int, k: int, seed: int
) -> None:
    cost = kind(n, k, np.random.default_rng(seed))
    plan = solve(cost)
    assert plan.is_optimal
    assert plan.has_converged
    assert_balanced(plan)
    assert plan.cost == pytest.approx(float((plan.dense() * cost).sum()), rel=1e-12, abs=1e-300)
    assert_same_cost(plan.cost, simplex_cost(cost), cost)


@settings(max_examples=150)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 60),
    st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 3), (3, 2), (1, 4), (8, 7), (16, 11)]),
    st.integers(0, 2**32 - 1),
)
def test_widths_with_a_common_factor_cost_what_the_network_simplex_finds(
    kind: Callable[..., Matrix], shared: int, ratio: tuple[int, int], seed: int
) -> None:
    n, k = (min(part, 300 // max(ratio)) * shared for part in ratio)
    cost = kind(n, k, np.random.default_rng(seed))
    plan = solve(cost)
    assert plan.is_optimal
    assert_balanced(plan)
    assert_same_cost(plan.cost, simplex_cost(cost), cost)


@pytest.mark.parametrize("kind", [random_layer, near_layer])
@pytest.mark.parametrize(("n", "k"), TABLE)
def test_widths_of_real_layers_cost_what_the_network_simplex_finds(
    n: int, k: int, kind: Callable[..., Matrix]
) -> None:
    cost = kind(n, k, np.random.default_rng(n + k)).astype(np.float32)
    plan = solve(torch.from_numpy(cost))
    assert plan.is_optimal
    assert_balanced(plan)
    assert_same_cost(plan.cost, simplex_cost(cost), cost)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(5, 5), (6, 3), (6, 2), (3, 6), (4, 6)])
def test_tiny_problems_cost_the_least_of_all_assignments(
    n: int, k: int, kind: Callable[..., Matrix]
) -> None:
    cost = kind(n, k, np.random.default_rng(7))
    units, room = k // math.gcd(n, k), n // math.gcd(n, k)
    if units > 1 and room > 1:  # Units of each source, one by one: few enough for a walk.
        least = least_by_units(cost, units, room)
    elif units == 1:
        places = np.repeat(np.arange(k), room)
        least = min(
            cost[np.arange(n), list(order)].mean() for order in itertools.permutations(places)
        )
    else:
        places = np.repeat(np.arange(n), units)
        least = min(
            cost[list(order), np.arange(k)].mean() for order in itertools.permutations(places)
        )
    assert_same_cost(solve(cost).cost, float(least), cost)


def least_by_units(cost: Matrix, units: int, room: int) -> float:
    """Try every way to spread the units of each source over the room that is left."""
    n, k = cost.shape
    best = {(room,) * k: 0.0}
    for source in range(n):
        after: dict[tuple[int, ...], float] = {}
        for left, value in best.items():
            for choice in itertools.combinations_with_replacement(range(k), units):
                now = tuple(left[j] - choice.count(j) for j in range(k))
                if min(now) >= 0:
                    total = value + float(cost[source, list(choice)].sum())
                    after[now] = min(after.get(now, math.inf), total)
        best = after
    least: float = best[(0,) * k] / (n * units)
    return least


@settings(max_examples=60)
@given(st.sampled_from(KINDS), widths, widths, st.integers(0, 2**32 - 1))
def test_the_transposed_problem_costs_the_same(
    kind: Callable[..., Matrix], n: int, k: int, seed: int
) -> None:
    cost = kind(n, k, np.random.default_rng(seed))
    there, back = solve(cost), solve(cost.T)
    assert back.shape == (k, n)
    assert_same_cost(back.cost, there.cost, cost)
    assert_same_cost(float((back.dense().T * cost).sum()), there.cost, cost)


@pytest.mark.parametrize("scale", [1e-307, 1e-20, 1e20, 1e307])
@pytest.mark.parametrize(("n", "k"), [(60, 60), (60, 45), (60, 30), (61, 37)])
def test_the_scale_of_the_costs_does_not_matter(n: int, k: int, scale: float) -> None:
    cost = random_layer(n, k, np.random.default_rng(3))
    plan = solve(cost * scale)
    assert plan.is_optimal
    assert plan.cost / scale == pytest.approx(solve(cost).cost, rel=1e-9)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_single_precision_costs_of_any_size_are_solved(scale: float) -> None:
    cost = (random_layer(60, 45, np.random.default_rng(3)) * scale).astype(np.float32)
    assert solve(cost).cost == pytest.approx(simplex_cost(cost), rel=1e-9)


@pytest.mark.parametrize("kind", [random_layer, near_layer, dead_channels])
@pytest.mark.parametrize(("n", "k"), [(128, 128), (128, 96), (128, 64), (128, 32), (128, 112)])
def test_common_widths_are_solved_without_the_network_simplex(
    n: int, k: int, kind: Callable[..., Matrix], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the auction gave up")

    # By its full name: `subflot.transport.solve` is the function.
    monkeypatch.setattr(sys.modules["subflot.transport.solve"], "_network_simplex", fail)
    assert solve(kind(n, k, np.random.default_rng(0))).is_optimal


def test_equal_costs_leave_channels_in_order() -> None:
    np.testing.assert_array_equal(solve(np.ones((3, 3))).dense(), np.eye(3) / 3)
    plan = solve(np.zeros((4, 2)))
    np.testing.assert_array_equal(plan.dense(), np.repeat(np.eye(2), 2, axis=0) / 4)
    assert (plan.cost, plan.is_optimal) == (0.0, True)
    np.testing.assert_allclose(
        solve(np.full((2, 3), 7.0)).dense(), np.array([[2, 1, 0], [0, 1, 2]]) / 6
    )


def test_one_channel_sends_to_or_takes_from_all() -> None:
    cost = np.array([[1.0, 2.0, 6.0]])
    for plan in (solve(cost), solve(cost.T)):
        assert plan.cost == pytest.approx(3.0)
        assert_balanced(plan)
    assert solve(np.array([[5.0]])).cost == 5.0


def test_a_permuted_copy_is_found_at_no_cost() -> None:
    rng = np.random.default_rng(0)
    rows, order = rng.standard_normal((70, 9)).astype(np.float32), rng.permutation(70)
    plan = solve(distances(torch.from_numpy(rows), torch.from_numpy(rows[order])))
    assert plan.cost == 0.0
    np.testing.assert_array_equal(plan.source, order)
    assert plan.share_moved() == pytest.approx(np.mean(order != np.arange(70)))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("plan", ["balanced", "partial"])
def test_costs_that_are_no_numbers_name_their_layer(value: float, plan: Any) -> None:
    cost = np.ones((4, 3))
    cost[1, 2] = value
    with pytest.raises(SubflotError, match=r"costs of 'conv1' hold NaN or infinity"):
        solve(cost, plan=plan, name="conv1")


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (2, 2, 2)])
def test_costs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SubflotError, match=r"costs of 'fc' have shape"):
        solve(np.ones(shape), name="fc")


def test_an_unknown_plan_or_entropy_is_refused() -> None:
    with pytest.raises(SubflotError, match="unknown plan 'optimal'"):
        solve(np.ones((2, 2)), plan="optimal")  # type: ignore[arg-type]
    with pytest.raises(SubflotError, match=r"entropy=-1"):
        solve(np.ones((2, 2)), entropy=-1.0)
    with pytest.raises(SubflotError, match="blurs balanced plans only"):
        solve(np.ones((2, 2)), plan="partial", entropy=0.1)


def test_solving_changes_nothing_and_repeats_itself() -> None:
    cost = random_layer(40, 30, np.random.default_rng(1))
    before = cost.copy()
    first, second = solve(cost), solve(cost)
    np.testing.assert_array_equal(cost, before)
    np.testing.assert_array_equal(first.dense(), second.dense())


def test_threads_find_the_same_plans() -> None:
    costs = [random_layer(120, 90, np.random.default_rng(seed)) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        values = [plan.cost for plan in pool.map(solve, costs)]
    assert values == [solve(cost).cost for cost in costs]


@settings(max_examples=40)
@given(st.sampled_from(KINDS), widths, widths, st.integers(0, 2**32 - 1))
def test_partial_plans_match_the_smaller_side(
    kind: Callable[..., Matrix], n: int, k: int, seed: int
) -> None:
    cost = kind(n, k, np.random.default_rng(seed))
    plan = solve(cost, plan="partial")
    smaller = min(n, k)
    assert len(set(plan.source.tolist())) == len(set(plan.target.tolist())) == smaller
    np.testing.assert_array_equal(plan.mass, np.full(smaller, 1 / smaller))
    assert_same_cost(plan.cost, float(cost[linear_sum_assignment(cost)].mean()), cost)


def test_a_little_entropy_costs_a_little_more() -> None:
    cost = random_layer(20, 15, np.random.default_rng(5))
    exact, blurred = solve(cost), solve(cost, entropy=0.05)
    assert not blurred.is_optimal
    assert blurred.has_converged
    assert exact.cost < blurred.cost < cost.mean()
    assert np.abs(blurred.dense().sum(1) - 1 / 20).max() < 1e-8
    assert solve(cost * 1e20, entropy=0.05).cost == pytest.approx(blurred.cost * 1e20)


def test_an_entropic_plan_that_has_not_converged_says_so() -> None:
    cost = random_layer(30, 30, np.random.default_rng(5))
    with pytest.warns(UserWarning, match=r"plan of 'fc' has not converged"):
        plan = solve(cost, entropy=1e-5, name="fc")
    assert not plan.has_converged


def test_importing_transport_starts_no_solver() -> None:
    code = "import sys, subflot.transport; print(sorted({'numba', 'ot', 'scipy'} & {*sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
