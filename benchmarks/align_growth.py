"""How the time of aligning grows with the width of a network and with the number of clients.

A network with the layers of VGG11 is aligned to clients of half its width. Prints the fitted
exponents (1 is proportional) and draws the times, in CPU seconds on one thread.

Then what two workers gain, at several widths: those of the engine, which are processes and find all
they need in the folder of a run (`engine`: what a round of SubFLOT aligns, in both directions), and
those of `align_all`, which are threads (`threads`: the smaller the layers, the more of the time is
Python, of which one thread runs at a time). This is wall time, which other programs spoil:
`machine_speedup` tells how much more two bare loops got than one in the same minutes, 2 on an idle
machine. So every comparison stands between two of these, and the ones where both found the machine
idle are also given alone. `cpu_ratio` is what two workers add to the CPU time, which others spoil
less; it is given for threads alone.
"""

import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from subflot import (
    ChannelMap,
    LocalTraining,
    Task,
    federate,
    from_arrays,
    make,
    simulate,
    take,
    trace,
)
from subflot.algorithms.base import Client, Turn, Upload
from subflot.channels.keep import random
from subflot.simulation.federation import Federation
from subflot.simulation.workers import Workers
from subflot.transport import align, align_all
from subflot.transport.compiled import compiled

CHANNELS = [64, 128, 256, 256, 512, 512, 512, 512]
FACTORS = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0]
CLIENTS = [1, 2, 4, 8, 16]
PRUNING_RATE = 0.5
REPEATS = 5
COMPARISONS, IDLE_SPEEDUP = 11, 1.9
BATCHES = {0.25: 120, 0.5: 60, 1.0: 24, 2.0: 8}
"""Width of the networks -> how many are aligned by two workers."""
IMAGE, EXAMPLES = (3, 8, 8), 4
"""What a client holds: enough for one step of training, after which it has a history."""

Weights = dict[str, Tensor]
Pair = tuple[Weights, Weights]
Comparison = dict[str, float | None]


def network(factor: float) -> nn.Module:
    """Make a network whose layers have `factor` times as many channels."""
    layers: list[nn.Module] = []
    before = 3
    for width in (int(factor * channels) for channels in CHANNELS):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def pairs(factor: float, count: int) -> tuple[list[Pair], ChannelMap]:
    """Make a global model, models of some clients, and their map."""
    torch.manual_seed(0)
    model = network(factor)
    channels = trace(model, torch.zeros(2, *IMAGE))
    clients = []
    for client in range(count):
        kept = random(channels, PRUNING_RATE, torch.Generator().manual_seed(client))
        clients.append(take(network(factor).state_dict(), channels, kept))
    return [(model.state_dict(), client) for client in clients], channels


def one_by_one(work: list[Pair], channels: ChannelMap) -> None:
    """Align in this thread."""
    for source, target in work:
        align(source, target, channels)


def two_threads(work: list[Pair], channels: ChannelMap) -> None:
    """Align in two threads."""
    for _ in align_all(work, channels, workers=2):
        pass


