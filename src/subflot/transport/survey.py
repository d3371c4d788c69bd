"""What is read off a matrix of costs in one pass.

This file imports the compiler; import it only where a plan is solved.
"""

import numpy as np
from numpy.typing import NDArray

from subflot.transport.compiled import compiled
from subflot.transport.ledger import Floats, Longs


@compiled
def survey(cost: Floats) -> tuple[float, float, Floats]:
    """Return the lowest and the highest cost, and what each target costs for all sources together.

    One pass, a column in each lane; NaN and infinity show in the sums alone.
    """
    num_sources, num_targets = cost.shape
    lowest, highest, total = cost[0].copy(), cost[0].copy(), np.zeros(num_targets, cost.dtype)
    for start in range(0, num_sources - 3, 4):
        row_1, row_2, row_3, row_4 = cost[start], cost[start + 1], cost[start + 2], cost[start + 3]
        for target in range(num_targets):
            one, two, three, four = row_1[target], row_2[target], row_3[target], row_4[target]
            low, other_low = one if one < two else two, three if three < four else four
            high, other_high = one if one > two else two, three if three > four else four
            low, high = (
                low if low < other_low else other_low,
                high if high > other_high else other_high,
            )
            lowest[target] = low if low < lowest[target] else lowest[target]
            highest[target] = high if high > highest[target] else highest[target]
            total[target] += (one + two) + (three + four)
    for source in range(num_sources - num_sources % 4, num_sources):
        row = cost[source]
        for target in range(num_targets):
            value = row[target]
            lowest[target] = value if value < lowest[target] else lowest[target]
            highest[target] = value if value > highest[target] else highest[target]
            total[target] += value
    return lowest.min(), highest.max(), total


@compiled
def spent(cost: Floats, source: Longs, target: Longs, mass: NDArray[np.float64]) -> float:
    """Return what the entries of a plan cost together."""
    total = 0.0
    for entry in range(len(source)):
        total += cost[source[entry], target[entry]] * mass[entry]
    return total
