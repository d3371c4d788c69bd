"""FedProto: clients share what a class looks like on average, and no weights.

Paper: "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243.

A prototype is the mean, over a client's examples of one class, of what goes into its classifier.
The server averages prototypes, and clients train their own models with a penalty on the distance
of their representations to the prototypes of all.

The paper lets models differ, but for the length of the representation. Budgets cut that too: an
embedding, for one, fits no smaller budget at full length. So a client has the first coordinates, as
many as its width leaves. It sends and receives these, and each coordinate is averaged over the
clients that have it.

Where this departs from the paper: prototypes are averaged by examples, with weights that add up to
one, where Eq. 6 divides by the number of clients once more and the authors' code counts clients
alike. As in that code, the penalty is the mean square over a batch and its coordinates, where a
class without a prototype counts as zero. Prototypes are taken of the model after training, in the
state in which it is measured, and not of the models that it passes through in the last epoch.
Answers are those of the client's classifier, which the authors' code measures too, and not the
nearest prototype. A class that nobody has in a round keeps its prototype. Where a classifier reads
positions, as a convolution does, a representation is their mean. The number of examples of each
class leaves the client, as in the paper.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

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
from subflot.algorithms.partly import PartlyShared
from subflot.channels.keep import prefix
from subflot.channels.resize import add_at, places, take
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import Objective, recalibrate
from subflot.training.evaluate import BATCH
from subflot.weights import Weights

PROTOTYPES = "prototypes"
"""A row for each class, a column for each coordinate."""
KNOWN = "known"
"""True where somebody had examples of the class and the coordinate."""
COUNTS = "counts"
"""A client's examples of each class."""


@dataclass(frozen=True)
class FedProto(PartlyShared):
    """Models of one's own, whose representations are pulled to shared prototypes.

    Attributes:
        pull_weight: lambda, of the penalty.
    """

    name: ClassVar[str] = "fedproto"
    paper: ClassVar[str] = "AAAI 2022, arXiv:2105.00243"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"pull_weight": (0.1, 1.0, 10.0)}
    ignores_budgets: ClassVar[bool] = False

    pull_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.pull_weight < math.inf:
            raise SubflotError(
                f"pull_weight is {self.pull_weight}", hint="zero or a positive number"
            )

    def private(self, task: Task) -> frozenset[str]:
        return frozenset(task.initial)

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        weight = task.initial[classifier(task)]
        none = weight.new_zeros(weight.shape[:2])
        return State({PROTOTYPES: none}, {KNOWN: none.bool()})

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        def first(table: Tensor) -> Tensor:
            name, kept = classifier(task), prefix(task.channels, client.pruning_rate)
            return take({name: table}, task.channels, kept)[name]

        known = first(state.extras[KNOWN])
        return Download({PROTOTYPES: first(state.weights[PROTOTYPES])}, extras={KNOWN: known})

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective:
        shared, known = (download.extras[n].to(task.device) for n in (PROTOTYPES, KNOWN))

        def loss(model: nn.Module, batch: Examples) -> Tensor:
            with _reading(model, classifier(task)) as read:
                plain = task.loss(model(batch.inputs), batch.labels)
            away = (read[-1] - shared[batch.labels]).where(known[batch.labels], 0.0)
            return plain + self.pull_weight * away.square().mean()

        return loss

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        # What is trained are the client's own weights; prototypes are no part of them.
        beside = replace(download, weights={}, extras={**download.extras, **download.weights})
        upload, memory = super().train(task, beside, context)
        own, counts = prototypes(task, _weights(task, memory), context.examples)
        # Of a class that it lacks a client returns what it received, and so tells nothing.
        table = own.where(counts[:, None] > 0, download.weights[PROTOTYPES])
        return replace(upload, weights={PROTOTYPES: table}, extras={COUNTS: counts}), memory

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        name, old = classifier(task), state.weights[PROTOTYPES]
        total, examples = old.new_zeros(old.shape), old.new_zeros(old.shape)
        for arrival in arrivals:
            table = arrival.upload.weights[PROTOTYPES]
            counts = _claimed(arrival.upload, len(old)).to(table)[:, None]
            kept = prefix(task.channels, arrival.client.pruning_rate)
            where = places(name, table, task.channels, kept)
            add_at(total, where, table * counts, 1)
            add_at(examples, where, counts.expand(table.shape), 1)
        known = state.extras[KNOWN] | (examples > 0)
        mean = torch.where(examples > 0, total / examples.clamp(min=1), old)
        return State({PROTOTYPES: mean}, {KNOWN: known})

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        return _weights(task, context.memory)


def classifier(task: Task) -> str:
    """Name the weight of the layer that makes the outputs, of shape (classes, coordinates, ...)."""
    channels = task.channels
    made = [
        name
        for space, reason in channels.frozen.items()
        if reason.text == "output"
        for name, axis in channels.producers.get(space, ())
        if axis == 0
    ]
    layers = dict(task.template.named_modules())
    for name in made if len(made) == 1 else ():
        path, _, tensor = name.rpartition(".")
        layer = layers.get(path)
        is_turned = isinstance(layer, _ConvTransposeNd)
        is_conv = isinstance(layer, _ConvNd) and layer.groups == 1 and not is_turned
        if tensor == "weight" and (isinstance(layer, nn.Linear) or is_conv):
            return name
    raise SubflotError(
        f"the outputs are made by {', '.join(made) or 'no layer'}; prototypes need one layer, "
        "linear or a convolution",
        hint="end the model with nn.Linear, or choose another method",
    )


@contextmanager
def _reading(model: nn.Module, name: str) -> Iterator[list[Tensor]]:
    """Note what goes into the classifier, a row per example, while the context lasts."""
    read: list[Tensor] = []

    def note(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
        (entered,) = given
        if isinstance(layer, nn.Linear):
            read.append(entered.flatten(1, -2).mean(1) if entered.dim() > 2 else entered)
        else:
            read.append(entered.flatten(2).mean(2))

    hook = model.get_submodule(name.rpartition(".")[0]).register_forward_pre_hook(note)
    try:
        yield read
    finally:
        hook.remove()


@torch.no_grad()
def prototypes(task: Task, weights: Weights, examples: Examples) -> tuple[Tensor, Tensor]:
    """Average a model's representations of each class, and count its examples.

    Returns shapes (classes, coordinates), zero for a class without examples, and (classes,).
    """
    name = classifier(task)
    total = weights[name].new_zeros(weights[name].shape[:2])
    with task.lend(weights) as model, _reading(model, name) as read:
        recalibrate(task, model, examples.inputs)
        model.eval()
        read.clear()
        for inputs in examples.inputs.split(BATCH):
            model(inputs.to(task.device))
        total.index_add_(0, examples.labels.cpu(), torch.cat(read).to(total))
    counts = torch.bincount(examples.labels.cpu(), minlength=len(total))
    return total / counts.clamp(min=1)[:, None], counts


def _weights(task: Task, memory: Memory) -> Weights:
    """The model that a client keeps, in the order of its tensors."""
    return {name: memory[name] for name in task.initial}


def _claimed(upload: Upload, num_classes: int) -> Tensor:
    """The examples of each class that a client says it has; none where that cannot be."""
    claim = upload.extras.get(COUNTS)
    none = torch.zeros(num_classes, dtype=torch.int64)
    if claim is None or claim.shape != none.shape or claim.dtype != none.dtype:
        return none
    is_sound = int(claim.min()) >= 0 and int(claim.max()) <= upload.num_examples
    return claim if is_sound and int(claim.sum()) == upload.num_examples else none
