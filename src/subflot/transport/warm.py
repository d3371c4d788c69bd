"""Compile the solvers before they are needed, so that nobody waits for it in the dark."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from subflot.transport.plan import average, make_plan
from subflot.transport.solve import solve

COMPILING = "compiling the transport solvers once, about 30 s\n"


def warm_up(work: Callable[[], None] | None = None) -> None:
    """Compile what a round calls, or load it if this machine has compiled it before.

    Args:
        work: calls what is to be compiled; by default all of this package.
    """
    from numba.core import event

    class Teller(event.Listener):
        """Says what takes so long; of compiled functions that are loaded there is no event."""

        has_told = False

        def on_start(self, event: Any) -> None:
            if not self.has_told:
                sys.stderr.write(COMPILING)
                sys.stderr.flush()
            self.has_told = True

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Teller()):
        (work or _call_all)()


def _call_all() -> None:
    """Solve a small problem and carry tensors of every layout along its plan, in both precisions.

    A plan between widths of which one divides the other takes the way through the auction.
    """
    # The entries of an entropic plan lie in memory as a search for them leaves them.
    source, target = np.ones((8, 4)).nonzero()
    make_plan(source, target, np.ones(32), shape=(8, 4), cost=0.0, is_optimal=False)
    for precision in (torch.float32, torch.float64):
        cost = torch.from_numpy(np.random.default_rng(0).random((8, 4))).to(precision)
        plan = average([solve(cost), solve(cost)])
        for shape, axis in (((8, 3), 0), ((2, 8), 1), ((2, 8, 9), 1)):
            plan.carry(torch.zeros(shape, dtype=precision), axis)