def median(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Median time of some runs, after one that compiles and imports."""
    work()
    times = []
    for _ in range(REPEATS):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)


def slope(sizes: list[float], times: list[float]) -> float:
    """Exponent of the power of the size that fits the times best."""
    logs = [math.log(size) for size in sizes], [math.log(seconds) for seconds in times]
    return statistics.linear_regression(*logs).slope


@compiled
def spin(steps: int) -> float:
    """Keep a core busy."""
    total = 0.0
    for step in range(steps):
        total += step % 3
    return total


def spin_together(num_threads: int) -> None:
    """Keep several cores busy at once."""
    threads = [threading.Thread(target=spin, args=(10**8,)) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time of one call."""
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu_start


def machine_speedup() -> float:
    """How much more two bare loops get than one, at present."""
    return 2 * seconds(lambda: spin_together(1))[0] / seconds(lambda: spin_together(2))[0]


def compare(alone: Callable[[], object], together: Callable[[], object]) -> Comparison:
    """Compare two workers with one, in turn, and see what the machine had to give."""
    for work in (alone, together, lambda: spin(1)):
        work()
    efficiencies, ratios, speedups = [], [], [machine_speedup()]
    for _ in range(COMPARISONS):
        alone_wall, alone_cpu = seconds(alone)
        together_wall, together_cpu = seconds(together)
        efficiencies.append(alone_wall / together_wall / 2)
        ratios.append(together_cpu / alone_cpu)
        speedups.append(machine_speedup())
    idle = [
        efficiency
        for efficiency, *around in zip(efficiencies, speedups, speedups[1:], strict=False)
        if min(around) >= IDLE_SPEEDUP
    ]
    return {
        "efficiency_two_cores": statistics.median(efficiencies),
        "efficiency_when_idle": statistics.median(idle) if idle else None,
        "num_idle": len(idle),
        "cpu_ratio": statistics.median(ratios),
        "machine_speedup": statistics.median(speedups),
        "load_average": os.getloadavg()[0],
    }


def threads(factor: float, count: int) -> Comparison:
    """Compare `align_all` with `align`."""
    work, channels = pairs(factor, count)
    return compare(lambda: one_by_one(work, channels), lambda: two_threads(work, channels))


def align_client(federation: Federation, client: Client, turn: Turn) -> None:
    """Do what the server does for a client in a round that sends its submodel back untrained."""
    _, state = federation.before(turn.round)
    part = federation.offer(client, turn).weights
    federation.algorithm.place(federation.task, state, client, Upload(part, EXAMPLES), turn)


def engine(factor: float, count: int) -> Comparison:
    """Compare two processes of the engine with one, in the second round of a run."""
    torch.manual_seed(0)
    images, labels = torch.randn(count * EXAMPLES, *IMAGE), torch.arange(count * EXAMPLES) % 10
    data = federate(from_arrays(images, labels), partition="iid", num_clients=count)
    task = Task.of(network(factor), images[:2], LocalTraining(learning_rate=0.01, epochs=1))
    clients = [Client(number, PRUNING_RATE) for number in range(count)]
    with tempfile.TemporaryDirectory() as name:
        folder, method = Path(name), make("subflot")
        for _ in simulate(method, task, data, clients, rounds=1, folder=folder, workers=2):
            pass
        federation = Federation(method, method.prepare(task), data, folder)
        both = [Workers(federation, num_workers) for num_workers in (1, 2)]

        def aligned(workers: Workers) -> None:
            turn = Turn(2, 2, seed=0)
            for promise in [workers.submit(align_client, client, turn) for client in clients]:
                promise.result()

        try:
            found = compare(*(partial(aligned, workers) for workers in both))
        finally:
            for workers in both:
                workers.close()
    del found["cpu_ratio"]  # This process does not see the time of the others.
    return found


def draw(by_width: list[float], by_clients: list[float], path: Path) -> None:
    """Draw both times on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, sizes, times, label in (
        (left, FACTORS, by_width, "width, as a factor"),
        (right, CLIENTS, by_clients, "clients"),
    ):
        axes.loglog(sizes, times, marker="o")
        axes.set(xlabel=label, ylabel="CPU seconds")
        axes.grid(alpha=0.3, which="both")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print and draw; the picture's path may be given."""
    torch.set_num_threads(1)
    default = Path(tempfile.gettempdir()) / "align_growth.png"
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    by_width, by_clients = [], []
    for factor in FACTORS:
        work, channels = pairs(factor, 1)
        by_width.append(median(lambda: one_by_one(work, channels), time.process_time))  # noqa: B023
        print(f"width {factor:<5} {by_width[-1]:.4f} s", flush=True)
    work, channels = pairs(1.0, max(CLIENTS))
    for count in CLIENTS:
        some = work[:count]
        by_clients.append(median(lambda: one_by_one(some, channels), time.process_time))  # noqa: B023
        print(f"{count:2d} clients  {by_clients[-1]:.4f} s", flush=True)
    draw(by_width, by_clients, path)
    result = {
        "exponent_width": slope(FACTORS, by_width),
        "exponent_clients": slope([float(count) for count in CLIENTS], by_clients),
        "engine": {str(factor): engine(factor, count) for factor, count in BATCHES.items()},
        "threads": {str(factor): threads(factor, count) for factor, count in BATCHES.items()},
        "width_seconds": dict(zip(map(str, FACTORS), by_width, strict=True)),
        "client_seconds": dict(zip(map(str, CLIENTS), by_clients, strict=True)),
        "picture": str(path),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
