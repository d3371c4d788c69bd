"""Means of channels along a plan, in one pass over the memory of the processor.

This file imports the compiler; import it only where a plan is carried out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from subflot.transport.compiled import compiled

Doubles = NDArray[np.float64]
Floats = Doubles | NDArray[np.float32]
Places = NDArray[np.uint32]
"""Without a sign, for numba looks at every signed index whether it counts from the end."""
Longs = NDArray[np.int64]

NINE = 9
"""Numbers of a 3 x 3 kernel: the rows that are met most, and too short for a fast loop."""


class Targets(NamedTuple):
    """The entries of a plan by target and then by source, as the plan has them."""

    start: Places
    """Where the entries of each target begin; the last number is their end."""
    source: Places
    share: Floats


class Sources(NamedTuple):
    """The entries of a plan by source and then by target."""

    start: Places
    """Where the entries of each source begin; the last number is their end."""
    target: Places
    share: Floats


@compiled
def in_order(source: Longs, target: Longs, mass: Doubles, num: int) -> tuple[Longs, Longs, Doubles]:
    """Order entries by their target, of which there are `num`, and source; add up equal ones."""
    place = np.zeros(num + 1, np.int64)
    for here in target:
        place[here + 1] += 1
    place = np.cumsum(place)
    sources, masses = np.empty(len(source), np.int64), np.empty(len(source))
    for entry in range(len(source)):
        here = place[target[entry]]
        sources[here], masses[here] = source[entry], mass[entry]
        place[target[entry]] = here + 1
    targets, num_done, start = np.empty(len(source), np.int64), 0, 0
    for here in range(num):  # Of one target there are few, and most lie in order.
        first = num_done
        for entry in range(start, place[here]):
            origin, amount, slot = sources[entry], masses[entry], num_done
            while slot > first and sources[slot - 1] > origin:
                slot -= 1
            if slot > first and sources[slot - 1] == origin:
                masses[slot - 1] += amount
                continue
            for later in range(num_done, slot, -1):
                sources[later], masses[later] = sources[later - 1], masses[later - 1]
            sources[slot], masses[slot], targets[num_done] = origin, amount, here
            num_done += 1
        start = place[here]
    return sources[:num_done].copy(), targets[:num_done].copy(), masses[:num_done].copy()


@compiled
def by_target(source: Longs, target: Longs, share: Doubles, num: int) -> Targets:
    """Tell where the entries of each target begin, of which there are `num`."""
    start = np.zeros(num + 1, np.uint32)
    for here in target:
        start[here + 1] += 1
    return Targets(np.cumsum(start).astype(np.uint32), source.astype(np.uint32), share)


@compiled
def by_source(source: Longs, target: Longs, share: Doubles, num: int) -> Sources:
    """Order entries, which come by target, by their source, of which there are `num`."""
    start = np.zeros(num + 1, np.uint32)
    for entry in range(len(source)):
        start[source[entry] + 1] += 1
    start = np.cumsum(start).astype(np.uint32)
    place = start.copy()
    new_target, new_share = np.empty(len(source), np.uint32), np.empty(len(source), np.float64)
    for entry in range(len(source)):
        here = place[source[entry]]
        new_target[here], new_share[here] = target[entry], share[entry]
        place[source[entry]] = here + 1
    return Sources(start, new_target, new_share)


def _add_nine(_: Any, total: Any, row: Any, weight: Any) -> Any:
    """Generate `add_nine` for arrays of one type: one vector of numbers instead of a loop."""

    def generate(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        *arrays, factor = arguments
        numbers = ir.VectorType(context.get_value_type(total.dtype), NINE)
        unset = ir.Constant(numbers, ir.Undefined)
        place = ir.IntType(32)
        spread = builder.shuffle_vector(
            builder.insert_element(unset, factor, ir.Constant(place, 0)),
            unset,
            ir.Constant(ir.VectorType(place, NINE), [0] * NINE),
        )
        view = cast(Any, make_array)
        to, by = (
            builder.bitcast(view(kind)(context, builder, array).data, numbers.as_pointer())
            for kind, array in zip((total, row), arrays, strict=True)
        )
        align = total.dtype.bitwidth // 8  # Rows begin anywhere.
        added = builder.fmul(builder.load(by, align=align), spread)
        builder.store(builder.fadd(builder.load(to, align=align), added), to, align=align)
        return context.get_dummy_value()

    return types.void(total, row, weight), generate


add_nine: Callable[[Floats, Floats, float], None] = cast(Any, intrinsic)(_add_nine)
"""Does `total += weight * row` for rows of nine numbers, rounded as in a loop."""


@compiled
def mean_rows(rows: Floats, result: Floats, entries: Targets) -> None:
    """Fill `result` (target, entries) with means of `rows` (source, entries), one by one."""
    start, source, share = entries
    length = rows.shape[1]
    for target in range(len(result)):
        mean, first, end = result[target], start[target], start[target + 1]
        if first == end:
            mean[:] = 0
            continue
        row, weight = rows[source[first]], share[first]
        for place in range(length):
            mean[place] = weight * row[place]
        for entry in range(first + 1, end):
            row, weight = rows[source[entry]], share[entry]
            for place in range(length):
                mean[place] += weight * row[place]


@compiled
def add_rows(rows: Floats, result: Floats, entries: Sources) -> None:
    """Fill `result` (blocks, target, entries) with means of `rows` (blocks, source, entries).

    For many short rows. They are read in the order in which they lie in memory, so that the next is
    on its way while one is added.
    """
    start, target, share = entries
    num_blocks, num_sources, length = rows.shape
    for block in range(num_blocks):
        means = result[block]
        means[:] = 0
        for source in range(num_sources):
            row = rows[block, source]
            for entry in range(start[source], start[source + 1]):
                mean, weight = means[target[entry]], share[entry]
                if length == NINE:
                    add_nine(mean, row, weight)
                else:
                    for place in range(length):
                        mean[place] += weight * row[place]


@compiled
def look_up(rows: Floats, result: Floats, entries: Targets) -> None:
    """Fill `result` (blocks, target) with the means of single numbers of `rows` (blocks, source).

    Four blocks at once, so that an entry is read once for them; the last block stands in for those
    that the last four lack.
    """
    start, source, share = entries
    num_blocks, num_targets = result.shape
    last, zero = num_blocks - 1, rows.dtype.type(0)
    for block in range(0, num_blocks, 4):
        second, third, fourth = min(block + 1, last), min(block + 2, last), min(block + 3, last)
        row_1, row_2, row_3, row_4 = rows[block], rows[second], rows[third], rows[fourth]
        out_1, out_2, out_3, out_4 = result[block], result[second], result[third], result[fourth]
        for target in range(num_targets):
            mean_1 = mean_2 = mean_3 = mean_4 = zero
            for entry in range(start[target], start[target + 1]):
                here, weight = source[entry], share[entry]
                mean_1 += weight * row_1[here]
                mean_2 += weight * row_2[here]
                mean_3 += weight * row_3[here]
                mean_4 += weight * row_4[here]
            out_1[target], out_2[target] = mean_1, mean_2
            out_3[target], out_4[target] = mean_3, mean_4
