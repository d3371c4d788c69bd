"""Aligning a model to narrower ones: against POT with dense products, and against the floor.

The floor is what no implementation can avoid: the distance matrices, and one copy of the source's
weights. Both models are drawn at random ("random"), or the target is a slice of the source with
noise ("near"), as it is after some rounds. CPU seconds, medians of interleaved runs, one thread.
With `--up` the clients' models are aligned to the global one, as they are to be merged.
"""

import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import ot
import torch
from torch import Tensor

from subflot import ChannelMap, take, trace
from subflot.channels.keep import random
from subflot.models import find
from subflot.transport import align
from subflot.transport.distance import distances
from subflot.transport.plan import Plan

walk = sys.modules["subflot.transport.align"]

MODELS = ["vgg11", "mobilenetv2", "resnet18", "harcnn", "digit5cnn"]
RATES = [0.0, 0.25, 0.5, 0.75]
PAPER_SECONDS = {"vgg11": 0.12, "mobilenetv2": 1.15, "resnet18": 0.20}
"""Per client on an RTX 4090, as printed."""
REPEATS = 6

Weights = dict[str, Tensor]


class PlainWalk(walk._Walk):  # type: ignore[name-defined, misc]
    """The same walk as one would first write it: cdist, POT's emd on 1/n, dense products."""

    def _match(self, origin: Any, space: str) -> None:
        cost = torch.cdist(*self._rows(origin, space)).double().numpy()
        n, k = cost.shape
        mass = ot.emd(np.full(n, 1 / n), np.full(k, 1 / k), cost, numItermax=10**7)
        source, target = mass.nonzero()
        plan = DensePlan(
            source, target, mass[source, target], (n, k), float((mass * cost).sum()), True
        )
        self.plans.setdefault(space, {})[origin] = plan


class DensePlan(Plan):
    """A plan that is applied as a matrix, which is made once."""

    @cached_property
    def _matrix(self) -> Tensor:
        return torch.from_numpy(self.dense() * self.shape[1]).float()

    def carry(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Multiply by the column-normalised plan."""
        product: Tensor = torch.tensordot(tensor, self._matrix.to(tensor), dims=([axis], [0]))
        return product.movedim(-1, axis).contiguous()


def plain(source: Weights, target: Weights, channels: ChannelMap) -> None:
    """Align with POT and dense products."""
    with torch.no_grad():
        PlainWalk(source, target, channels, "balanced", "average", "mean", 0.0).run()


def pairs_compared(source: Weights, target: Weights, channels: ChannelMap) -> list[Any]:
    """The rows between which an alignment measures distances."""
    seen = []

    def watch(one: Tensor, other: Tensor, *, name: str = "") -> Tensor:
        seen.append((one.clone(), other.clone()))
        return distances(one, other, name=name)

    walk.distances = watch  # type: ignore[attr-defined]
    try:
        align(source, target, channels)
    finally:
        walk.distances = distances  # type: ignore[attr-defined]
    return seen


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def num_bytes(weights: Weights) -> int:
    """Bytes of all tensors."""
    return sum(t.numel() * t.element_size() for t in weights.values())


def extra_memory(name: str, rate: float, *, is_up: bool) -> float:
    """Memory that an alignment holds at most beyond both models and its result, in models.

    It runs in a process that gives freed memory back at once, so that the peak is what is held.
    """
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
    direction = ["--up"] if is_up else []
    command = [sys.executable, __file__, *direction, "--memory", name, str(rate)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_extra_memory(name: str, rate: float, *, is_up: bool) -> None:
    """Measure in this process, after one run that compiles and imports."""
    torch.set_num_threads(1)
    source, target, channels = models(name, rate, "random", is_up=is_up)
    result = num_bytes(align(source, target, channels).weights)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Resets the peak to the present.
    before = _status("VmRSS")
    align(source, target, channels)
    print((_status("VmHWM") - before - result) / max(num_bytes(source), num_bytes(target)))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def models(
    name: str, rate: float, kind: str, *, is_up: bool = False
) -> tuple[Weights, Weights, ChannelMap]:
    """A global model, a client's (the other way round on the way up), and their map."""
    network = find(name)
    torch.manual_seed(0)
    model = network.model()
    channels = trace(model, network.example())
    source = {n: t.clone() for n, t in model.state_dict().items()}
    generator = torch.Generator().manual_seed(1)
    kept = random(channels, rate, generator)
    other = source if kind == "near" else network.model().state_dict()
    target = {
        n: t + 0.1 * t.std().nan_to_num() * torch.randn(t.shape, generator=generator)
        if t.is_floating_point()
        else t
        for n, t in take(other, channels, kept).items()
    }
    return (target, source, channels) if is_up else (source, target, channels)


def measure(name: str, rate: float, kind: str, *, is_up: bool) -> dict[str, Any]:
    """Measure one case."""
    source, target, channels = models(name, rate, kind, is_up=is_up)
    rows = pairs_compared(source, target, channels)

    def floor() -> object:
        return [distances(*pair) for pair in rows], {n: t.clone() for n, t in source.items()}

    sides: dict[str, Callable[[], object]] = {
        "align": lambda: align(source, target, channels),
        "floor": floor,
        "pot": lambda: plain(source, target, channels),
    }
    for work in sides.values():
        work()
    times: dict[str, list[float]] = {side: [] for side in sides}
    order = list(sides.items())
    for _ in range(REPEATS):
        for side, work in order:
            times[side].append(cpu_seconds(work))
        order.reverse()  # No side always finds the caches as the same other side left them.
    seconds = {side: statistics.median(values) for side, values in times.items()}
    return {
        "model": name,
        "pruning_rate": rate,
        "kind": kind,
        **{f"{side}_seconds": value for side, value in seconds.items()},
        "speedup_over_pot": seconds["pot"] / seconds["align"],
        "ratio_to_floor": seconds["align"] / seconds["floor"],
    }


def main() -> None:
    """Measure every case and print it beside the paper's figure."""
    torch.set_num_threads(1)
    is_up = "--up" in sys.argv
    names = [argument for argument in sys.argv[1:] if argument != "--up"]
    if names[:1] == ["--memory"]:
        print_extra_memory(names[1], float(names[2]), is_up=is_up)
        return
    table, memory = [], {}
    for name in names or MODELS:
        memory[name] = max(extra_memory(name, rate, is_up=is_up) for rate in RATES)
        print(f"{name:12} memory beyond both models and the result: {memory[name]:.2f} models")
        for rate in RATES:
            for kind in ("random", "near"):
                row = measure(name, rate, kind, is_up=is_up)
                table.append(row)
                paper = f"   paper (GPU) {PAPER_SECONDS[name]} s" if name in PAPER_SECONDS else ""
                print(
                    f"{name:12} rate {rate:<5} {kind:7} {row['align_seconds']:.3f} s   "
                    f"POT {row['speedup_over_pot']:5.1f} times   "
                    f"floor {row['ratio_to_floor']:.2f} times{paper}",
                    flush=True,
                )
    print(
        json.dumps(
            {
                "speedup_over_pot": _geometric_mean([r["speedup_over_pot"] for r in table]),
                "ratio_to_floor": _geometric_mean([r["ratio_to_floor"] for r in table]),
                "extra_memory_ratio": max(memory.values()),
                "extra_memory_by_model": memory,
                "rows": table,
            }
        )
    )


def _geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


if __name__ == "__main__":
    main()
