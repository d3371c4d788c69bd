"""Tracing ResNet18 against ten of its training steps at batch 32, in CPU seconds, interleaved."""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F  # noqa: N812

from subflot import trace
from subflot.models import find

REPEATS = 7


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Measure both sides in turn and print their medians and ratio."""
    torch.set_num_threads(1)
    network = find("resnet18")
    model, example, batch = network.model(), network.example(), network.example(32)
    labels = torch.arange(32) % network.num_classes

    def ten_steps() -> None:
        model.train()
        for _ in range(10):
            model.zero_grad()
            F.cross_entropy(model(batch), labels).backward()

    def tracing() -> None:
        trace(model, example)

    for work in (ten_steps, tracing):  # First calls import and allocate.
        work()
    rows = [(cpu_seconds(tracing), cpu_seconds(ten_steps)) for _ in range(REPEATS)]
    traces, steps = (statistics.median(column) for column in zip(*rows, strict=True))
    print(f"trace {traces:.3f} s, ten forward-backward passes {steps:.3f} s (CPU, median)")
    print(
        json.dumps(
            {
                "trace_seconds": traces,
                "ten_steps_seconds": steps,
                "trace_ratio_to_ten_steps": traces / steps,
            }
        )
    )


if __name__ == "__main__":
    main()
