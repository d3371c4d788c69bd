"""FedAvg: everyone trains the full model, the server takes the mean.

Paper: "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017,
arXiv:1602.05629.

Clients train from the global model and the server averages what they return, weighted by their
examples. Under budgets it has two readings: clients of every pruning rate train the full model
(`fedavg`, which ignores budgets), or only those that can hold it take part (`fedavg-full`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from subflot.algorithms.averaging import owner_average
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
    sample,
)
from subflot.channels import Channels, take
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import Objective, train_locally


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """The mean of full models. Methods that cut it change `kept`, others change `objective`."""

    name: ClassVar[str] = "fedavg"
    paper: ClassVar[str] = "AISTATS 2017, arXiv:1602.05629"
    ignores_budgets: ClassVar[bool] = True

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        """Choose the channels that a client trains; none named means all."""
        return {}

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective | None:
        """Return what local training makes small; None for the task's loss."""
        return None

    def pull(self, task: Task, download: Download, context: ClientContext) -> float:
        """Return how strongly local training is pulled to where it started."""
        return 0.0

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        return State(task.initial)

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        kept = self.kept(task, state, client, turn)
        return Download(take(state.weights, task.channels, kept), kept)

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        trained = train_locally(
            task,
            download.weights,
            context.examples,
            context.generator("batches"),
            objective=self.objective(task, download, context),
            pull=self.pull(task, download, context),
        )
        upload = Upload(
            trained.weights,
            len(context.examples),
            download.kept,
            metrics={"training_loss": trained.loss},
        )
        return upload, context.memory

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        return State(owner_average(state.weights, task.channels, arrivals), state.extras)


@dataclass(frozen=True)
class FedAvgFull(FedAvg):
    """FedAvg among those clients alone whose pruning rate is zero; the others never take part."""

    name: ClassVar[str] = "fedavg-full"
    ignores_budgets: ClassVar[bool] = False

    def invite(
        self, task: Task, state: State, clients: Sequence[Client], count: int, turn: Turn
    ) -> Sequence[Client]:
        able = [client for client in sample(clients, count, turn) if client.pruning_rate == 0]
        if not able:
            able = sample([c for c in clients if c.pruning_rate == 0], 1, turn)
        if not able:
            raise SubflotError(
                "no client can hold the full model",
                hint="`fedavg-full` needs a client with pruning_rate 0",
            )
        return able
