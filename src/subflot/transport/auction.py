"""An exact transport solver for uniform marginals: an auction, then a proof.

Sources bid for room at targets (Bertsekas and Castanon, "The auction algorithm for the
transportation problem", 1989). Room at one target is alike, so a source compares targets by their
cheapest room and outbids it against the best *other* target. Three things make it fast:

- Mass moves in lots: a source bids for as much room as one holder leaves, not unit by unit.
- Prices only rise, in bidding and in proving. A source therefore remembers its few best targets and
  a bound that no other target can come below, and reads its whole row again only when the bound is
  reached.
- The auction may stop early, at a coarse bidding step, and may compute in single precision. `prove`
  then looks for a cycle of moves that saves cost. Finding none proves the plan optimal, in double
  precision whatever the bids were; a cycle that is found is applied.

This file imports the compiler; import it only where a plan is solved. Functions that call each
other stand in one file, for a compiled function is kept until its own file changes.
"""

import numpy as np

from subflot.transport.compiled import compiled
from subflot.transport.ledger import LANES, Floats, Holdings, Ints, Lanes, Longs, Memory

FIRST_STEP, FIRST_STEP_ALONE, STEP_RATIO, FIRST_PROOF = 0.003, 0.0005, 10.0, 1e-3
"""Bidding steps as shares of the range of costs: the first, the first where a source has but one
unit to place, what divides it from phase to phase, and where a proof is first tried. Proofs cost
little; far from the optimum they do not end."""
MAX_CYCLES, CYCLES_RATIO = 16, 4
"""Savings that the first proof may find before another phase of bidding pays better, and how many
times more the next, up to as many for each target."""
BLOCK = 64
"""Entries that are compared at once; only a block with a hit is read entry by entry."""


@compiled
def recall(memory: Memory, source: int, row: Floats, price: Floats, lanes: Lanes) -> None:
    """Renew what a source knows at the present prices; `lanes` is scratch space.

    It remembers the best target of each lane as far as these are below the second best of all
    lanes, which becomes the bound.
    """
    num_targets = row.shape[0]
    first, second, start_of_first = lanes
    for lane in range(LANES):
        first[lane] = np.inf
        second[lane] = np.inf
        start_of_first[lane] = 0
    num_full = num_targets - num_targets % LANES
    for start in range(0, num_full, LANES):
        row_block, price_block = row[start : start + LANES], price[start : start + LANES]
        for lane in range(LANES):  # Without a branch, so that it runs in parallel.
            value = row_block[lane] + price_block[lane]
            is_better = value < first[lane]
            higher = first[lane] if is_better else value
            first[lane] = value if is_better else first[lane]
            second[lane] = higher if higher < second[lane] else second[lane]
            start_of_first[lane] = start if is_better else start_of_first[lane]
    for lane in range(num_targets - num_full):
        value = row[num_full + lane] + price[num_full + lane]
        if value < first[lane]:
            second[lane] = first[lane]
            first[lane] = value
            start_of_first[lane] = num_full
        else:
            second[lane] = min(second[lane], value)

    bound = second[0]
    for lane in range(1, LANES):
        bound = second[lane] if second[lane] < bound else bound
    targets, costs = memory.target[source], memory.cost[source]
    num_known = 0
    for lane in range(min(LANES, num_targets)):  # No branch: what is not kept is overwritten.
        target = start_of_first[lane] + lane
        targets[num_known] = target
        costs[num_known] = row[target]
        num_known += first[lane] <= bound
    memory.num_known[source] = num_known
    memory.bound[source] = bound


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
def bid(
    cost: Floats,
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
    paid = np.empty((num_targets, room + 1), price.dtype)
    num_held = np.ones(num_targets, np.int32)
    cheapest = np.zeros(num_targets, np.int32)
    for target in range(num_targets):  # All room is for sale, to no one's loss.
        source[target, 0] = -1
        amount[target, 0] = room
        paid[target, 0] = price[target]
    left = np.full(num_sources, units).astype(np.int32)
    waiting = np.arange(num_sources)[::-1].astype(np.int32)
    num_waiting = num_sources
    lanes = Lanes(
        np.empty(LANES, price.dtype), np.empty(LANES, price.dtype), np.empty(LANES, np.int32)
    )

    while num_waiting > 0 and max_bids >= 0:
        max_bids -= 1
        bidder = waiting[num_waiting - 1]
        while True:
            first, second, choice = np.inf, np.inf, 0
            for slot in range(memory.num_known[bidder]):
                target = memory.target[bidder, slot]
                here = memory.cost[bidder, slot] + price[target]
                if here < second:
                    if here < first:
                        first, second, choice = here, first, target
                    else:
                        second = here
            if first <= memory.bound[bidder]:
                break
            recall(memory, bidder, cost[bidder], price, lanes)
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
def entry_of(holdings: Holdings, target: int, source: int) -> int:
    """Return the entry of a source at a target where it holds something."""
    entry = 0
    while holdings.source[target, entry] != source:
        entry += 1
    return entry


@compiled
def entries(holdings: Holdings) -> tuple[Longs, Longs, Longs]:
    """List the source, target and amount of all holdings, by target and then by source."""
    total = holdings.num_held.sum()
    source, target = np.empty(total, np.int64), np.empty(total, np.int64)
    amount = np.empty(total, np.int64)
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
def find_below(row: Floats, price: Floats, limit: float, found: Ints) -> int:
    """List the targets that cost less than the limit in `found`; return how many they are."""
    num_targets, num_found = row.shape[0], 0
    for start in range(0, num_targets, BLOCK):
        stop = min(start + BLOCK, num_targets)
        row_block, price_block = row[start:stop], price[start:stop]
        hits = np.int32(0)
        for place in range(stop - start):  # Without a branch, so that it runs in parallel lanes.
            hits += np.int32(row_block[place] + price_block[place] < limit)
        if hits > 0:
            for place in range(stop - start):
                if row_block[place] + price_block[place] < limit:
                    found[num_found] = start + place
                    num_found += 1
    return num_found


@compiled
def recall_below(
    memory: Memory, source: int, row: Floats, price: Floats, limit: float, found: Ints
) -> int:
    """Do the same for a limit below the bound of a source: only what it remembers can be meant."""
    num_found = 0
    for slot in range(memory.num_known[source]):
        target = memory.target[source, slot]
        if row[target] + price[target] < limit:
            found[num_found] = target
            num_found += 1
    return num_found


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
    cost: Floats,
    holdings: Holdings,
    price: Floats,
    memory: Memory,
    largest: float,
    max_cycles: int,
) -> bool:
    """Mend the holdings until prices exist at which nobody wants to move.

    Where a holder would save more than rounding elsewhere, the price there rises to meet it:
    Bellman-Ford over the targets, from prices that are nearly right. A price that comes back to
    its own cause has gone round a cycle of moves that saves cost; the cycle is applied. Returns
    False when `max_cycles` cycles were not enough. No cost is greater than `largest`, and `memory`
    is what the sources knew while the prices were still lower.
    """
    num_targets = cost.shape[1]
    tolerance = 8 * np.finfo(np.float64).eps * (largest + price.max())
    slack = np.finfo(cost.dtype).eps * (largest + price.max())  # Bounds are sums in that precision.
    found = np.empty(num_targets, np.int32)
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
            limit = now - tolerance
            if limit <= memory.bound[holder] - slack:
                num_found = recall_below(memory, holder, row, price, limit, found)
            else:
                num_found = find_below(row, price, limit, found)
            for there in found[:num_found]:
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
    return True


