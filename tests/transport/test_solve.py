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
from scipy.optimize import linear_sum_assignment
from tolerances import DOUBLE, EXACT, FLOAT32

from subflot.errors import SubflotError
from subflot.transport import Plan, average, distances, identity, solve

Matrix = NDArray[np.float64]

TABLE = [(512, 512), (512, 384), (512, 256), (512, 128), (1280, 1280), (1280, 960), (1280, 640)]


def euclid(source: Matrix, target: Matrix) -> Matrix:
    return distances(torch.from_numpy(source), torch.from_numpy(target)).numpy()


def random_layer(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return euclid(rng.standard_normal((n, 24)), rng.standard_normal((k, 24)))


def near_layer(n: int, k: int, rng: np.random.Generator) -> Matrix:
    wide = rng.standard_normal((max(n, k), 24))
    other = rng.permutation(wide) + 0.05 * rng.standard_normal(wide.shape)
    return euclid(wide[:n], other[:k])


def duplicate_rows(n: int, k: int, rng: np.random.Generator) -> Matrix:
    few = rng.standard_normal((5, 24))
    return euclid(few[rng.integers(5, size=n)], few[rng.integers(5, size=k)])


def integer_grid(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return rng.integers(4, size=(n, k)).astype(np.float64)


def on_a_line(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return euclid(np.arange(n, dtype=np.float64)[:, None], rng.uniform(0, n, (k, 1)))


def clusters(n: int, k: int, rng: np.random.Generator) -> Matrix:
    centres = 1000 * rng.standard_normal((6, 3))
    return euclid(
        centres[rng.integers(6, size=n)] + rng.standard_normal((n, 3)),
        centres[rng.integers(6, size=k)] + rng.standard_normal((k, 3)),
    )


def dead_channels(n: int, k: int, rng: np.random.Generator) -> Matrix:
    source, target = rng.standard_normal((n, 24)), rng.standard_normal((k, 24))
    source[rng.random(n) < 0.5] = 0
    target[rng.random(k) < 0.5] = 0
    return euclid(source, target)


def large_offset(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return 1e6 + rng.random((n, k))


def negative(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return -(rng.random((n, k)) ** 4)


def products(n: int, k: int, rng: np.random.Generator) -> Matrix:
    # Every row prefers the same columns in the same order: the worst for an auction.
    return np.outer(np.arange(1, n + 1), np.arange(1, k + 1)) / (n * k)


KINDS = [
    random_layer,
    near_layer,
    duplicate_rows,
    integer_grid,
    on_a_line,
    clusters,
    dead_channels,
    large_offset,
    negative,
    products,
]


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


PLANS = {
    "permutation": lambda rng: solve(random_layer(12, 12, rng)),
    "table": lambda rng: solve(random_layer(12, 4, rng)),
    "split": lambda rng: solve(random_layer(12, 9, rng)),
    "wider": lambda rng: solve(random_layer(9, 12, rng)),
    "partial": lambda rng: solve(random_layer(12, 5, rng), plan="partial"),
    "entropic": lambda rng: solve(random_layer(6, 5, rng), entropy=0.1),
    "average": lambda rng: average([solve(random_layer(12, 8, rng)) for _ in range(3)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", PLANS.values(), ids=PLANS.keys())
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_carrying_is_the_product_with_the_normalised_plan(
    make: Callable[[np.random.Generator], Plan], dtype: torch.dtype, axis: int
) -> None:
    plan = make(np.random.default_rng(2))
    share = torch.from_numpy(plan.dense() / plan.dense().sum(0))
    shape = [3, 4, 2, 5]
    shape[axis] = plan.shape[0]
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = torch.movedim(torch.tensordot(tensor.double(), share, ([axis], [0])), -1, axis)
    carried = plan.carry(tensor, axis)
    assert carried.dtype == dtype
    assert carried.is_contiguous()
    if dtype in (torch.float32, torch.float64):
        tolerance = FLOAT32 if dtype == torch.float32 else DOUBLE
        torch.testing.assert_close(carried.double(), expected, **tolerance)
    else:  # One rounding of a number with 8 or 11 digits.
        torch.testing.assert_close(carried.double(), expected, rtol=8e-3, atol=1e-3)


def test_a_vector_is_carried_too() -> None:
    plan = solve(np.array([[0.0, 9.0], [1.0, 9.0], [9.0, 0.0], [9.0, 1.0]]))
    carried = plan.carry(torch.tensor([1.0, 3.0, 10.0, 30.0]))
    torch.testing.assert_close(carried, torch.tensor([2.0, 20.0]), **EXACT)


def test_targets_without_mass_become_zero() -> None:
    plan = solve(np.array([[5.0, 1.0, 7.0]]), plan="partial")
    carried = plan.carry(torch.tensor([[4.0, 2.0]]))
    torch.testing.assert_close(carried, torch.tensor([[0.0, 0], [4, 2], [0, 0]]), **EXACT)


def test_carrying_refuses_an_axis_of_another_width() -> None:
    with pytest.raises(ValueError, match=r"has not the 3 source channels"):
        identity(3).carry(torch.zeros(3, 4), axis=1)


def test_an_average_has_the_mean_of_the_normalised_matrices() -> None:
    rng = np.random.default_rng(4)
    plans = [solve(random_layer(8, 6, rng)) for _ in range(3)] + [solve(near_layer(8, 6, rng))]
    mean = sum(plan.dense() * 6 for plan in plans) / 4
    found = average(plans)
    np.testing.assert_allclose(found.dense() * 6, mean, atol=1e-15)
    assert found.cost == pytest.approx(sum(plan.cost for plan in plans) / 4)
    assert not found.is_optimal
    assert average(plans[:1]) is plans[0]
    with pytest.raises(ValueError, match="unlike shapes"):
        average([identity(2), identity(3)])


def test_distances_equal_the_subtraction_of_rows() -> None:
    rng = torch.Generator().manual_seed(0)
    source, target = torch.randn(30, 4, 9, generator=rng), torch.randn(20, 4, 9, generator=rng)
    target[:5] = source[7:12]
    target[5] = source[3] + 1e-4 * torch.randn(4, 9, generator=rng)
    exact = (source.double()[:, None] - target.double()).flatten(2).norm(dim=2)
    found = distances(source, target)
    assert found.dtype == torch.float32
    assert (found[range(7, 12), range(5)] == 0).all()
    torch.testing.assert_close(found, exact.float(), rtol=1e-4, atol=0.0)  # Loses two digits.


def test_almost_equal_rows_beside_much_larger_ones_keep_their_digits() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 40, generator=generator) * torch.logspace(-3, 3, 24)[:, None]
    near = rows + 1e-4 * rows * torch.randn(24, 40, generator=generator)
    for source, target in ((rows, near), (near, rows)):
        exact = torch.cdist(source.double(), target.double()).float()
        torch.testing.assert_close(distances(source, target), exact, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e19, 1e30])
def test_distances_of_huge_and_tiny_rows_neither_overflow_nor_vanish(scale: float) -> None:
    rows = torch.randn(12, 7, generator=torch.Generator().manual_seed(0))
    found = distances(rows[:8] * scale, rows[4:] * scale)
    expected = torch.cdist(rows[:8].double(), rows[4:].double()) * scale
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=0.0)


def test_distances_of_equal_rows_are_zero() -> None:
    rows = torch.full((50, 33), 0.1)
    assert (distances(rows, rows[:40]) == 0).all()
    assert (distances(torch.zeros(5, 3), torch.zeros(4, 3)) == 0).all()
    assert distances(torch.zeros(5, 0), torch.zeros(4, 0)).shape == (5, 4)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_distances_between_no_numbers_name_their_layer(value: float) -> None:
    rows = torch.ones(3, 4)
    rows[1, 1] = value
    for source, target in ((rows, torch.ones(2, 4)), (torch.ones(2, 4), rows)):
        with pytest.raises(SubflotError, match=r"weights of 'conv2' hold NaN or infinity"):
            distances(source, target, name="conv2")


def test_importing_transport_starts_no_solver() -> None:
    code = "import sys, subflot.transport; print(sorted({'numba', 'ot', 'scipy'} & {*sys.modules}))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
