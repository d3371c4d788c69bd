"""FlexFL: layers that are mostly silent are narrowed more, and large models learn from small ones.

Paper: "FlexFL: Heterogeneous Federated Learning via APoZ-Guided Flexible Pruning in Uncertain
Scenarios", TCAD 2024, arXiv:2407.12729.

Before the first round the server trains the full model on proxy data and measures the average
percentage of zeros (APoZ) of each layer. A pool of submodels narrows layers with many zeros and
many parameters more than others. A client also distils the smaller members of the pool, cut
anew from its weights in every batch, into the model that it trains.

Where this departs from the paper: the pool has a member for each pruning rate of the clients, of at
most the parameters of the uniform model of that rate, in place of fixed percentages; clients get
the largest member that fits, and their room is certain; proxy data come from the training data, not
from the test data; zeros are counted where the next layers read, so after a pooling where there
is one; a residual sum and the layers inside its blocks are one group.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from subflot.algorithms.activations import watch
from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.widths import (
    Sizes,
    as_pool,
    as_sizes,
    budget_of,
    first_channels,
    fitted,
    is_inside,
    largest_that_fits,
    narrowed,
    num_parameters,
    sizes_at,
)
from subflot.channels import ChannelMap, Channels, take
from subflot.channels.resize import state_of
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task, weights_of
from subflot.training import Objective, batches
from subflot.training.local import seeded
from subflot.weights import Weights

POOL, ZEROS, TEACHERS = "pool", "zeros", "teachers"
MEASURED_SHARE = 0.2
"""Of the proxy data, which the full model is not trained on."""
LEAST_RATIO = 0.01


@dataclass(frozen=True)
class FlexFL(FedAvg):
    """Submodels of uneven widths, with distillation from the smaller ones inside.

    Attributes:
        temperature: T of the distillation.
        distillation_weight: gamma; the divergence is a mean over batch and classes.
        proxy_epochs: for which the full model is trained before its zeros are counted.
        proxy_learning_rate: of that training, by Adam.
    """

    name: ClassVar[str] = "flexfl"
    version: ClassVar[int] = 2  # Teachers had dropout on.
    paper: ClassVar[str] = "TCAD 2024, arXiv:2407.12729"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"distillation_weight": (0.1, 1.0, 10.0)}
    ignores_budgets: ClassVar[bool] = False

    temperature: float = 3.0
    distillation_weight: float = 10.0
    proxy_epochs: int = 100
    proxy_learning_rate: float = 0.001

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SubflotError(f"temperature is {self.temperature}", hint="a positive number")

    # ----- before the first round

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        spaces = task.channels.prunable
        rates = sorted({client.pruning_rate for client in clients} - {0.0}, reverse=True)
        zeros = dict.fromkeys(spaces, 0.0)
        if rates:
            zeros = self._zeros(task, turn)
        pool = make_pool(task, wanted_shares(task, zeros), rates)
        extras = {
            POOL: as_pool(task.channels, pool),
            ZEROS: torch.tensor([zeros[space] for space in spaces]),
        }
        return State(task.initial, extras)

    def _zeros(self, task: Task, turn: Turn) -> dict[str, float]:
        if task.proxy is None or not len(task.proxy):
            raise SubflotError(
                "flexfl needs examples on the server to find how wide each layer should be",
                hint="set proxy_share to 0.02 or so, or give the task a `proxy`",
            )
        draw = turn.generator("proxy")
        order = torch.randperm(len(task.proxy), generator=draw)
        cut = max(1, round(MEASURED_SHARE * len(order)))
        seen, held_out = order[cut:] if cut < len(order) else order, order[:cut]
        weights = self._trained_on(
            task, Examples(task.proxy.inputs[seen], task.proxy.labels[seen]), draw
        )
        return percentage_of_zeros(task, weights, task.proxy.inputs[held_out])

    def _trained_on(self, task: Task, examples: Examples, draw: torch.Generator) -> Weights:
        """Train the full model; a lone example stands twice, for batch norm has no spread."""
        inputs, labels = examples.inputs.to(task.device), examples.labels.to(task.device)
        if len(labels) == 1:
            inputs, labels = inputs.repeat_interleave(2, 0), labels.repeat_interleave(2, 0)
        seed = int(torch.randint(2**63 - 1, (), generator=draw))
        with task.lend(task.initial) as model, seeded(seed, task.device):
            model.train()
            parameters = [p for p in model.parameters() if p.requires_grad]
            optimiser = torch.optim.Adam(parameters, lr=self.proxy_learning_rate)
            for some in batches(len(labels), task.local.batch_size, self.proxy_epochs, draw):
                optimiser.zero_grad(set_to_none=True)
                task.loss(model(inputs[some]), labels[some]).backward()
                optimiser.step()
            return weights_of(model)

    # ----- in every round

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        whole = {space: task.channels.sizes[space] for space in task.channels.prunable}
        return first_channels(fitted(task, state.extras[POOL], whole, client.pruning_rate)[1])

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        sent = super().download(task, state, client, turn)
        own = {space: len(index) for space, index in sent.kept.items()}
        members = [as_sizes(task.channels, row) for row in state.extras[POOL]]
        teachers = [sizes for sizes in members if is_inside(sizes, own) and sizes != own]
        if not teachers or not self.distillation_weight:
            return sent
        return replace(sent, extras={TEACHERS: as_pool(task.channels, teachers)})

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective | None:
        if TEACHERS not in download.extras:
            return None
        own = task.channels.resized({s: len(index) for s, index in download.kept.items()})
        teachers = [
            Teacher(task, own, as_sizes(own, row), download.weights)
            for row in download.extras[TEACHERS]
        ]

        def loss(model: nn.Module, batch: Examples) -> Tensor:
            logits = model(batch.inputs)
            taught = [teacher.logits(model, batch.inputs) for teacher in teachers]
            distance = divergence(logits, taught, self.temperature)
            return task.loss(logits, batch.labels) + self.distillation_weight * distance

        return loss


class Teacher:
    """A submodel of a model that is being trained, which follows its weights."""

    def __init__(self, task: Task, own: ChannelMap, sizes: Sizes, weights: Weights) -> None:
        self.own, self.sizes = own, sizes
        self.module = task.build(take(weights, own, first_channels(sizes)))
        # As in training each batch is normalised by its own statistics, but nothing is dropped.
        for module in self.module.eval().modules():
            module.train(isinstance(module, _BatchNorm))
        self.names = [name for name, _ in self.module.named_parameters()]

    @torch.no_grad()
    def logits(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Answer as the submodel that the model holds now."""
        state = state_of(model)
        part = narrowed({name: state[name] for name in self.names}, self.own, self.sizes)
        answer: Tensor = torch.func.functional_call(self.module, part, (inputs,))
        return answer


