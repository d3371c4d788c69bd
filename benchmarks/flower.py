"""What Flower costs: seconds per round beyond the clients' own training.

    python benchmarks/flower.py [rounds]

20 clients of the bundled digits, a small network, one epoch, no evaluation. The same run on the
built-in engine, on a grid in this process, and on Ray with as many workers as cores. The clients'
own training is divided by the workers; the rest of a round is overhead: cutting, sending,
checking, aligning, merging, saving. Prints medians over rounds without the first, which warms up,
and the seconds that each engine takes to start.
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from subflot import RunConfig
from subflot.experiments.flower import part_loader, run_on_ray
from subflot.experiments.runner import assemble
from subflot.flower.client import client_app
from subflot.flower.local_grid import LocalGrid
from subflot.flower.server import serve
from subflot.flower.settings import FlowerSettings
from subflot.results import RunRecord
from subflot.simulation import Round, simulate
from subflot.simulation.workers import default_workers

NEVER = 10**6
CLIENTS = 20


def on_grid(config: RunConfig, folder: Path) -> Iterator[Round]:
    """The rounds of a config on a grid in this process."""
    task, _, roster = assemble(config)
    app = client_app(part_loader(config.toml(), str(folder)))
    grid = LocalGrid(app, [{"partition-id": number} for number in range(CLIENTS)])
    return serve(
        grid,
        config.method,
        task,
        folder,
        rounds=config.rounds,
        evaluate_every=NEVER,
        roster=roster,
        settings=FlowerSettings(measure_global=False),
    )


def built_in(config: RunConfig, folder: Path, workers: int) -> Iterator[Round]:
    """The rounds of a config on the built-in engine."""
    task, data, roster = assemble(config)
    return simulate(
        config.method,
        task,
        data,
        roster,
        rounds=config.rounds,
        folder=folder,
        workers=workers,
        evaluate_every=NEVER,
    )


def on_ray(config: RunConfig, folder: Path, workers: int) -> Iterator[Round]:
    """The same on Ray, which is started and stopped."""
    done: list[Round] = []
    settings = FlowerSettings(measure_global=False)
    folder.mkdir(parents=True)
    run_on_ray(config, folder, workers, done.append, settings)
    return iter(done)


def overhead(folder: Path, workers: int) -> list[float]:
    """Seconds of each round beyond training; the last, which is measured, does not count."""
    lines = RunRecord(folder).timing[1:-1]
    return [line["seconds"] - line["phases"]["train"] / workers for line in lines]


def main() -> None:
    """Measure each engine."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    config = RunConfig.of(
        algorithm="heterofl",
        num_clients=CLIENTS,
        rounds=rounds + 2,
        epochs=1,
        evaluate_every=NEVER,
    )
    cores = default_workers("cpu")
    engines: dict[str, tuple[Callable[..., Iterator[Round]], int]] = {
        "built_in": (partial(built_in, workers=1), 1),
        "grid": (on_grid, 1),
        f"built_in_{cores}": (partial(built_in, workers=cores), cores),
        f"ray_{cores}": (partial(on_ray, workers=cores), cores),
    }
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for engine, (play, workers) in engines.items():
            folder, start = Path(name) / engine, time.perf_counter()
            for _ in play(config, folder):
                pass
            whole = time.perf_counter() - start
            record = RunRecord(folder)
            began = whole - sum(line["seconds"] for line in record.timing)
            seconds = statistics.median(overhead(folder, workers))
            found |= {f"{engine}_overhead_seconds": seconds, f"{engine}_start_seconds": began}
            train = statistics.median(line["phases"]["train"] for line in record.timing[1:-1])
            print(
                f"{engine:12} beyond training {seconds:6.3f} s per round, "
                f"training {train:6.3f} s, start and stop {began:5.1f} s",
                flush=True,
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
