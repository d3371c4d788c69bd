"""HeteroFL: every client trains the first channels of every layer.

Paper: "HeteroFL: Computation and Communication Efficient Federated Learning for Heterogeneous
Clients", ICLR 2021, arXiv:2010.01264.

Submodels are nested and fixed; each entry is averaged over the clients that own it.

Of the paper's three stabilisers, static batch norm is how every method is measured here: statistics
are recomputed before a model is tested. The other two are settings, off by default, so that all
methods train with the same loss. Beside them there is kept scale (`scale`), which is not of the
paper, to see what it gives to channels cut by position. Another departure from the paper's code:
uploads count by their examples, as for every method here.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from subflot.algorithms.averaging import Restriction, owner_average
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
from subflot.algorithms.cut import CutFedAvg
from subflot.algorithms.scaler import scaled
from subflot.channels import ChannelMap, Channels, Segment
from subflot.channels.keep import prefix
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import Objective
from subflot.weights import Weights

LABELS = "labels"
"""Which classes a client has: true or false for each."""


@dataclass(frozen=True)
class HeteroFL(CutFedAvg):
    """Nested submodels, averaged over their owners.

    Attributes:
        scaler: in training, divide what layers put out by the client's width.
        masked_loss: logits of classes that a client does not have count as zero in its loss and
            where its models are measured, and its rows of the classifier for them are not averaged.
        scale: whether layers keep their scale on the client when their inputs are cut.
    """

    name: ClassVar[str] = "heterofl"
    paper: ClassVar[str] = "ICLR 2021, arXiv:2010.01264"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "scaler": (False, True),
        "scale": (False, True),
    }

    scaler: bool = False
    masked_loss: bool = False

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        return prefix(task.channels, client.pruning_rate)

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective | None:
        if not (self.scaler or self.masked_loss):
            return None
        width = 1 - context.client.pruning_rate if self.scaler else 1.0
        own = is_present(task, context.examples).to(task.device) if self.masked_loss else None

        def loss(model: nn.Module, batch: Examples) -> Tensor:
            with scaled(model, task.channels, width):
                logits = model(batch.inputs)
            if own is not None:
                logits = logits.where(own, 0.0)
            return task.loss(logits, batch.labels)

        return loss

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        upload, memory = super().train(task, download, context)
        if self.masked_loss:
            upload = replace(upload, extras={LABELS: is_present(task, context.examples)})
        return upload, memory

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        return self._masked(task, download.weights, context)

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        return self._masked(task, upload.weights, context)

    def _masked(self, task: Task, weights: Weights, context: ClientContext) -> Weights:
        if not self.masked_loss:
            return weights
        return silenced(weights, task.channels, is_present(task, context.examples))

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        restrict = only_own_classes(task.channels) if self.masked_loss else None
        weights = owner_average(state.weights, task.channels, arrivals, restrict)
        return State(weights, state.extras)


def only_own_classes(channels: ChannelMap) -> Restriction:
    """Let a client count, in the classifier, for the classes alone that it says it has."""
    space = class_space(channels)
    whole = (Segment(space),)

    def restrict(arrival: Arrival, name: str, owned: Tensor) -> Tensor:
        for axis, segments in enumerate(channels.axes[name]):
            if segments == whole:
                is_own = _claimed(arrival, channels.sizes[space])
                owned = owned & is_own.view(-1, *(1,) * (len(channels.axes[name]) - axis - 1))
        return owned

    return restrict


def silenced(weights: Weights, channels: ChannelMap, is_own: Tensor) -> dict[str, Tensor]:
    """Return weights with which a model says zero for all classes but its own."""
    whole = (Segment(class_space(channels)),)
    result = dict(weights)
    for name, tensor in weights.items():
        for axis, segments in enumerate(channels.axes[name]):
            if segments == whole:
                mask = is_own.to(tensor.device).view(-1, *(1,) * (tensor.ndim - axis - 1))
                result[name] = result[name] * mask
    return result


def class_space(channels: ChannelMap) -> str:
    """Find the space of the model's outputs."""
    found = [space for space, reason in channels.frozen.items() if reason.text == "output"]
    if len(found) != 1:
        raise SubflotError(
            f"the model has {len(found)} layers of outputs, expected one with a row for each class",
            hint="set masked_loss=false",
        )
    return found[0]


def _claimed(arrival: Arrival, num_classes: int) -> Tensor:
    """The classes that a client says it has; one that does not say it properly has none."""
    claim = arrival.upload.extras.get(LABELS)
    if claim is None or claim.shape != (num_classes,) or claim.dtype != torch.bool:
        return torch.zeros(num_classes, dtype=torch.bool)
    return claim


def is_present(task: Task, examples: Examples) -> Tensor:
    """Say of each class whether there is an example of it."""
    num_classes = task.channels.sizes[class_space(task.channels)]
    return torch.bincount(examples.labels, minlength=num_classes) > 0
