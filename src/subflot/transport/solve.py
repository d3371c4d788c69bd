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


class Extent(NamedTuple):
    """Between which values the costs lie."""

    lowest: float
    highest: float

    @property
    def exponent(self) -> int:
        """The power of two just above all of them."""
        return math.frexp(max(abs(self.lowest), abs(self.highest)))[1]

    def scaled(self) -> "Extent":
        """The extent of the costs once they are divided by that power."""
        return Extent(*(math.ldexp(value, -self.exponent) for value in self))


class Flow(NamedTuple):
    """Whole units that go from sources to targets, by target and then by source."""

    source: NDArray[Any]
    target: NDArray[Any]
    units: NDArray[Any]
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
    matrix, extent = _read(cost, name)
    if entropy < 0 or (entropy and plan == "partial"):
        raise SubflotError(
            f"entropy={entropy} with plan={plan!r}",
            hint="entropy is zero or positive and blurs balanced plans only",
        )
    if plan == "partial":
        return _partial(matrix)
    if plan != "balanced":
        raise SubflotError(f"unknown plan {plan!r}", hint="balanced or partial")
    if entropy:
        return _entropic(matrix, extent, entropy, name)
    if matrix.shape[0] >= matrix.shape[1]:
        flow = _balanced(matrix, extent)
    else:
        flow = _transposed(_balanced(matrix.T, extent))
    return _plan(matrix, flow, math.lcm(*matrix.shape))


def _read(cost: Tensor | NDArray[Any], name: str) -> tuple[Costs, Extent]:
    """Return finite costs as a float32 or float64 array, and their extent."""
    where = f" of {name!r}" if name else ""
    if isinstance(cost, Tensor):
        cost = cost.detach().cpu()
        is_wide = cost.dtype in (torch.float32, torch.float64)
        cost = (cost if is_wide else cost.float()).numpy()
    matrix = np.asarray(cost, None if cost.dtype == np.float32 else np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise SubflotError(
            f"the costs{where} have shape {matrix.shape}",
            hint="one row per source channel and one column per target channel, at least one each",
        )
    extent = Extent(float(matrix.min()), float(matrix.max()))
    if not (math.isfinite(extent.lowest) and math.isfinite(extent.highest)):  # NaN passes through.
        raise not_finite(f"the costs{where} hold")
    return matrix, extent


def _plan(cost: Costs, flow: Flow, num_units: int) -> Plan:
    source, target = flow.source.astype(np.int64), flow.target.astype(np.int64)
    mass = flow.units / num_units
    value = float(cost[source, target].astype(np.float64) @ mass)
    return Plan(source, target, mass, cost.shape, value, flow.is_optimal, flow.is_optimal)


def _transposed(flow: Flow) -> Flow:
    order = np.argsort(flow.source, kind="stable")
    return Flow(flow.target[order], flow.source[order], flow.units[order], flow.is_optimal)


def _balanced(cost: Costs, extent: Extent) -> Flow:
    """Solve for at least as many sources as targets, by the fastest way that is exact."""
    cost = cost if cost.flags.c_contiguous else cost.copy()
    num_sources, num_targets = cost.shape
    shared = math.gcd(num_sources, num_targets)
    units, room = num_targets // shared, num_sources // shared
    if extent.lowest == extent.highest:
        return _in_order(num_sources * units, units, room)
    if units == room == 1:  # Models that are near each other are often done here.
        nearest = cost.argmin(axis=1)
        if (np.bincount(nearest, minlength=num_targets) == 1).all():
            return _transposed(Flow(nearest, np.arange(num_sources), np.ones(num_sources)))
    flow = None
    if units <= MAX_UNITS or shared >= MIN_SHARED:
        flow = _auction(cost, extent, units, room, MAX_BIDS)
    elif num_targets > TRIAL_WIDTH * num_sources and num_sources * units <= TRIAL_UNITS:
        flow = _auction(cost, extent, units, room, MAX_TRIAL_BIDS)
    return flow or _network_simplex(cost, extent, units, room)


def _in_order(num_units: int, units: int, room: int) -> Flow:
    """Fill one target after the other, as good as any plan when all costs are equal."""
    starts = np.union1d(np.arange(0, num_units, units), np.arange(0, num_units, room))
    return Flow(starts // units, starts // room, np.diff(starts, append=num_units))


def _auction(
    cost: Costs, extent: Extent, units: int, room: int, bids_per_channel: int
) -> Flow | None:
    """Bid in the precision of the costs, then in double; None if neither pays."""
    from subflot.transport.auction import auction  # Starts the compiler.

    if abs(extent.exponent) > MAX_EXPONENT[cost.dtype.type]:
        cost, extent = _scaled(cost, extent), extent.scaled()
    bounds = math.ldexp(1.0, extent.exponent), extent.highest - extent.lowest
    max_bids = bids_per_channel * sum(cost.shape)
    flow, has_sufficed = auction(cost, units, room, *bounds, max_bids)
    if has_sufficed and not len(flow[0]) and cost.dtype == np.float32:
        flow, _ = auction(cost.astype(np.float64), units, room, *bounds, max_bids)
    return Flow(*flow) if len(flow[0]) else None


def _network_simplex(cost: Costs, extent: Extent, units: int, room: int) -> Flow:
    import ot  # Takes long to import.

    num_sources, num_targets = cost.shape
    # Whole masses: with 1 / source the plan would hold specks of rounding. And costs near one, for
    # the simplex compares them with fixed tolerances.
    flow, log = ot.emd(
        np.full(num_sources, float(units)),
        np.full(num_targets, float(room)),
        _scaled(cost, extent),
        numItermax=10**8,
        log=True,
    )
    flow = np.rint(flow)
    target, source = flow.T.nonzero()
    return Flow(source, target, flow[source, target], is_optimal=log["warning"] is None)


def _scaled(cost: Costs, extent: Extent) -> NDArray[np.float64]:
    """Return the costs divided by a power of two, the largest between one half and one."""
    return np.ldexp(cost.astype(np.float64), -extent.exponent)


def _partial(cost: Costs) -> Plan:
    from scipy.optimize import linear_sum_assignment

    source, target = linear_sum_assignment(cost)
    flow = _transposed(Flow(target, source, np.ones(len(source))))
    return _plan(cost, flow, len(source))


def _entropic(cost: Costs, extent: Extent, entropy: float, name: str) -> Plan:
    import ot

    num_sources, num_targets = cost.shape
    scaled = _scaled(cost, extent)
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
            f"the entropic plan{f' of {name!r}' if name else ''} has not converged: its marginals "
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
