"""Transport plans of least cost between the channels of two layers."""

import math
import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from subflot.errors import SubflotError
from subflot.transport.distance import not_finite
from subflot.transport.plan import Plan, make_plan

Costs = NDArray[np.float64] | NDArray[np.float32]
Kind = Literal["balanced", "partial"]

MAX_BIDS, MAX_TRIAL_BIDS = 200, 20
"""Bids per channel, where the auction is likely to win and where it is a trial; a price
war that needs more is left to the network simplex."""
MAX_UNITS, MIN_SHARED, TRIAL_WIDTH, TRIAL_UNITS = 4, 16, 0.9, 2**21
"""The auction is likely to win while a source has few units, or the widths share a large factor.
Otherwise it is tried between almost equal widths, where it beats the simplex on near models, unless
the units are so many that keeping books of them takes more memory than the costs do."""
MAX_EXPONENT = {np.float32: 60, np.float64: 500}
"""Costs beyond these powers of two are scaled: sums of prices would overflow or vanish."""
SINKHORN_STEPS, SINKHORN_ERROR = 2000, 1e-9
"""Steps at most, and the summed error of the marginals at which to stop."""


class Problem(NamedTuple):
    """Costs of at least as many sources as targets, and what one look at them tells."""

    cost: Costs
    lowest: float
    highest: float
    total: Costs
    """What each target costs for all sources together; not finite if that is too much."""

    @property
    def exponent(self) -> int:
        """The power of two just above all costs."""
        return math.frexp(max(abs(self.lowest), abs(self.highest)))[1]

    def scaled(self) -> "Problem":
        """Return the problem with all costs divided by that power."""
        return _look_at(_scaled(self.cost, self.exponent))