def divergence(logits: Tensor, taught: Sequence[Tensor], temperature: float) -> Tensor:
    """Mean over teachers, batch and classes of what sets a model's answers apart from theirs."""
    answers = F.log_softmax(logits / temperature, dim=1)
    each = [
        F.kl_div(answers, F.softmax(teacher / temperature, dim=1), reduction="none").mean()
        for teacher in taught
    ]
    return temperature**2 * torch.stack(each).mean()


def percentage_of_zeros(task: Task, weights: Weights, inputs: Tensor) -> dict[str, float]:
    """Measure APoZ for every space: the share of zeros among what is read of its group.

    What is never rectified, as the narrow ends of inverted residual blocks, has none and counts
    only in a group of its own.
    """
    found: dict[str, list[float]] = {space: [] for space in task.channels.prunable}

    def count(space: str, values: Tensor) -> None:
        found[space].append(float((values == 0).sum() / values.numel()))

    watch(task, weights, inputs, count)
    zeros = {}
    for group in stages(task.channels):
        shares = [share for space in group for share in found[space] if share > 0]
        zeros.update(dict.fromkeys(group, sum(shares) / max(1, len(shares))))
    return zeros


def wanted_shares(task: Task, zeros: Mapping[str, float]) -> dict[str, float]:
    """Return q, how wide each space should be beside the others: less where it is silent and large.

    q = 1 - APoZ log(P) / log(largest P), where P counts the weights that make a group's channels.
    """
    made = {}
    for group in stages(task.channels):
        makers = {name for space in group for name, _ in task.channels.producers.get(space, ())}
        count = sum(task.initial[name].numel() for name in makers)
        made.update(dict.fromkeys(group, max(2, count)))
    most = math.log(max(made.values()))
    return {space: 1 - zeros[space] * math.log(count) / most for space, count in made.items()}


def make_pool(task: Task, shares: Mapping[str, float], rates: Sequence[float]) -> list[Sizes]:
    """Make a member for each rate, as wide as its budget allows, and the full model behind them."""
    pool: list[Sizes] = [_member(task, shares, rate) for rate in rates]
    pool.append({space: task.channels.sizes[space] for space in task.channels.prunable})
    return [sizes for place, sizes in enumerate(pool) if sizes not in pool[:place]]


def _member(task: Task, shares: Mapping[str, float], rate: float) -> Sizes:
    budget = budget_of(task, rate)

    def sizes(scale: float) -> Sizes:
        return sizes_at(task.channels, {s: min(1.0, scale * share) for s, share in shares.items()})

    def fits(scale: float) -> bool:
        return num_parameters(task, sizes(scale)) <= budget

    return sizes(largest_that_fits(fits, 1 / max(LEAST_RATIO, min(shares.values()))))


def stages(channels: ChannelMap) -> list[tuple[str, ...]]:
    """Partition the prunable spaces: a residual sum goes with the layers inside its blocks.

    Those are the spaces that are read only by layers which write into the sum.
    """
    makes = {name: space for space, makers in channels.producers.items() for name, _ in makers}
    head = {space: group[0] for group in channels.groups() for space in group}
    for space in channels.prunable:
        readers = [
            name for name, axis in channels.members(space) if (name, axis) in channels.inputs
        ]
        written = {makes.get(name) for name in readers}
        if len(written) == 1:
            (target,) = written
            if target in head and len(channels.producers[target]) > 1:
                old, new = head[space], head[target]
                head = {s: new if first == old else first for s, first in head.items()}
    groups: dict[str, list[str]] = {}
    for space in channels.prunable:
        groups.setdefault(head[space], []).append(space)
    return [tuple(group) for group in groups.values()]
