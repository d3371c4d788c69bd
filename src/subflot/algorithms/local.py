"""Local: no federation at all, the yardstick of what a client can do by itself.

Every client starts from its part of the same initial model and goes on training it on its own
examples. Nothing is sent, and there is no global model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from subflot.algorithms.base import (
    Algorithm,
    Arrival,
    Client,
    ClientContext,
    Download,
    Memory,
    State,
    Turn,
    Upload,
)
from subflot.task import Task
from subflot.training import train_locally
from subflot.weights import Weights


@dataclass(frozen=True)
class Local(Algorithm):
    """Training on one's own."""

    name: ClassVar[str] = "local"
    has_global: ClassVar[bool] = False

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        return State({})

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        return Download({})

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        trained = train_locally(
            task, self._own(task, context), context.examples, context.generator("batches")
        )
        upload = Upload({}, len(context.examples), metrics={"training_loss": trained.loss})
        return upload, trained.weights

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        for _ in arrivals:
            pass
        return state

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        return self._own(task, context)

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        return context.memory

    def _own(self, task: Task, context: ClientContext) -> Weights:
        """The client's model; one whose pruning rate changed starts again."""
        first = task.narrow(task.initial, context.client.pruning_rate)
        fits = context.memory and all(t.shape == first[n].shape for n, t in context.memory.items())
        return context.memory if fits else first
