"""A client's own part in a round: it trains what it received and measures it. Runs anywhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from subflot.algorithms.base import Algorithm, ClientContext, Download, Memory, Upload
from subflot.data.federated import Examples
from subflot.task import Task
from subflot.training import Measurement, measure, recalibrate
from subflot.weights import Weights

PHASES = EVALUATE, TRAIN = "evaluate", "train"
"""What a client spends its time on."""


@dataclass(frozen=True)
class Answer:
    """What a client made of its download."""

    upload: Upload
    memory: Memory
    """What it remembers from now on; it leaves the client only where the engine keeps it."""
    trained: Measurement | None
    extracted: Measurement | None
    parameters: float
    multiply_adds: float
    seconds: Mapping[str, float]


class Clock:
    """Seconds by phase."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self.seconds: dict[str, float] = dict(seconds or {})

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@torch.enable_grad()
def do_part(
    algorithm: Algorithm,
    task: Task,
    download: Download,
    context: ClientContext,
    test: Examples,
    is_measured: bool,
) -> Answer:
    """Train on the client; where models are measured, on its own test examples."""
    clock = Clock()

    def measured(weights: Weights | None) -> Measurement | None:
        if weights is None or not len(test):
            return None
        with task.lend(weights) as model:
            recalibrate(task, model, context.examples.inputs)
            return measure(task, model, test)

    with clock.phase(EVALUATE):
        received = algorithm.extracted(task, download, context) if is_measured else None
        extracted = measured(received)
    with clock.phase(TRAIN):
        upload, memory = algorithm.train(task, download, context)
    with clock.phase(EVALUATE):
        own = algorithm.trained(task, upload, replace(context, memory=memory))
        trained = measured(own) if is_measured else None
        cost = task.cost(own)
    return Answer(
        upload, memory, trained, extracted, cost.parameters, cost.multiply_adds, clock.seconds
    )
