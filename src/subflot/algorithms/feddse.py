"""FedDSE: every client trains the channels that its own data activate most.

Paper: "FedDSE: Distribution-aware Sub-model Extraction for Federated Learning over
Resource-constrained Devices", WWW 2024, doi:10.1145/3589334.3645416.

A client runs the full model on its data and keeps in every layer the channels with the largest
activations, so that clients of unlike data train unlike channels and disturb each other less.

Where this departs from the code of a follow-up by some of the authors (the paper's own was not to
be had): uploads count by their examples and the old global model does not count as one more client
unless asked (`counts_old`); no logits are masked and nothing is scaled, as for every method here;
activations are read where the next layers take them in, and by absolute value, which is the same
behind a rectifier; those of a residual sum are added over all layers that read it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from subflot.algorithms.activations import watch
from subflot.algorithms.averaging import owner_average
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
from subflot.algorithms.fedavg import FedAvg
from subflot.channels import Channels, take
from subflot.channels.keep import largest, prefix
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.weights import Weights


@dataclass(frozen=True)
class FedDSE(FedAvg):
    """Submodels that the clients choose by their activations, averaged over their owners.

    A client trains what fits its budget, but it receives the full model and runs it forward once.

    Attributes:
        num_scored: examples of the client that the full model is run on, drawn anew every round;
            0 takes all.
        counts_old: the old global model counts as one more client, with the mean of their examples.
    """

    name: ClassVar[str] = "feddse"
    paper: ClassVar[str] = "WWW 2024"
    ignores_budgets: ClassVar[bool] = False

    num_scored: int = 128
    counts_old: bool = False

    def __post_init__(self) -> None:
        if self.num_scored < 0:
            raise SubflotError(
                f"num_scored is {self.num_scored}", hint="a number of examples, or 0 for all"
            )

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        kept = self._chosen(task, download, context)
        part = replace(download, weights=take(download.weights, task.channels, kept), kept=kept)
        return super().train(task, part, context)

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        return take(download.weights, task.channels, self._chosen(task, download, context))

    def _chosen(self, task: Task, download: Download, context: ClientContext) -> Channels:
        inputs = context.examples.inputs
        if self.num_scored:
            order = torch.randperm(len(inputs), generator=context.generator("scored"))
            inputs = inputs[order[: self.num_scored]]
        return most_active(task, download.weights, inputs, context.client.pruning_rate)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        if self.counts_old:
            arrivals = _and_old(arrivals, state.weights)
        return State(owner_average(state.weights, task.channels, arrivals), state.extras)


def most_active(
    task: Task, weights: Weights, inputs: Tensor, pruning_rate: float
) -> dict[str, Tensor]:
    """Keep the channels with the largest activations on some inputs, in their old order.

    Spaces whose activations cannot be seen keep the channels of the largest weights.
    """
    if pruning_rate == 0:
        return prefix(task.channels, 0)
    scores: dict[str, Tensor] = {}

    def add(space: str, values: Tensor) -> None:
        score = values.abs().sum(1, dtype=torch.float64).cpu()
        scores[space] = scores[space] + score if space in scores else score

    watch(task, weights, inputs, add)
    counts = task.channels.kept_sizes(pruning_rate)
    kept = {} if scores.keys() >= counts.keys() else largest(task.channels, pruning_rate, weights)
    for space, score in scores.items():
        order = score.argsort(descending=True, stable=True)
        kept[space] = order[: counts[space]].sort().values
    return kept


def _and_old(arrivals: Iterable[Arrival], weights: Weights) -> Iterator[Arrival]:
    """Let the old model follow the uploads as that of a client of average size."""
    counts = []
    for arrival in arrivals:
        counts.append(arrival.upload.num_examples)
        yield arrival
    if counts:
        yield Arrival(Client(-1), Upload(weights, round(sum(counts) / len(counts))))
