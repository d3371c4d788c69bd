"""Exact plans by `solve` against POT's network simplex, in CPU time, interleaved.

Random: two unrelated layers. Near: a layer and a slightly changed, shuffled copy of its channels.
"""

import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import torch
from numpy.typing import NDArray

from subflot.transport import distances, solve

SIZES = [(512, 512), (512, 384), (512, 256), (512, 128), (1280, 1280), (1280, 960), (1280, 640)]
LENGTH = 576
"""Weights of one channel: a 3 x 3 convolution with 64 inputs."""
REPEATS = 5


def costs(num_sources: int, num_targets: int, is_near: bool) -> NDArray[np.float32]:
    """Return the distances between two layers, as alignment sees them."""
    generator = torch.Generator().manual_seed(num_sources + num_targets)
    source = torch.randn(num_sources, LENGTH, generator=generator)
    target = torch.randn(num_targets, LENGTH, generator=generator)
    if is_near:
        chosen = torch.randperm(num_sources, generator=generator)[:num_targets]
        target = source[chosen] + 0.1 * target
    result: NDArray[np.float32] = distances(source, target).numpy()
    return result


def simplex(cost: NDArray[np.float32]) -> float:
    """Return the optimal cost as POT computes it from uniform masses."""
    num_sources, num_targets = cost.shape
    _, log = ot.emd(
        np.full(num_sources, 1 / num_sources),
        np.full(num_targets, 1 / num_targets),
        cost.astype(np.float64),
        numItermax=10**8,
        log=True,
    )
    return float(log["cost"])


def cpu_ms(solver: Callable[..., Any], cost: NDArray[np.float32]) -> tuple[float, Any]:
    """CPU time of one call, and its result."""
    start = time.process_time()
    result = solver(cost)
    return 1000 * (time.process_time() - start), result


def main() -> None:
    """Measure both solvers in turn on each problem; print a table and one line of JSON."""
    torch.set_num_threads(1)
    solve(costs(8, 6, is_near=False))  # First calls import and compile.
    simplex(costs(8, 6, is_near=False))
    rows = []
    for num_sources, num_targets in SIZES:
        for kind in ("random", "near"):
            cost = costs(num_sources, num_targets, kind == "near")
            ours, theirs = [], []
            for _ in range(REPEATS):
                spent, plan = cpu_ms(solve, cost)
                ours.append(spent)
                spent, value = cpu_ms(simplex, cost)
                theirs.append(spent)
            row = {
                "source": num_sources,
                "target": num_targets,
                "kind": kind,
                "solve_ms": statistics.median(ours),
                "pot_ms": statistics.median(theirs),
                "relative_gap": abs(plan.cost - value) / value,
                "is_optimal": plan.is_optimal,
            }
            row["speedup"] = row["pot_ms"] / row["solve_ms"]
            rows.append(row)
            print(
                f"{num_sources:5d} x {num_targets:<5d}{kind:7s} solve {row['solve_ms']:7.2f} ms   "
                f"POT {row['pot_ms']:7.2f} ms   {row['speedup']:6.1f} times"
            )
    speedup = math.exp(statistics.fmean(math.log(row["speedup"]) for row in rows))
    print(json.dumps({"speedup_over_pot": speedup, "rows": rows}))


if __name__ == "__main__":
    main()
