"""An exact transport solver for uniform marginals: an auction, then a proof.

Sources bid for room at targets (Bertsekas and Castanon, "The auction algorithm for the
transportation problem", 1989). Room at one target is alike, so a source compares targets by their
cheapest room and outbids it against the best *other* target. Three things make it fast:

- Mass moves in lots: a source bids for as much room as one holder leaves, not unit by unit.
- Prices only rise. A source therefore remembers its few best targets and a bound that no other
  target can come below, and reads its whole row again only when the bound is reached.
- The auction may stop early, at a coarse bidding step. `prove` then looks for a cycle of moves
  that saves cost. Finding none proves the plan optimal, in double precision whatever the step was;
  a cycle that is found is applied.

This file imports the compiler; import it only where a plan is solved.
"""

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
R = TypeVar("R")
Floats = NDArray[np.float64]
Costs = NDArray[np.float64] | NDArray[np.float32]
Ints = NDArray[np.int32]

BLOCK = 64
"""Entries that are compared at once; only a block with a hit is read entry by entry."""


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile once per machine; the compiled function lets other threads run."""
    compile_ = numba.njit(cache=True, nogil=True, error_model="numpy")
    return cast(Callable[P, R], compile_(function))


class Holdings(NamedTuple):
    """Who holds how much room at each target: entries `[target, :num_held[target]]`.

    The arrays have one column more than a target has room, for a cycle gives before it takes.
    """

    source: Ints
    amount: Ints
    num_held: Ints


class Memory(NamedTuple):
    """What the sources know of the targets: the best few of each and what they cost."""

    best: Ints
    cost: Floats
    bound: Floats
    """No other target can be had for less than this."""


@compiled
def next_below(row: Costs, price: Floats, bound: float, start: int) -> int:
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
def recall(memory: Memory, source: int, row: Costs, price: Floats, value: Floats) -> None:
    """Renew what a source knows at the present prices; `value` is scratch space."""
    best, cost = memory.best[source], memory.cost[source]
    num_kept = best.shape[0]
    if memory.bound[source] == -np.inf:
        for slot in range(num_kept):
            best[slot] = slot
            cost[slot] = row[slot]
    worst = 0
    for slot in range(num_kept):
        value[slot] = cost[slot] + price[best[slot]]
        if value[slot] > value[worst]:
            worst = slot
    target = next_below(row, price, value[worst], 0)
    while target >= 0:
        is_known = False
        for slot in range(num_kept):
            is_known |= best[slot] == target
        if not is_known:
            best[worst] = target
            cost[worst] = row[target]
            value[worst] = row[target] + price[target]
            worst = 0
            for slot in range(1, num_kept):
                if value[slot] > value[worst]:
                    worst = slot
        target = next_below(row, price, value[worst], target + 1)
    memory.bound[source] = np.inf if num_kept == row.shape[0] else value[worst]


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
def bid(
    cost: Costs,
    units: int,
    room: int,
    step: float,
    price: Floats,
    memory: Memory,
    max_bids: int,
) -> tuple[Holdings, int]:
    """Auction all room once, starting from `price`, which rises by at least `step` a bid.

    Every source has `units` to place, every target `room`. Each source ends within `step` of the
    best it can do at the final prices. Returns the holdings and how many of `max_bids` bids
    were left over, negative if they were too few.
    """
    num_sources, num_targets = cost.shape
    source = np.empty((num_targets, room + 1), np.int32)
    amount = np.empty((num_targets, room + 1), np.int32)
    paid = np.empty((num_targets, room + 1), np.float64)
    num_held = np.ones(num_targets, np.int32)
    cheapest = np.zeros(num_targets, np.int32)
    for target in range(num_targets):  # All room is for sale, to no one's loss.
        source[target, 0] = -1
        amount[target, 0] = room
        paid[target, 0] = price[target]
    left = np.full(num_sources, units).astype(np.int32)
    waiting = np.arange(num_sources)[::-1].astype(np.int32)
    num_waiting = num_sources
    num_kept = memory.best.shape[1]
    value = np.empty(num_kept, np.float64)

    while num_waiting > 0 and max_bids >= 0:
        max_bids -= 1
        bidder = waiting[num_waiting - 1]
        while True:
            first, second, choice = np.inf, np.inf, 0
            for slot in range(num_kept):
                target = memory.best[bidder, slot]
                here = memory.cost[bidder, slot] + price[target]
                if here < second:
                    if here < first:
                        first, second, choice = here, first, target
                    else:
                        second = here
            if first <= memory.bound[bidder]:
                break
            recall(memory, bidder, cost[bidder], price, value)
        # The bound may stand in for the second best: the bid is lower than it could be, not wrong.
        offer = price[choice] + (min(second, memory.bound[bidder]) - first) + step

        lot = cheapest[choice]
        loser = source[choice, lot]
        taken = min(left[bidder], amount[choice, lot])
        if taken < amount[choice, lot]:
            amount[choice, lot] -= taken
            lot = num_held[choice]
            num_held[choice] = lot + 1
        source[choice, lot] = bidder
        amount[choice, lot] = taken
        paid[choice, lot] = offer
        left[bidder] -= taken
        if left[bidder] == 0:
            num_waiting -= 1
        if loser >= 0:
            if left[loser] == 0:
                waiting[num_waiting] = loser
                num_waiting += 1
            left[loser] += taken

        lot = 0
        for other in range(1, num_held[choice]):
            if paid[choice, other] < paid[choice, lot]:
                lot = other
        cheapest[choice] = lot
        price[choice] = paid[choice, lot]

    holdings = Holdings(source, amount, num_held)
    for target in range(num_targets):  # Lots of one source at one target become one entry.
        num_lots = num_held[target]
        num_held[target] = 0
        for lot in range(num_lots):
            give(holdings, target, source[target, lot], amount[target, lot])
    return holdings, max_bids


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
    cost: Costs, holdings: Holdings, price: Floats, tolerance: float, max_cycles: int
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
