"""pFedMe: personal models on a leash to the global one.

Paper: "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020, arXiv:2006.08848.

Each client has a personal model theta that makes f(theta) + lambda / 2 |theta - w|^2 small, and
the global model w makes the mean of those minima small, whose gradient is lambda (w - theta). On
every batch a client takes some steps towards its personal model, and then moves its copy of the
global model towards it.

Where this departs from the paper: as in the authors' code theta goes on from batch to batch, and
begins each round at the global model. Only the clients of a round train, and uploads count by
their examples. A round sees each example as often as in FedAvg, with K gradients where FedAvg
takes one. Both rates are the task's learning rate unless they are set, but eta_p at most
1 / lambda, beyond which steps overshoot, and eta at most half of that, so that the copy of the
global model stays behind the personal one; the authors' eta, 0.005, takes many hundred rounds. The
weight decay mu and clipping are those of the task's local training; momentum has no place in it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from subflot.algorithms.averaging import owner_average
from subflot.algorithms.base import Arrival, ClientContext, Download, Memory, State, Turn, Upload
from subflot.algorithms.gradients import (
    Slope,
    gradient,
    standing_at,
    trainable,
    with_gradient,
)
from subflot.algorithms.personal import Personalised
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import LocalTraining, Task, weights_of
from subflot.training import train_locally
from subflot.weights import Weights


@dataclass(frozen=True)
class PFedMe(Personalised):
    """Moreau envelopes. What is measured after training is the personal model.

    Attributes:
        pull_weight: lambda, how strongly the personal model is held to the global one.
        personal_steps: K, steps of the personal model on each batch.
        personal_rate: eta_p, of the personal model's steps; None for the task's learning rate, at
            most 1 / lambda.
        global_rate: eta, by which the client's copy of the global model follows: at 1 / lambda it
            jumps onto the personal model; None for the task's learning rate, at most half of that.
        server_share: beta, how far the server goes towards the mean of the uploads; 1 is the mean.
    """

    name: ClassVar[str] = "pfedme"
    paper: ClassVar[str] = "NeurIPS 2020, arXiv:2006.08848"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"pull_weight": (1.0, 15.0, 30.0)}

    pull_weight: float = 15.0
    personal_steps: int = 5
    personal_rate: float | None = None
    global_rate: float | None = None
    server_share: float = 1.0

    def __post_init__(self) -> None:
        if self.personal_steps < 1:
            raise SubflotError(f"personal_steps is {self.personal_steps}", hint="at least 1")
        for setting in ("pull_weight", "personal_rate", "global_rate", "server_share"):
            value = getattr(self, setting)
            if value is not None and not 0 <= value < math.inf:
                raise SubflotError(f"{setting} is {value}", hint="zero or a positive number")
        if self.global_rate is not None and self.global_rate * self.pull_weight > 1 + 1e-9:
            raise SubflotError(
                f"global_rate {self.global_rate:g} times pull_weight {self.pull_weight:g} is more "
                "than 1",
                hint="the global model would overshoot the personal one; lower either",
            )

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        local = task.local
        most = 1 / self.pull_weight if self.pull_weight else math.inf
        eta_p = min(local.learning_rate, most) if self.personal_rate is None else self.personal_rate
        eta = min(local.learning_rate, most / 2) if self.global_rate is None else self.global_rate
        personal = replace(task, local=replace(local, learning_rate=eta_p))
        envelope = _Envelope(personal, self.pull_weight, self.personal_steps)
        trained = train_locally(
            replace(task, local=LocalTraining(local.epochs, local.batch_size, eta)),
            download.weights,
            context.examples,
            context.generator("batches"),
            objective=envelope,
        )
        upload = Upload(
            trained.weights,
            len(context.examples),
            download.kept,
            metrics={"training_loss": trained.loss},
        )
        return upload, envelope.personal_weights(trained.weights)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        mean = owner_average(state.weights, task.channels, arrivals)
        if self.server_share == 1:
            return State(mean, state.extras)
        weights = {
            name: old.lerp(mean[name], self.server_share) if old.is_floating_point() else old
            for name, old in state.weights.items()
        }
        return State(weights, state.extras)

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        return context.memory


@dataclass(frozen=True)
class PFedMeSub(PFedMe):
    """PFedMe on submodels of the first channels."""

    name: ClassVar[str] = "pfedme-sub"
    ignores_budgets: ClassVar[bool] = False


class _Envelope:
    """The Moreau envelope of a client's loss in one round; it carries the personal model along."""

    def __init__(self, task: Task, pull: float, steps: int) -> None:
        self.task, self.pull, self.steps = task, pull, steps
        self.personal: list[Tensor] | None = None

    def __call__(self, model: nn.Module, batch: Examples) -> Tensor:
        """Return the loss of the personal model, with the envelope's gradient."""
        parameters = trainable(model)
        here = [parameter.data for parameter in parameters]
        if self.personal is None:
            self.personal = [value.clone() for value in here]
        losses: list[Tensor] = []

        def slope(point: list[Tensor]) -> list[Tensor]:
            with standing_at(parameters, point):
                losses.append(self.task.loss(model(batch.inputs), batch.labels))
                return gradient(losses[-1], parameters)

        approach(slope, self.personal, here, self.pull, self.steps, self.task.local)
        outer = list(torch._foreach_sub(here, self.personal))
        torch._foreach_mul_(outer, self.pull)
        return with_gradient(losses[0], parameters, outer)

    def personal_weights(self, trained: Weights) -> Weights:
        """Return the personal model; without a batch it is the model that was trained."""
        if self.personal is None:
            return trained
        with (
            self.task.lend(trained) as model,
            standing_at(trainable(model), self.personal),
        ):
            return weights_of(model)


def approach(
    slope: Slope,
    personal: list[Tensor],
    anchor: list[Tensor],
    pull: float,
    steps: int,
    local: LocalTraining,
) -> None:
    """Take steps, in place, that make f(personal) + pull / 2 |personal - anchor|^2 small."""
    for _ in range(steps):
        direction = slope(personal)
        shorten(direction, local.max_norm)
        if local.weight_decay:
            torch._foreach_add_(direction, personal, alpha=local.weight_decay)
        torch._foreach_lerp_(personal, anchor, local.learning_rate * pull)
        torch._foreach_add_(personal, direction, alpha=-local.learning_rate)


def shorten(direction: list[Tensor], max_norm: float) -> None:
    """Shorten a gradient, in place, that is longer than `max_norm`; 0 leaves it."""
    if max_norm:
        length = nn.utils.get_total_norm(direction)
        torch._foreach_mul_(direction, torch.clamp(max_norm / (length + 1e-6), max=1.0))