@compiled
def auction(
    cost: Floats,
    total: Floats,
    units: int,
    room: int,
    largest: float,
    breadth: float,
    max_bids: int,
) -> tuple[tuple[Longs, Longs, Longs], bool]:
    """Bid in ever smaller steps until a plan is proven optimal.

    Returns source, target and units of its entries, by target and then by source, and whether the
    bids sufficed. There are no entries if they did not, or if the steps became too small for the
    precision of the costs.

    Args:
        cost: at least as many sources as targets, at least two targets, not all costs equal.
        total: what each target costs for all sources together.
        units: what every source has to place.
        room: what every target can take.
        largest: no cost has a greater absolute value.
        breadth: how far apart the costs are.
        max_bids: more than this is a price war that other solvers win.
    """
    num_sources, num_targets = cost.shape
    memory = Memory(
        target=np.empty((num_sources, LANES), np.int32),
        cost=np.empty((num_sources, LANES), cost.dtype),
        num_known=np.zeros(num_sources, np.int32),
        bound=np.full(num_sources, -np.inf, cost.dtype),
    )
    # Prices under which all targets cost the same on average: most rivalry is over at once.
    price = (total.max() - total) / cost.dtype.type(num_sources)
    step = (FIRST_STEP if units > 1 else FIRST_STEP_ALONE) * breadth
    max_cycles = MAX_CYCLES
    while step >= 4 * np.finfo(cost.dtype).eps * (largest + price.max()):
        holdings, max_bids = bid(cost, units, room, step, price, memory, max_bids)
        if max_bids < 0:
            break
        if step <= FIRST_PROOF * breadth:
            if prove(cost, holdings, price.astype(np.float64), memory, largest, max_cycles):
                return entries(holdings), True
            max_cycles = min(CYCLES_RATIO * max_cycles, MAX_CYCLES * num_targets)
        step /= STEP_RATIO
    nothing = np.empty(0, np.int64)
    return (nothing, nothing, nothing), max_bids >= 0
