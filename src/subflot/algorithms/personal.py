"""Personalised methods in two forms: on full models, and on submodels that respect budgets.

They were made for full models. Within a budget a client holds the first channels of every layer,
as many as its pruning rate leaves. Means are taken over owners; two clients are compared where
both have channels; and what another client lacks is filled with one's own. With all rates at zero
both forms are equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from subflot.algorithms.base import Arrival, Client, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.channels import ChannelMap, Channels, put, take
from subflot.channels.keep import prefix
from subflot.task import Task
from subflot.weights import Weights


@dataclass(frozen=True)
class Personalised(FedAvg):
    """FedAvg whose clients end with models of their own.

    A subclass with `ignores_budgets = False` runs on submodels.
    """

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        return {} if self.ignores_budgets else prefix(task.channels, client.pruning_rate)


@dataclass(frozen=True)
class Individual(Personalised):
    """A method without a global model: the server keeps what each client last returned."""

    keeps_history: ClassVar[bool] = True
    has_global: ClassVar[bool] = False

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        return State({})

    def own(self, task: Task, state: State, client: Client, turn: Turn) -> Weights:
        """Return what a client last returned, at its present width; at first, the initial model."""
        first = take(task.initial, task.channels, self.kept(task, state, client, turn))
        if client.id not in state.history:
            return first
        return overlap(first, state.history[client.id], task.channels).filled

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        for _ in arrivals:
            pass
        return state


@dataclass(frozen=True)
class Overlap:
    """What two models of different widths have in common: the first channels of both."""

    own: Weights
    """The common part of one's own model."""
    other: Weights
    """The same part of the other model."""
    filled: Weights
    """The other model at one's own width, with one's own entries where it has none."""


def overlap(own: Weights, other: Weights, channels: ChannelMap) -> Overlap:
    """Lay another client's model over one's own; both hold the first channels of every space."""
    if all(tensor.shape == own[name].shape for name, tensor in other.items()):
        return Overlap(own, other, other)
    widths, their_widths = channels.sizes_of(own), channels.sizes_of(other)
    common = {s: torch.arange(min(widths[s], their_widths[s])) for s in channels.prunable}
    mine = take(own, channels.resized(widths), common)
    theirs = take(other, channels.resized(their_widths), common)
    values, owned = put(theirs, own, channels.resized(widths), common)
    filled = {name: torch.where(owned[name], values[name], tensor) for name, tensor in own.items()}
    return Overlap(mine, theirs, filled)


def inner(one: Weights, other: Weights, names: frozenset[str]) -> float:
    """Return the inner product of the named tensors of two models, taken as one vector each."""
    products = [torch.dot(one[n].flatten(), other[n].flatten()) for n in sorted(names & one.keys())]
    return float(torch.stack(products).sum())


def distance(one: Weights, other: Weights, names: frozenset[str]) -> float:
    """Return the Euclidean distance between the named tensors of two models."""
    each = [torch.dist(one[name], other[name]) for name in sorted(names & one.keys())]
    return float(torch.linalg.vector_norm(torch.stack(each)))


class Mixture:
    """A weighted sum of models that takes them one by one."""

    def __init__(self) -> None:
        self.total: dict[str, Tensor] = {}
        self.weight = 0.0

    @torch.no_grad()
    def add(self, weights: Weights, weight: float) -> None:
        """Add a model; counters, which hold no fractions, are those of the last."""
        self.weight += weight
        fractions = {n: tensor for n, tensor in weights.items() if tensor.is_floating_point()}
        if not self.total:
            self.total = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        self.total.update({n: t for n, t in weights.items() if n not in fractions})
        sums = [self.total[name] for name in fractions]
        torch._foreach_add_(sums, list(fractions.values()), alpha=weight)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Multiply what was added so far."""
        self.weight *= factor
        torch._foreach_mul_([t for t in self.total.values() if t.is_floating_point()], factor)
