"""The proof that a transport plan is optimal, which mends it where it is not.

This file imports the compiler; import it only where a plan is solved.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from subflot.transport.compiled import compiled

Floats = NDArray[np.float64] | NDArray[np.float32]
Ints = NDArray[np.int32]

BLOCK = 64
"""Entries that are compared at once; only a block with a hit is read entry by entry."""


class Holdings(NamedTuple):
    """Who holds how much room at each target: entries `[target, :num_held[target]]`.

    The arrays have one column more than a target has room, for a cycle gives before it takes.
    """

    source: Ints
    amount: Ints
    num_held: Ints


@compiled
def give(holdings: Holdings, target: int, source: int, amount: int) -> None:
    """Add to what a source holds at a target."""
    for entry in range(holdings.num_held[target]):
        if holdings.source[target, entry] == source:
            holdings.amount[target, entry] += amount
            return
    last = holdings.num_held[target]
    holdings.source[target, last] = source
    holdings.amount[target, last] = amount
    holdings.num_held[target] = last + 1


@compiled
def entry_of(holdings: Holdings, target: int, source: int) -> int:
    """Return the entry of a source at a target where it holds something."""
    entry = 0
    while holdings.source[target, entry] != source:
        entry += 1
    return entry


@compiled
def entries(holdings: Holdings) -> tuple[Ints, Ints, Ints]:
    """List the source, target and amount of all holdings, by target and then by source."""
    total = holdings.num_held.sum()
    source, target = np.empty(total, np.int32), np.empty(total, np.int32)
    amount = np.empty(total, np.int32)
    start = 0
    for here in range(len(holdings.num_held)):
        for entry in range(holdings.num_held[here]):
            holder, place = holdings.source[here, entry], start + entry
            while place > start and source[place - 1] > holder:
                source[place], amount[place] = source[place - 1], amount[place - 1]
                place -= 1
            source[place], amount[place] = holder, holdings.amount[here, entry]
            target[start + entry] = here
        start += holdings.num_held[here]
    return source, target, amount


@compiled
def next_below(row: Floats, price: Floats, bound: float, start: int) -> int:
    """Return the first target from `start` on that costs less than the bound, or -1."""
    num_targets = row.shape[0]
    while start < num_targets:
        stop = min(start + BLOCK, num_targets)
        row_block, price_block = row[start:stop], price[start:stop]
        hits = np.int32(0)
        for place in range(stop - start):  # Without a branch, so that it runs in parallel lanes.
            hits += np.int32(row_block[place] + price_block[place] < bound)
        if hits > 0:
            for place in range(stop - start):
                if row_block[place] + price_block[place] < bound:
                    return start + place
        start = stop
    return -1


@compiled
def rotate(holdings: Holdings, parent: Ints, mover: Ints, start: int) -> None:
    """Move as much mass as possible along the cycle of parents through `start`."""
    most = 2**31 - 1
    target = start
    while True:
        origin = parent[target]
        held = holdings.amount[origin, entry_of(holdings, origin, mover[target])]
        most = min(most, int(held))
        target = origin
        if target == start:
            break
    while True:
        origin = parent[target]
        entry = entry_of(holdings, origin, mover[target])
        give(holdings, target, mover[target], most)
        holdings.amount[origin, entry] -= most
        if holdings.amount[origin, entry] == 0:
            last = holdings.num_held[origin] - 1
            holdings.source[origin, entry] = holdings.source[origin, last]
            holdings.amount[origin, entry] = holdings.amount[origin, last]
            holdings.num_held[origin] = last
        target = origin
        if target == start:
            break


@compiled
def prove(
    cost: Floats, holdings: Holdings, price: Floats, tolerance: float, max_cycles: int
) -> bool:
    """Mend the holdings until prices exist at which nobody wants to move.

    Where a holder would save more than `tolerance` elsewhere, the price there rises to meet it:
    Bellman-Ford over the targets, from prices that are nearly right. A price that comes back to
    its own cause has gone round a cycle of moves that saves cost; the cycle is applied. Returns
    False when `max_cycles` cycles were not enough.
    """
    num_targets = cost.shape[1]
    queue = np.arange(num_targets).astype(np.int32)
    is_queued = np.ones(num_targets, np.bool_)
    head, size = 0, num_targets
    parent = np.full(num_targets, -1).astype(np.int32)
    mover = np.full(num_targets, -1).astype(np.int32)
    while size > 0:
        here = queue[head]
        head = (head + 1) % num_targets
        size -= 1
        is_queued[here] = False
        entry = 0
        while entry < holdings.num_held[here] and not is_queued[here]:
            holder = holdings.source[here, entry]
            entry += 1
            row = cost[holder]
            now = row[here] + price[here]
            there = next_below(row, price, now - tolerance, 0)
            while there >= 0:
                price[there] = now - row[there]
                parent[there] = here
                mover[there] = holder
                if not is_queued[there]:
                    queue[(head + size) % num_targets] = there
                    is_queued[there] = True
                    size += 1
                cause = here
                while cause >= 0 and cause != there:
                    cause = parent[cause]
                if cause == there:
                    if max_cycles == 0:
                        return False
                    max_cycles -= 1
                    rotate(holdings, parent, mover, there)
                    while True:  # Holdings changed all along the cycle: look at them again.
                        cause = parent[cause]
                        if not is_queued[cause]:
                            queue[(head + size) % num_targets] = cause
                            is_queued[cause] = True
                            size += 1
                        if cause == there:
                            break
                    parent[:] = -1
                    break
                there = next_below(row, price, now - tolerance, there + 1)
    return True
