"""Carrying tensors along plans: the compiled way, the way on any device, and the plain product."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from problems import near_layer, random_layer
from tolerances import DOUBLE, EXACT, FLOAT32

from subflot.transport import Plan, average, identity, solve
from subflot.transport.gather import by_source
from subflot.transport.plan import make_plan


def costs(num_sources: int, num_targets: int, rng: np.random.Generator) -> NDArray[np.float64]:
    return rng.random((num_sources, num_targets))


def merged(rng: np.random.Generator) -> Plan:
    return solve(costs(12, 4, rng))


def split(rng: np.random.Generator) -> Plan:
    return solve(costs(12, 9, rng))


def wider(rng: np.random.Generator) -> Plan:
    return solve(costs(9, 12, rng))


def partly_empty(rng: np.random.Generator) -> Plan:
    return solve(costs(5, 12, rng), plan="partial")


def averaged(rng: np.random.Generator) -> Plan:
    return average([solve(costs(12, 8, rng)) for _ in range(3)])


PLANS = [merged, split, wider, partly_empty, averaged]


@settings(max_examples=60)
@given(
    st.sampled_from(PLANS),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(st.integers(0, 5), max_size=2),
    st.lists(st.integers(0, 5), max_size=2),
    st.integers(0, 2**32 - 1),
)
def test_the_compiled_way_agrees_with_the_one_for_any_device(
    make: Callable[[np.random.Generator], Plan],
    dtype: torch.dtype,
    before: list[int],
    after: list[int],
    seed: int,
) -> None:
    plan = make(np.random.default_rng(seed))
    shape = (*before, plan.shape[0], *after)
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    compiled = plan.carry(tensor, len(before))
    with_gradient = plan.carry(tensor.clone().requires_grad_(), len(before))
    assert with_gradient.requires_grad
    tolerance = FLOAT32 if dtype == torch.float32 else DOUBLE
    torch.testing.assert_close(compiled, with_gradient.detach(), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", PLANS)
def test_kernels_of_nine_numbers_are_carried_as_longer_rows_are_to_the_bit(
    make: Callable[[np.random.Generator], Plan], dtype: torch.dtype
) -> None:
    plan = make(np.random.default_rng(2))
    kernels = torch.randn(5, plan.shape[0], 3, 3, dtype=dtype)
    longer = torch.cat([kernels.flatten(2), torch.randn(5, plan.shape[0], 4, dtype=dtype)], 2)
    expected = plan.carry(longer, 1)[..., :9].unflatten(2, (3, 3))
    torch.testing.assert_close(plan.carry(kernels, 1), expected, **EXACT)


@pytest.mark.gpu
@pytest.mark.parametrize("make", PLANS)
def test_a_gpu_carries_as_the_cpu_does(make: Callable[[np.random.Generator], Plan]) -> None:
    plan = make(np.random.default_rng(0))
    tensor = torch.randn(3, plan.shape[0], 9)
    torch.testing.assert_close(plan.carry(tensor.cuda(), 1).cpu(), plan.carry(tensor, 1), **FLOAT32)


@pytest.mark.parametrize("make", PLANS)
def test_gradients_flow_back_along_the_plan(make: Callable[[np.random.Generator], Plan]) -> None:
    plan = make(np.random.default_rng(1))
    tensor = torch.zeros(plan.shape[0], 2, dtype=torch.float64, requires_grad=True)
    plan.carry(tensor).sum().backward()
    sent = torch.from_numpy(np.bincount(plan.source, plan.share, plan.shape[0]))
    torch.testing.assert_close(tensor.grad, sent[:, None].expand(-1, 2), **DOUBLE)


def test_a_tensor_that_lies_across_memory_is_carried_and_left_alone() -> None:
    plan = merged(np.random.default_rng(2))
    tensor = torch.randn(12, 3, 5, generator=torch.Generator().manual_seed(0)).permute(2, 0, 1)
    before = tensor.clone()
    carried = plan.carry(tensor, 1)
    torch.testing.assert_close(carried, plan.carry(tensor.contiguous(), 1), **EXACT)
    torch.testing.assert_close(tensor, before, **EXACT)
    assert carried.is_contiguous()


@pytest.mark.parametrize("make", PLANS)
def test_the_order_by_source_holds_the_same_entries(
    make: Callable[[np.random.Generator], Plan],
) -> None:
    plan = make(np.random.default_rng(3))
    expected = np.zeros(plan.shape)
    expected[plan.source, plan.target] = plan.share

    sources = by_source(plan.source, plan.target, plan.share, plan.shape[0])
    dense = np.zeros(plan.shape)
    dense[np.repeat(np.arange(plan.shape[0]), np.diff(sources.start)), sources.target] = (
        sources.share
    )
    np.testing.assert_array_equal(dense, expected)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(1, 8)), min_size=1))
def test_entries_come_by_target_and_source_and_those_of_one_pair_are_added(
    entries: list[tuple[int, int, int]],
) -> None:
    expected: dict[tuple[int, int], float] = {}
    for here, there, amount in entries:
        expected[there, here] = expected.get((there, here), 0) + amount
    source, target, mass = (np.array(column) for column in zip(*entries, strict=True))
    plan = make_plan(
        source, target, mass.astype(np.float64), shape=(5, 4), cost=0.0, is_optimal=False
    )
    found = list(zip(plan.target.tolist(), plan.source.tolist(), strict=True))
    assert found == sorted(expected)
    assert plan.mass.tolist() == [expected[pair] for pair in found]


KINDS_OF_PLANS = {
    "permutation": lambda rng: solve(random_layer(12, 12, rng)),
    "table": lambda rng: solve(random_layer(12, 4, rng)),
    "split": lambda rng: solve(random_layer(12, 9, rng)),
    "wider": lambda rng: solve(random_layer(9, 12, rng)),
    "partial": lambda rng: solve(random_layer(12, 5, rng), plan="partial"),
    "entropic": lambda rng: solve(random_layer(6, 5, rng), entropy=0.1),
    "average": lambda rng: average([solve(random_layer(12, 8, rng)) for _ in range(3)]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", KINDS_OF_PLANS.values(), ids=KINDS_OF_PLANS.keys())
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
