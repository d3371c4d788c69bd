"""FedFomo: clients mix those models of others that help on their own validation examples.

Paper: "Personalized Federated Learning with First Order Model Optimization", ICLR 2021,
arXiv:2012.08565.

A client receives its own last model and those of some others. It weighs each by how much it lowers
the validation loss of the model that the client last started from, per unit of distance; trains
from the mixture; and tells the server what each was worth, which sends the more useful ones next.

Where this departs from the paper's code: distances are Euclidean, as in the paper; if no model
helps, the client's own is kept as it was trained; what models were worth is brought to the same
scale by the sum of their absolute values, which is never zero by chance; and averages of clusters
are not among the models offered. A client without examples set apart for validation sets a fifth
of its training examples apart for good. Running statistics are taken from the validation inputs, as
for every model that is measured. A client downloads up to `num_others + 1` models in a round.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from subflot.algorithms.base import (
    Arrival,
    Client,
    ClientContext,
    Download,
    Memory,
    State,
    Turn,
    Upload,
)
from subflot.algorithms.personal import Individual, Mixture, distance, overlap
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.seeding import generator
from subflot.task import Task
from subflot.training import measure, recalibrate
from subflot.weights import Weights

VALIDATION_SHARE = 0.2
NEAR = 1e-5
"""Added to distances: a model may be offered to a client that stands there."""
EXPLORATION, EXPLORATION_DECAY = 0.3, 0.05
"""Chance in the first round that a model is drawn at random, and what it loses each round."""


@dataclass(frozen=True)
class FedFomo(Individual):
    """First-order model optimisation.

    Attributes:
        num_others: M, models of other clients that a client receives; 0 is training on one's own.
    """

    name: ClassVar[str] = "fedfomo"
    paper: ClassVar[str] = "ICLR 2021, arXiv:2012.08565"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"num_others": (5, 10)}

    num_others: int = 5

    def __post_init__(self) -> None:
        if self.num_others < 0:
            raise SubflotError(f"num_others is {self.num_others}", hint="at least 0")

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        return State({}, {"affinity": torch.zeros(0, 0)})

    # ----- on the server

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        own = self.own(task, state, client, turn)
        extras = {}
        for slot, other in enumerate(self.offered(state, client, turn)):
            filled = overlap(own, state.history[other], task.channels).filled
            extras.update({f"{slot}/{name}": tensor for name, tensor in filled.items()})
        return Download(own, extras=extras)

    def offered(self, state: State, client: Client, turn: Turn) -> list[int]:
        """Choose whose models a client receives: mostly those that were worth most to it."""
        others = [other for other in sorted(state.history) if other != client.id]
        draw = turn.generator("offered", client.id)
        shuffled = [others[i] for i in torch.randperm(len(others), generator=draw).tolist()]
        worth = widened(state.extras["affinity"], 1 + max([client.id, *others]))[client.id]
        chance = max(0.0, EXPLORATION - EXPLORATION_DECAY * (turn.round - 1))
        chosen: list[int] = []
        # Shuffled and stably sorted: ties are drawn.
        best_last = sorted(shuffled, key=lambda other: float(worth[other]))
        while best_last and len(chosen) < self.num_others:
            is_random = float(torch.rand((), generator=draw)) < chance
            at = int(torch.randint(len(best_last), (), generator=draw)) if is_random else -1
            chosen.append(best_last.pop(at))
        return chosen

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        affinity = state.extras["affinity"].clone()
        for arrival in arrivals:
            # Whose models they were is known here; a client need not be believed.
            others = self.offered(state, arrival.client, turn)
            gains = arrival.upload.extras.get("gains", torch.zeros(0))
            if gains.shape != (len(others),) or gains.dtype != affinity.dtype:
                continue
            total = float(gains.abs().sum())
            if total > 0:
                affinity = widened(affinity, 1 + max([arrival.client.id, *others]))
                affinity[arrival.client.id, others] += gains / total
        return State({}, {"affinity": affinity})

    # ----- on the client

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        training, validation = held_out(context)
        base, gains = self._mixed(task, download, context, validation)
        upload, _ = super().train(
            task, replace(download, weights=base), replace(context, examples=training)
        )
        return replace(upload, extras={"gains": gains[1:]}), base

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        return self._mixed(task, download, context, held_out(context)[1])[0]

    def _mixed(
        self, task: Task, download: Download, context: ClientContext, validation: Examples
    ) -> tuple[Weights, Tensor]:
        """Return the model to train from, and what each model was worth, the own one first."""
        own, names = download.weights, list(download.weights)
        num_others = len(download.extras) // len(names)
        offered = [own] + [
            {name: download.extras[f"{slot}/{name}"] for name in names}
            for slot in range(num_others)
        ]
        if not num_others or not len(validation):
            return own, torch.zeros(len(offered))
        base = overlap(own, context.memory or own, task.channels).filled
        before = _loss(task, base, validation)
        losses = torch.tensor([_loss(task, weights, validation) for weights in offered])
        away = [distance(base, weights, task.parameters) for weights in offered]
        gains = worths(before, losses, torch.tensor(away))
        mixture = Mixture()
        for weights, share in zip(offered, shares(gains).tolist(), strict=True):
            if share:
                mixture.add(weights, share)
        return mixture.total or own, gains


@dataclass(frozen=True)
class FedFomoSub(FedFomo):
    """FedFomo on submodels of the first channels."""

    name: ClassVar[str] = "fedfomo-sub"
    ignores_budgets: ClassVar[bool] = False


def worths(before: float, losses: Tensor, distances: Tensor) -> Tensor:
    """Return how much each model lowers the loss per unit of distance; one that diverged, zero."""
    gains = (before - losses) / (distances + NEAR)
    return gains.where(gains.isfinite(), torch.zeros(()))


def shares(gains: Tensor) -> Tensor:
    """Return what each model counts in the mixture: nothing if it does not help.

    They add up to 1, or all are zero if no model helps.

    Example:
        >>> shares(torch.tensor([1.0, -2.0, 3.0]))
        tensor([0.2500, 0.0000, 0.7500])
    """
    useful = gains.clamp(min=0)
    total = useful.sum()
    return useful / total if total > 0 else useful


def held_out(context: ClientContext) -> tuple[Examples, Examples]:
    """Return what a client trains on and what it judges models by; no example is in both.

    Without examples that the split set apart, a part of the training examples is, the same in every
    round. A client with a single one judges nothing.
    """
    examples = context.examples
    if context.validation is not None:
        return examples, context.validation
    count = max(1, round(VALIDATION_SHARE * len(examples))) if len(examples) > 1 else 0
    draw = generator(context.turn.seed, "validation", context.client.id)
    order = torch.randperm(len(examples), generator=draw)
    apart, rest = order[:count].sort().values, order[count:].sort().values
    return (
        Examples(examples.inputs[rest], examples.labels[rest]),
        Examples(examples.inputs[apart], examples.labels[apart]),
    )


def widened(affinity: Tensor, count: int) -> Tensor:
    """Return a table of at least `count` clients; new ones have had no worth to anyone."""
    more = max(0, count - len(affinity))
    return torch.nn.functional.pad(affinity, (0, more, 0, more))


def _loss(task: Task, weights: Weights, examples: Examples) -> float:
    with task.lend(weights) as model:
        recalibrate(task, model, examples.inputs)
        return measure(task, model, examples).loss / len(examples)
