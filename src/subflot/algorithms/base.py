"""The one interface that every method implements, and the messages that it exchanges."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from subflot.channels import Channels
from subflot.data.federated import Examples
from subflot.seeding import generator
from subflot.task import Task
from subflot.weights import Weights, num_bytes

Memory = Mapping[str, torch.Tensor]
"""What a client remembers from round to round: flat named tensors."""
Metrics = Mapping[str, float]
"""Numbers for the record, by name. A name like `moved/conv1` is about one layer; of these the
record keeps the mean over the clients of a round."""


@dataclass(frozen=True)
class Client:
    """What the server knows about a client."""

    id: int
    pruning_rate: float = 0.0
    offer: int | None = None
    """Which of its models the server offers, for methods that choose sizes and clients together."""


@dataclass(frozen=True)
class Turn:
    """When a step happens, and the randomness that it may use."""

    round: int
    rounds: int
    seed: int

    def generator(self, *names: str | int) -> torch.Generator:
        """Return the random stream of this round and these names."""
        return generator(self.seed, self.round, *names)


@dataclass(frozen=True)
class Place:
    """Where a client's last upload was merged, and when."""

    round: int
    channels: Channels = field(default_factory=dict)
    """Which channels of the global model it is; empty where nobody named any."""


@dataclass(frozen=True)
class State:
    """What the server knows between rounds."""

    weights: Weights
    """The global model; empty for methods without one."""
    extras: Weights = field(default_factory=dict)
    """Whatever else a method keeps, as named tensors."""
    history: Mapping[int, Weights] = field(default_factory=dict)
    """Client -> what it last uploaded; the engine keeps it for methods that ask for it."""
    places: Mapping[int, Place] = field(default_factory=dict)
    """Client -> where that was merged, kept likewise."""


@dataclass(frozen=True)
class Download:
    """What a client receives."""

    weights: Weights
    kept: Channels = field(default_factory=dict)
    """Which channels of the global model they are, if the server chose them."""
    extras: Weights = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)
    """For the record; not sent."""

    @property
    def num_bytes(self) -> int:
        """Bytes that cross the wire."""
        return num_bytes(self.weights) + num_bytes(self.extras)


@dataclass(frozen=True)
class Upload:
    """What a client returns."""

    weights: Weights
    num_examples: int
    kept: Channels = field(default_factory=dict)
    """Which channels of the global model they are, as trained; empty for all, or for the server
    to find out."""
    extras: Weights = field(default_factory=dict)
    metrics: Metrics = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes that cross the wire; channels that the server chose itself do not."""
        return num_bytes(self.weights) + num_bytes(self.extras)


@dataclass(frozen=True)
class Arrival:
    """An upload that was checked and placed, and whose it is."""

    client: Client
    upload: Upload
    shortened: float = 1.0
    """By what its change was multiplied because it was too long to be merged as it is."""


@dataclass(frozen=True)
class ClientContext:
    """What only the client holds."""

    client: Client
    examples: Examples
    memory: Memory
    turn: Turn
    validation: Examples | None = None
    """Examples that it does not train on, where the split sets some apart."""

    def generator(self, *names: str | int) -> torch.Generator:
        """Return the client's random stream of this round and these names."""
        return self.turn.generator(*names, self.client.id)


def sample(clients: Sequence[Client], count: int, turn: Turn) -> list[Client]:
    """Draw participants without replacement; the draw is the same for every method."""
    ordered = sorted(clients, key=lambda client: client.id)
    drawn = torch.randperm(len(ordered), generator=turn.generator("sample"))[:count]
    return [ordered[i] for i in sorted(drawn.tolist())]


def in_order(clients: Iterable[Client]) -> list[Client]:
    """Order a round's clients, the widest first: so they are served, and so they are merged.

    Sums of floating point depend on their order, which therefore must not depend on who is fast.
    """
    return sorted(clients, key=lambda client: (client.pruning_rate, client.id))


class Algorithm(ABC):
    """A federated method in four steps and some defaults.

    Fields are settings; nothing else is stored on `self`. Steps do not change their arguments.
    `download` and `place` run on the server, but in any of its processes: they see the state of
    the round's start and one client.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised when the method gives other numbers than before with the same settings."""
    paper: ClassVar[str] = ""
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    """Settings that its own paper tunes, or that decide how strong it is; at most two, each
    -> values to try, at most three; the default is one of them."""
    remark: ClassVar[str] = ""
    """What a table says beside its numbers, such as that the method had to be reconstructed."""
    keeps_history: ClassVar[bool] = False
    """Whether the server keeps each client's last upload."""
    takes_models: ClassVar[bool] = False
    """Whether clients may bring models of their own; those stand as their history, of round 0."""
    has_global: ClassVar[bool] = True
    """Whether `State.weights` is a model worth measuring."""
    needs_transport: ClassVar[bool] = False
    """Whether it solves transport problems, for which functions are compiled before the rounds."""
    ignores_budgets: ClassVar[bool] = False
    """Whether clients may train more than their pruning rate allows."""

    def prepare(self, task: Task) -> Task:
        """Return the task with what the method adds to the model, such as early exits."""
        return task

    @abstractmethod
    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        """Return the server's state before the first round."""

    def adopt(self, task: Task, state: State, clients: Sequence[Client]) -> State:
        """Return the state to start from when some clients brought models of their own.

        Args:
            task: the model.
            state: what `start` returned, with the models as history.
            clients: who there is in the first round.
        """
        return state

    def invite(
        self, task: Task, state: State, clients: Sequence[Client], count: int, turn: Turn
    ) -> Sequence[Client]:
        """Choose who takes part in a round."""
        return sample(clients, count, turn)

    @abstractmethod
    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        """Return what one client receives."""

    @abstractmethod
    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        """Train on the client; return what it sends and what it remembers."""

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        """Put an upload in the terms of the global model: full size, or with the channels it is."""
        return upload

    @abstractmethod
    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        """Merge a round into the next state. Arrivals come one by one, `in_order`."""

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights | None:
        """Return the model that a client has before it trains; None if there is none."""
        return download.weights or None

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        """Return the model that a client has after it trained; the memory is the new one."""
        return upload.weights
