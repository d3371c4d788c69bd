"""What one hostile client of twenty does to the others, by attack and way of merging.

    python benchmarks/hostile.py                     # all of it
    python benchmarks/hostile.py fedavg clipped      # one method, `mean` and one way of merging

On the bundled digits, 20 clients that hold all, three quarters, half or a quarter of the channels;
the hostile one holds all. Shown is the mean accuracy of the 19 others, on their own test examples,
of the model that they receive in the last round and of the same model when they have trained it.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from subflot import LocalTraining, RunConfig, make, simulate
from subflot.algorithms.base import Algorithm, Client, ClientContext, Download, Memory, Upload
from subflot.experiments.runner import assemble
from subflot.simulation.merging import MERGING
from subflot.task import Task

METHODS = ("subflot-plus", "heterofl", "fedavg")
NUM_CLIENTS, ROUNDS, HOSTILE = 20, 6, 0
RATES = (0.0, 0.25, 0.5, 0.75)
LOCAL = LocalTraining(epochs=2, batch_size=32, learning_rate=0.05)


def moved(download: Download, upload: Upload, factor: float) -> Upload:
    """Multiply the change that training made."""
    weights = {
        name: sent + factor * (upload.weights[name] - sent) if sent.is_floating_point() else sent
        for name, sent in download.weights.items()
    }
    return replace(upload, weights=weights)


def noise(download: Download, upload: Upload, context: ClientContext) -> Upload:
    """Send noise of deviation one for what was trained."""
    drawn = context.generator("noise")
    weights = {
        name: torch.randn(t.shape, generator=drawn) if t.is_floating_point() else t
        for name, t in upload.weights.items()
    }
    return replace(upload, weights=weights)


def huge(upload: Upload) -> Upload:
    """Send 1e30 everywhere."""
    weights = {
        name: torch.full_like(t, 1e30) if t.is_floating_point() else t
        for name, t in upload.weights.items()
    }
    return replace(upload, weights=weights)


Attack = Callable[[Download, Upload, ClientContext, dict[str, Any]], Upload]
ATTACKS: dict[str, Attack] = {
    "none": lambda download, upload, context, seen: upload,
    "x10": lambda download, upload, context, seen: moved(download, upload, 10.0),
    "x1000": lambda download, upload, context, seen: moved(download, upload, 1000.0),
    "flip-x20": lambda download, upload, context, seen: moved(download, upload, -20.0),
    "noise": lambda download, upload, context, seen: noise(download, upload, context),
    "replay": lambda download, upload, context, seen: seen.setdefault("first", upload),
    "counts": lambda download, upload, context, seen: replace(
        noise(download, upload, context), num_examples=10**12 - 1
    ),
    "1e30": lambda download, upload, context, seen: huge(upload),
}


def hostile(name: str, attack: Attack) -> Algorithm:
    """Make a method one of whose clients attacks."""
    kind, seen = type(make(name)), dict[str, Any]()

    def train(
        self: Algorithm, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        upload, memory = kind.train(self, task, download, context)
        if context.client.id == HOSTILE:
            upload = attack(download, upload, context, seen)
        return upload, memory

    changed: Algorithm = type(kind.__name__, (kind,), {"train": train})()
    return changed


def accuracies(
    algorithm: Algorithm, merging: str, clients: list[Client], start: tuple[Task, Any]
) -> dict[str, Any]:
    """Run a method; return how the honest clients end, and how many uploads were left out."""
    task, data = start
    rejected, line = 0, dict[str, Any]()
    rounds = simulate(algorithm, task, data, clients, rounds=ROUNDS, workers=1, merging=merging)
    try:
        for done in rounds:
            line = done.metrics
            rejected += line["num_rejected"]
    except Exception as error:
        return {"ended": str(error).partition("\n")[0], "rejected": rejected}
    rows = line["clients"]
    honest = [at for at, client in enumerate(rows["client"]) if client != HOSTILE]
    found = {
        told: 100 * sum(rows[f"{told}_correct"][at] / rows["num_test"][at] for at in honest)
        for told in ("extracted", "trained")
    }
    return {**{told: total / len(honest) for told, total in found.items()}, "rejected": rejected}


def shown(found: dict[str, Any]) -> str:
    """Write a cell of the table."""
    if "ended" in found:
        return "run ended"
    left_out = f" ({found['rejected']})" if found["rejected"] else ""
    return f"{found['extracted']:.1f} / {found['trained']:.1f}{left_out}"


def main() -> None:
    """Print a table and a line of JSON."""
    methods = [name for name in METHODS if name in sys.argv[1:]] or METHODS
    ways = [way for way in MERGING if way in sys.argv[1:] or way == "mean"]
    ways = ways if len(ways) > 1 else list(MERGING)
    config = RunConfig.of(num_clients=NUM_CLIENTS, concentration=1.0)
    task, data, _ = assemble(config)
    start = (replace(task, local=LOCAL), data)
    clients = [Client(number, RATES[number % len(RATES)]) for number in range(NUM_CLIENTS)]
    results: dict[str, Any] = {}
    for name in methods:
        without = accuracies(make(name), "mean", clients[1:], start)
        own = results[name] = {"without": without}
        print(f"\n{name}: without the hostile client {shown(without)}", flush=True)
        print(f"| attack | {' | '.join(ways)} |\n|---{'|---' * len(ways)}|")
        for attack, act in ATTACKS.items():
            found = {way: accuracies(hostile(name, act), way, clients, start) for way in ways}
            own[attack] = found
            print(f"| {attack} | {' | '.join(map(shown, found.values()))} |", flush=True)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
