"""Training steps of the networks with channels last in memory, against channels first.

HARCNN, Digit5CNN and MobileNetV2 order their inputs like that themselves; the others are measured
to see whether they should. Full width and a quarter of it, one thread, CPU seconds, medians of
interleaved steps: `ratio_channels_last` below one is a gain. Names of networks may be given.
"""

import json
import statistics
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot import build, take, trace
from subflot.channels.keep import prefix
from subflot.models import find

MODELS = ["harcnn", "mobilenetv2", "resnet18", "vgg11", "digit5cnn"]
RATES = [0.0, 0.75]
LAYOUTS = {"first": torch.contiguous_format, "last": torch.channels_last}
BATCH, STEPS, LEARNING_RATE = 32, 11, 0.001


def with_layout(model: nn.Module, layout: torch.memory_format) -> nn.Module:
    """Order the input of the first convolution, and so what comes after it."""
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda _, args: (args[0].contiguous(memory_format=layout),))
    return model


def step_seconds(model: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """CPU time of one step of stochastic gradient descent."""
    start = time.process_time()
    model.zero_grad(set_to_none=True)
    F.cross_entropy(model(inputs), labels).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=LEARNING_RATE)
    return time.process_time() - start


def measure(name: str, rate: float) -> dict[str, Any]:
    """Measure one network at one width."""
    network = find(name)
    model = network.model()
    channels = trace(model, network.example())
    weights = take(model.state_dict(), channels, prefix(channels, rate))
    sides = {side: with_layout(build(model, channels, weights), f) for side, f in LAYOUTS.items()}
    inputs = torch.randn(BATCH, *network.example().shape[1:])
    labels = torch.zeros(BATCH, dtype=torch.long)
    times: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(STEPS):
        for side, module in sides.items():
            times[side].append(step_seconds(module, inputs, labels))
    seconds = {side: statistics.median(values[1:]) for side, values in times.items()}
    return {
        "model": name,
        "pruning_rate": rate,
        **{f"channels_{side}_seconds": value for side, value in seconds.items()},
        "ratio_channels_last": seconds["last"] / seconds["first"],
    }


def main() -> None:
    """Measure every network and print it."""
    torch.set_num_threads(1)
    rows = []
    for name in sys.argv[1:] or MODELS:
        for rate in RATES:
            row = measure(name, rate)
            rows.append(row)
            first, last = (row[f"channels_{side}_seconds"] for side in LAYOUTS)
            print(
                f"{name:12} rate {rate:<5} first {first:.4f} s   last {last:.4f} s   "
                f"{row['ratio_channels_last']:.2f} times",
                flush=True,
            )
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
