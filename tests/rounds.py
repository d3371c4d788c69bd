"""Rounds of a method without an engine: the steps in order, in one process, on tiny tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from subflot.algorithms.base import (
    Algorithm,
    Arrival,
    Client,
    ClientContext,
    Download,
    State,
    Turn,
    Upload,
    in_order,
)
from subflot.algorithms.check import fault_of
from subflot.data.federated import Examples
from subflot.task import LocalTraining, Task
from subflot.weights import Weights

RATES = (0.0, 0.25, 0.5, 0.75)
CLIENTS = [Client(number, rate) for number, rate in enumerate(RATES)]
FULL_CLIENTS = [Client(number) for number in range(3)]
CLASSES = 3
LOCAL = LocalTraining(epochs=1, batch_size=4, learning_rate=0.1)


class TinyNet(nn.Module):
    """A residual block, batch norm, a flatten with several pixels per channel, a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.inner = nn.Conv2d(8, 4, 3, padding=1)
        self.outer = nn.Conv2d(4, 8, 3, padding=1)
        self.hidden = nn.Linear(8 * 4, 12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = torch.relu(x + self.outer(torch.relu(self.inner(x))))
        x = nn.functional.max_pool2d(x, 2).flatten(1)
        logits: Tensor = self.head(torch.relu(self.hidden(x)))
        return logits


def tiny_task(local: LocalTraining = LOCAL) -> Task:
    torch.manual_seed(0)
    return Task.of(TinyNet(), torch.randn(2, 1, 4, 4), local)


def linear_task(*widths: int) -> Task:
    """A task of linear layers with rectifiers between: what a hand can follow."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return Task.of(nn.Sequential(*layers[:-1]), torch.randn(2, widths[0]), LOCAL)


def tiny_examples(client: int, count: int | None = None) -> Examples:
    """A few examples of a client, more for some clients than for others."""
    draw = torch.Generator().manual_seed(client)
    count = 6 + 3 * client if count is None else count
    labels = torch.randint(CLASSES, (count,), generator=draw)
    return Examples(torch.randn(count, 1, 4, 4, generator=draw), labels)


@dataclass(frozen=True)
class Part:
    """One client's part in a round."""

    client: Client
    context: ClientContext
    download: Download
    upload: Upload


def take_part(
    algorithm: Algorithm, task: Task, state: State, client: Client, turn: Turn, examples: Examples
) -> Part:
    """Let a client train; its upload has been checked and placed."""
    context = ClientContext(client, examples, {}, turn)
    download = algorithm.download(task, state, client, turn)
    upload, _ = algorithm.train(task, download, context)
    assert fault_of(task, download, upload) == ""
    placed = algorithm.place(task, state, client, upload, turn)
    return Part(client, context, download, placed)


def play(
    algorithm: Algorithm,
    task: Task,
    clients: Sequence[Client] = CLIENTS,
    *,
    rounds: int = 1,
    seed: int = 0,
    state: State | None = None,
    examples: Mapping[int, Examples] | None = None,
) -> tuple[State, list[Part]]:
    """Play rounds with all clients; return the last state and the parts of the last round."""
    task = algorithm.prepare(task)
    state = state or algorithm.start(task, clients, Turn(0, rounds, seed))
    parts: list[Part] = []
    for number in range(1, rounds + 1):
        turn = Turn(number, rounds, seed)
        invited = in_order(algorithm.invite(task, state, clients, len(clients), turn))
        parts = [
            take_part(
                algorithm, task, state, c, turn, examples[c.id] if examples else tiny_examples(c.id)
            )
            for c in invited
        ]
        arrivals = (Arrival(part.client, part.upload) for part in parts)
        state = algorithm.aggregate(task, state, arrivals, turn)
    return state, parts


def arrival(weights: Weights, examples: int, kept: Mapping[str, Tensor] | None = None) -> Arrival:
    """An upload made by hand."""
    return Arrival(Client(0), Upload(weights, examples, kept or {}))


def parameters_of(task: Task, pruning_rate: float) -> float:
    """What a client of this rate may train."""
    return task.cost(task.narrow(task.initial, pruning_rate)).parameters
