"""DepthFL: weak clients hold the first blocks of the network, not the first channels.

Paper: "DepthFL: Depthwise Federated Learning for Heterogeneous Clients", ICLR 2023.

The network has a classifier behind each block. A client trains the blocks up to its depth with all
their classifiers, which teach each other, so that the deep ones, which few clients train, learn
from the shallow ones. Each tensor is averaged over the clients that hold it.

Where this departs from the paper: uploads count by their examples. The optimiser is the one of all
methods; the paper's FedDyn is left out. An early classifier has the separable convolutions of the
authors' code and not its attention gate, its linear layer tells a few positions apart, and where a
budget is small it has less of both (`heads.py`). Distillation reaches its full weight after 300
rounds or 30 % of the run, whichever is earlier. Exits lie, and depths are chosen, by the parameters
of the width-pruned model of a client's rate (`sizing`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
from subflot.algorithms.heads import Exit, exits_behind, strongest
from subflot.channels.blocks import Cut
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import Objective

RAMP_ROUNDS, RAMP_SHARE = 300, 0.3


@dataclass(frozen=True)
class DepthFL(FedAvg):
    """Submodels by depth, with classifiers that teach each other.

    A client of pruning rate 0 holds the whole network and its early classifiers, a little more
    than the plain network. All others train at most as many parameters as the model of their
    width, though more multiply-adds: early blocks are the ones that compute most. Where not even
    the first exit fits, that part is narrowed too. With `sizing=paper` budgets are not looked at.

    Attributes:
        exits: D, classifiers with the network's own; less in a network with fewer blocks. 1 is
            a network without early exits.
        distillation: scales what the classifiers learn from each other; 0 switches it off.
        ensemble: whether a model answers with the mean of its exits' logits, as in the paper, or
            with the deepest alone, which is better where the first exits know little.
        sizing: `budget` puts exit d behind the deepest block at which the part fits the model of
            width d / D, and gives each client the deepest part that fits its budget; `paper` puts
            exits at equal distances and gives a client of width s depth D s.
    """

    name: ClassVar[str] = "depthfl"
    version: ClassVar[int] = 2  # Heads had been linear maps of channel means.
    paper: ClassVar[str] = "ICLR 2023"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"distillation": (0.0, 0.1, 1.0)}
    ignores_budgets: ClassVar[bool] = False

    exits: int = 4
    distillation: float = 1.0
    ensemble: bool = True
    sizing: Literal["budget", "paper"] = "budget"

    def __post_init__(self) -> None:
        if self.exits < 1:
            raise SubflotError(f"exits is {self.exits}", hint="at least 1")
        if not 0 <= self.distillation < math.inf:
            raise SubflotError(f"distillation is {self.distillation}", hint="zero or positive")

    def prepare(self, task: Task) -> Task:
        if self.exits == 1:
            chosen: list[Exit] = []
        elif self.sizing == "paper":
            shares = [depth / self.exits for depth in range(1, self.exits)]
            chosen = [exits_behind(cut)[0] for cut in behind_shares(cuts_of(task), shares)]
        else:
            chosen = by_parameters(task, cuts_of(task), self.exits)
        return add_exits(task, chosen, takes_mean=self.ensemble)

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        depth, rate = self.size(with_exits(task), client.pruning_rate)
        weights, kept = with_exits(task).part(state.weights, depth, rate)
        return Download(weights, kept, metrics={"depth": depth, "width": 1 - rate})

    def size(self, task: ExitTask, pruning_rate: float) -> tuple[int, float]:
        """Return the depth of a client's part, and the pruning rate of its width."""
        if self.sizing == "paper" or not pruning_rate:
            return nearest(task.num_exits * (1 - pruning_rate)), 0.0
        budget = task.budget(pruning_rate)
        for depth in range(task.num_exits, 0, -1):
            if num_parameters(task, task.names(depth), 0.0) <= budget:
                return depth, 0.0
        narrowed = task.width_within(1, budget)
        return 1, pruning_rate if narrowed is None else narrowed

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective:
        weight = self.distillation * ramp(context.turn)

        def all_exits(model: nn.Module, batch: Examples) -> Tensor:
            logits = exits_of(model, batch.inputs)
            right = torch.stack([task.loss(each, batch.labels) for each in logits]).sum()
            return right + weight * mutual_distillation(logits)

        return all_exits


def ramp(turn: Turn) -> float:
    """Return the weight of distillation: from e^-5 in the first round up to 1, where it stays."""
    length = max(1.0, min(RAMP_ROUNDS, RAMP_SHARE * turn.rounds))
    return math.exp(-5 * (1 - min(turn.round - 1, length) / length) ** 2)


def mutual_distillation(logits: list[Tensor]) -> Tensor:
    """Let each exit learn from each other: the sum of mean divergences, over the others' number."""
    total = torch.zeros((), device=logits[0].device)
    for student, own in enumerate(logits):
        for teacher, other in enumerate(logits):
            if student != teacher:
                wanted = other.detach().log_softmax(1)
                total = total + F.kl_div(
                    own.log_softmax(1), wanted, reduction="batchmean", log_target=True
                )
    return total / max(1, len(logits) - 1)


def by_parameters(task: Task, cuts: list[Cut], exits: int) -> list[Exit]:
    """Put exit d where the part up to it, with its heads, just fits the model of width d / exits.

    Heads have convolutions if that costs no exit, and are then as strong as there is room for.
    Where the first layers hold nearly all parameters no part fits, and the first cut is taken.
    """
    whole = frozenset(task.channels.axes)
    budgets = {d: num_parameters(task, whole, 1 - d / exits) for d in range(1, exits)}
    strong, weak = (place(task, cuts, budgets, least) for least in (1, 0))
    chosen = strong if strong.keys() >= weak.keys() else weak
    return strengthened(task, chosen, budgets) or [Exit(cuts[0])]


def place(task: Task, cuts: list[Cut], budgets: Mapping[int, int], growth: int) -> dict[int, Exit]:
    """Put the exit of each depth as deep as its budget allows, with the smallest heads.

    Where a head can have convolutions, these multiply the channels by `growth`.
    """
    num_classes = num_classes_of(task)
    chosen: dict[int, Exit] = {}
    later, heads = list(cuts), 0
    for depth, budget in budgets.items():
        for cut in reversed(later):
            found = Exit(cut, growth)
            added = found.num_parameters(num_classes)
            if num_parameters(task, cut.tensors, 0.0) + heads + added <= budget:
                chosen[depth] = found
                later, heads = later[later.index(cut) + 1 :], heads + added
                break
    return chosen


def strengthened(task: Task, chosen: Mapping[int, Exit], budgets: Mapping[int, int]) -> list[Exit]:
    """Give each exit the strongest head with which it, and all behind it, keep to their budgets."""
    num_classes = num_classes_of(task)
    left = dict(chosen)
    room = 0
    rooms = {}
    for depth, one in chosen.items():
        room += one.num_parameters(num_classes)
        rooms[depth] = budgets[depth] - num_parameters(task, one.cut.tensors, 0.0) - room
    for depth, one in chosen.items():
        old = one.num_parameters(num_classes)
        spare = min(rooms[later] for later in rooms if later >= depth)
        left[depth] = strongest(one.cut, num_classes, old + spare)
        grown = left[depth].num_parameters(num_classes) - old
        rooms = {d: room - grown if d >= depth else room for d, room in rooms.items()}
    return list(left.values())
