"""The books of an auction: who holds what, and what the bidders know."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64] | NDArray[np.float32]
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

LANES = 16
"""Targets that are compared at once: numbers 0, 16, 32, ... are one lane, 1, 17, 33, ... the next.
Also how many targets a source can remember, for it remembers the best of a lane at most."""


class Holdings(NamedTuple):
    """Who holds how much room at each target: entries `[target, :num_held[target]]`.

    The arrays have one column more than a target has room, for a cycle gives before it takes.
    """

    source: Ints
    amount: Ints
    num_held: Ints


class Lanes(NamedTuple):
    """Scratch space: the two lowest values of each lane, and where the lowest stands."""

    first: Floats
    second: Floats
    start: Ints


class Memory(NamedTuple):
    """What the sources know of the targets: entries `[source, :num_known[source]]`."""

    target: Ints
    cost: Floats
    num_known: Ints
    bound: Floats
    """No other target can be had for less than this."""
