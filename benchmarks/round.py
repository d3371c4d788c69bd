"""One round of FedAvg on HAR against a plain PyTorch loop that does the same steps.

    SUBFLOT_DATA=... python benchmarks/round.py [rounds]

30 users, HARCNN, batch 32, 5 epochs, no evaluation on either side. Rounds of the engine with one
worker, of the loop, and of the engine with two workers take turns, in one order and then in the
other; all sides use one thread per process. Prints CPU seconds of the engine as a multiple of the
loop's, and wall seconds of two workers as a multiple of the loop's: each round is compared with the
loop's in the same minute, for a machine may be a third slower in the next, and of these ratios the
median is taken.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot import RunConfig
from subflot.algorithms import make
from subflot.data.federated import FederatedData
from subflot.experiments.runner import assemble
from subflot.simulation import simulate
from subflot.task import Task

NEVER = 10**6


def plain_loop(task: Task, data: FederatedData) -> Iterator[dict[str, Tensor]]:
    """FedAvg as one would write it in an afternoon: one model, loaded and trained in turn."""
    model, local = task.build(task.initial), task.local
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    clients = [data.train(client) for client in range(data.num_clients)]
    while True:
        total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        for examples in clients:
            model.load_state_dict(weights)
            model.train()
            train(model, examples.inputs, examples.labels, local.learning_rate)
            for name, tensor in model.state_dict().items():
                total[name] += tensor * len(examples)
        count = sum(len(examples) for examples in clients)
        weights = {name: tensor / count for name, tensor in total.items()}
        yield weights


def train(model: nn.Module, inputs: Tensor, labels: Tensor, learning_rate: float) -> None:
    """Five epochs of batches of 32."""
    optimiser = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(5):
        for chosen in torch.randperm(len(labels)).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
            optimiser.step()


def timed(step: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of this process, and wall seconds, of one step."""
    cpu, wall = time.process_time(), time.perf_counter()
    step()
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Measure all sides in turn."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    config = RunConfig.of(
        algorithm="fedavg", data="har", model="harcnn", partition="by_group", rounds=NEVER
    )
    task, data, roster = assemble(config)
    one, two = (
        simulate(
            make("fedavg"), task, data, roster, rounds=NEVER, evaluate_every=NEVER, workers=count
        )
        for count in (1, 2)
    )
    sides: dict[str, Iterator[object]] = {
        "one_worker": one,
        "plain_loop": plain_loop(task, data),
        "two_workers": two,
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    order = list(sides.items())
    for number in range(rounds + 1):
        order.reverse()
        for name, side in order:
            found = timed(partial(next, side))
            if number:  # The first round warms up.
                times[name].append(found)
                print(f"{name:12} cpu {found[0]:6.2f} s  wall {found[1]:6.2f} s", flush=True)
    loop = times["plain_loop"]
    cpu = [mine[0] / plain[0] for mine, plain in zip(times["one_worker"], loop, strict=True)]
    wall = [mine[1] / plain[1] for mine, plain in zip(times["two_workers"], loop, strict=True)]
    print(
        json.dumps(
            {
                "cpu_ratio_to_plain_loop": statistics.median(cpu),
                "wall_ratio_two_workers": statistics.median(wall),
                "cpu_ratios": cpu,
                "wall_ratios": wall,
                "plain_loop_cpu_seconds": statistics.median(found[0] for found in loop),
                "plain_loop_wall_seconds": statistics.median(found[1] for found in loop),
            }
        )
    )


if __name__ == "__main__":
    main()
