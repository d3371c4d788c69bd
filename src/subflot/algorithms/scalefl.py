"""ScaleFL: weak clients hold fewer blocks and fewer channels of each.

Paper: "ScaleFL: Resource-Adaptive Federated Learning with Heterogeneous Clients", CVPR 2023.

The network has exits in its later half. A client trains the part up to one of them, with the first
channels of every layer; all its exits learn together, and the shallow ones also imitate the
deepest. Each entry is averaged over the clients that hold it.

Where this departs from the paper's code: uploads count by their examples. A head has depthwise
separable convolutions, where the paper has three plain ones, and less where there is little room
for it (`heads.py`). The teacher gets no gradient, divergences are means over a batch, and
distillation is on (the code has it off by default). The code's scaler is a setting, off by default
as for HeteroFL. A model is judged by its deepest exit. The paper's table of widths is replaced by a
rule: at the depth of its level a client gets the widest part within its budget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.algorithms.exits import (
    ExitTask,
    add_exits,
    behind_shares,
    cuts_of,
    exits_of,
    nearest,
    num_classes_of,
    num_parameters,
    with_exits,
)
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.heads import Exit, strongest
from subflot.algorithms.scaler import scaled
from subflot.channels.blocks import Cut
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import Objective


@dataclass(frozen=True)
class ScaleFL(FedAvg):
    """Submodels by depth and width, with exits that imitate the deepest.

    A client of pruning rate 0 holds the whole network and its early heads, a little more than the
    plain network. All others train at most as many parameters as the model of their width; their
    multiply-adds may be more.

    Attributes:
        exits: L, heads with the network's own classifier; less in a network with fewer blocks. 1
            is a network without early exits, and submodels by width alone.
        first_exit: share of the blocks before the first exit; the others follow at equal distances.
        distillation: gamma, the weight of imitation; 0 switches it off.
        temperature: tau, by which logits are divided before they are imitated.
        warm_up: share of the rounds before imitation begins.
        scaler: in training, divide what layers put out by the client's width.
    """

    name: ClassVar[str] = "scalefl"
    version: ClassVar[int] = 2  # Heads had been linear maps of channel means.
    paper: ClassVar[str] = "CVPR 2023"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "distillation": (0.0, 0.05, 0.5),
        "scaler": (False, True),
    }
    ignores_budgets: ClassVar[bool] = False

    exits: int = 4
    first_exit: float = 0.56
    distillation: float = 0.05
    temperature: float = 3.0
    warm_up: float = 0.25
    scaler: bool = False

    def __post_init__(self) -> None:
        if self.exits < 1:
            raise SubflotError(f"exits is {self.exits}", hint="at least 1")
        if self.distillation < 0 or self.temperature <= 0:
            raise SubflotError(
                f"distillation is {self.distillation}, temperature {self.temperature}",
                hint="the first is zero or more, the second more than zero",
            )
        for setting in ("first_exit", "warm_up"):
            if not 0 <= getattr(self, setting) <= 1:
                raise SubflotError(
                    f"{setting} is {getattr(self, setting)}", hint="a share from 0 to 1"
                )

    def prepare(self, task: Task) -> Task:
        between = (1 - self.first_exit) / max(1, self.exits - 1)
        shares = [self.first_exit + between * level for level in range(self.exits - 1)]
        cuts = behind_shares(cuts_of(task), shares) if shares else []
        return add_exits(task, with_heads(task, cuts), takes_mean=False)

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        depth, rate = self.size(with_exits(task), client.pruning_rate)
        weights, kept = with_exits(task).part(state.weights, depth, rate)
        return Download(weights, kept, metrics={"depth": depth, "width": 1 - rate})

    def size(self, task: ExitTask, pruning_rate: float) -> tuple[int, float]:
        """Return the depth of a client's part, and the pruning rate of its width."""
        level = nearest(task.num_exits * (1 - pruning_rate))
        if not pruning_rate:
            return level, 0.0
        budget = task.budget(pruning_rate)
        for depth in range(level, 0, -1):
            rate = task.width_within(depth, budget)
            if rate is not None:
                return depth, rate
        return 1, pruning_rate

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective:
        turn = context.turn
        is_warm = turn.round - 1 > self.warm_up * turn.rounds
        weight = self.distillation if is_warm else 0.0

        rate = self.size(with_exits(task), context.client.pruning_rate)[1] if self.scaler else 0.0

        def all_exits(model: nn.Module, batch: Examples) -> Tensor:
            with scaled(model, task.channels, 1 - rate):
                logits = exits_of(model, batch.inputs)
            losses = [task.loss(each, batch.labels) for each in logits]
            if weight:
                for shallow, each in enumerate(logits[:-1]):
                    imitated = imitation(each, logits[-1], self.temperature)
                    losses[shallow] = losses[shallow] + weight * imitated
            return deeper_count_more(losses)

        return all_exits


def with_heads(task: Task, cuts: Sequence[Cut]) -> list[Exit]:
    """Choose the heads of exits: each no larger than what lies before it, or than its budget.

    Exit d of L, the network's own classifier among them, has the budget of the width d / L.
    """
    whole = frozenset(task.channels.axes)
    exits = []
    for depth, cut in enumerate(cuts, start=1):
        before = num_parameters(task, cut.tensors, 0.0)
        budget = num_parameters(task, whole, 1 - depth / (len(cuts) + 1))
        exits.append(strongest(cut, num_classes_of(task), max(before, budget - before)))
    return exits


def imitation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the mean divergence of an exit from its teacher, which gets no gradient."""
    wanted = (teacher.detach() / temperature).log_softmax(1)
    found = (student / temperature).log_softmax(1)
    # A temperature shrinks gradients by its square.
    return temperature**2 * F.kl_div(found, wanted, reduction="batchmean", log_target=True)


def deeper_count_more(losses: list[Tensor]) -> Tensor:
    """Return the mean of the exits' losses, the j-th counted j times.

    Example:
        >>> deeper_count_more([torch.tensor(1.0), torch.tensor(4.0)])
        tensor(3.)
    """
    counts = torch.arange(1, len(losses) + 1, device=losses[0].device)
    return (counts * torch.stack(losses)).sum() / counts.sum()