class Flow(NamedTuple):
    """Whole units that go from sources to targets, by target and then by source."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    units: NDArray[np.int64]
    is_optimal: bool = True


def solve(
    cost: Tensor | NDArray[Any],
    *,
    plan: Kind = "balanced",
    entropy: float = 0.0,
    name: str = "",
) -> Plan:
    """Return a plan of least cost.

    Args:
        cost: what it costs to carry each source channel to each target channel, shape
            (source, target).
        plan: `balanced` gives every source the mass 1 / source and every target 1 / target;
            `partial` matches each channel of the smaller side to one of its own on the larger
            side and leaves the others without mass.
        entropy: with a positive value the balanced plan is blurred (Sinkhorn); the weight of the
            entropy as a share of the largest cost. Zero is exact.
        name: the layer, for error messages.
    """
    matrix = _read(cost, name)
    if entropy < 0 or (entropy and plan == "partial"):
        raise SubflotError(
            f"entropy={entropy} with plan={plan!r}",
            hint="entropy is zero or positive and blurs balanced plans only",
        )
    if plan not in ("balanced", "partial"):
        raise SubflotError(f"unknown plan {plan!r}", hint="balanced or partial")
    is_turned = matrix.shape[0] < matrix.shape[1]
    problem = _look_at(matrix.T if is_turned else matrix, name)
    if entropy:
        return _entropic(matrix, problem.exponent, entropy, name)
    if plan == "partial":
        flow, num_units = _one_to_one(problem.cost), min(matrix.shape)
    else:
        flow, num_units = _balanced(problem), math.lcm(*matrix.shape)
    return _plan(problem.cost, flow, num_units, is_turned=is_turned)


def _read(cost: Tensor | NDArray[Any], name: str) -> Costs:
    """Return costs as a float32 or float64 array."""
    if isinstance(cost, Tensor):
        cost = cost.detach().cpu()
        is_wide = cost.dtype in (torch.float32, torch.float64)
        cost = (cost if is_wide else cost.float()).numpy()
    matrix = np.asarray(cost, None if cost.dtype == np.float32 else np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise SubflotError(
            f"the costs{_of(name)} have shape {matrix.shape}",
            hint="one row per source channel and one column per target channel, at least one each",
        )
    return matrix


def _look_at(cost: Costs, name: str = "") -> Problem:
    """Lay the costs out row by row, and see that they are finite."""
    from subflot.transport.survey import survey  # Starts the compiler.

    cost = cost if cost.flags.c_contiguous else cost.copy()
    problem = Problem(cost, *survey(cost))
    if not (np.isfinite(problem.total).all() or np.isfinite(cost).all()):
        raise not_finite(f"the costs{_of(name)} hold")
    return problem


def _of(name: str) -> str:
    return f" of {name!r}" if name else ""


def _plan(cost: Costs, flow: Flow, num_units: int, *, is_turned: bool) -> Plan:
    from subflot.transport.survey import spent

    value = spent(cost, flow.source, flow.target, flow.units / num_units)
    shape = cost.T.shape if is_turned else cost.shape
    source, target, units, is_optimal = _transposed(flow) if is_turned else flow
    return Plan(source, target, units / num_units, shape, value, is_optimal, is_optimal)


def _transposed(flow: Flow) -> Flow:
    order = np.argsort(flow.source, kind="stable")
    return Flow(flow.target[order], flow.source[order], flow.units[order], flow.is_optimal)


def _balanced(problem: Problem) -> Flow:
    """Solve by the fastest way that is exact."""
    num_sources, num_targets = problem.cost.shape
    shared = math.gcd(num_sources, num_targets)
    units, room = num_targets // shared, num_sources // shared
    if problem.lowest == problem.highest:
        return _filled(num_sources * units, units, room)
    if units == room == 1:  # Models that are near each other are often done here.
        nearest = problem.cost.argmin(axis=1)
        if (np.bincount(nearest, minlength=num_targets) == 1).all():
            return _one_each(np.arange(num_sources), nearest)
    flow = None
    if units <= MAX_UNITS or shared >= MIN_SHARED:
        flow = _auction(problem, units, room, MAX_BIDS)
    elif num_targets > TRIAL_WIDTH * num_sources and num_sources * units <= TRIAL_UNITS:
        flow = _auction(problem, units, room, MAX_TRIAL_BIDS)
    return flow or _network_simplex(problem, units, room)


def _filled(num_units: int, units: int, room: int) -> Flow:
    """Fill one target after the other, as good as any plan when all costs are equal."""
    starts = np.union1d(np.arange(0, num_units, units), np.arange(0, num_units, room))
    return Flow(starts // units, starts // room, np.diff(starts, append=num_units))


def _auction(problem: Problem, units: int, room: int, bids_per_channel: int) -> Flow | None:
    """Bid in the precision of the costs, then in double; None if neither pays."""
    from subflot.transport.auction import auction

    if abs(problem.exponent) > MAX_EXPONENT[problem.cost.dtype.type]:
        problem = problem.scaled()
    bounds = math.ldexp(1.0, problem.exponent), problem.highest - problem.lowest
    max_bids = bids_per_channel * sum(problem.cost.shape)
    flow, has_sufficed = auction(problem.cost, problem.total, units, room, *bounds, max_bids)
    if has_sufficed and not len(flow[0]) and problem.cost.dtype == np.float32:
        wide = _look_at(problem.cost.astype(np.float64))
        flow, _ = auction(wide.cost, wide.total, units, room, *bounds, max_bids)
    return Flow(*flow) if len(flow[0]) else None


def _network_simplex(problem: Problem, units: int, room: int) -> Flow:
    import ot  # Takes long to import.

    num_sources, num_targets = problem.cost.shape
    # Whole masses: with 1 / source the plan would hold specks of rounding. And costs near one, for
    # the simplex compares them with fixed tolerances.
    flow, log = ot.emd(
        np.full(num_sources, float(units)),
        np.full(num_targets, float(room)),
        _scaled(problem.cost, problem.exponent),
        numItermax=10**8,
        log=True,
    )
    flow = np.rint(flow).astype(np.int64)
    target, source = flow.T.nonzero()
    return Flow(source, target, flow[source, target], is_optimal=log["warning"] is None)


def _scaled(cost: Costs, exponent: int) -> NDArray[np.float64]:
    """Return the costs divided by a power of two."""
    return np.ldexp(cost.astype(np.float64), -exponent)


def _one_to_one(cost: Costs) -> Flow:
    from scipy.optimize import linear_sum_assignment

    return _one_each(*linear_sum_assignment(cost))


def _one_each(source: NDArray[np.int64], target: NDArray[np.int64]) -> Flow:
    """Return the flow of one unit from each of these sources to its target."""
    order = np.argsort(target)
    return Flow(source[order], target[order], np.ones(len(order), np.int64))


def _entropic(cost: Costs, exponent: int, entropy: float, name: str) -> Plan:
    import ot

    num_sources, num_targets = cost.shape
    scaled = _scaled(cost, exponent)
    masses = np.full(num_sources, 1 / num_sources), np.full(num_targets, 1 / num_targets)
    largest = float(np.abs(scaled).max()) or 1.0
    matrix = ot.sinkhorn(
        *masses,
        scaled,
        entropy * largest,
        method="sinkhorn_log",
        numItermax=SINKHORN_STEPS,
        stopThr=SINKHORN_ERROR,
        warn=False,
    )
    error = max(
        float(np.abs(matrix.sum(axis) - mass).sum())
        for axis, mass in zip((1, 0), masses, strict=True)
    )
    has_converged = error <= 10 * SINKHORN_ERROR
    if not has_converged:
        warnings.warn(
            f"the entropic plan{_of(name)} has not converged: its marginals "
            f"are off by {error:.1e}; a larger entropy than {entropy} converges sooner",
            stacklevel=3,
        )
    source, target = matrix.nonzero()
    mass = matrix[source, target]
    return make_plan(
        source,
        target,
        mass,
        shape=cost.shape,
        cost=float(cost[source, target].astype(np.float64) @ mass),
        is_optimal=False,
        has_converged=has_converged,
    )
