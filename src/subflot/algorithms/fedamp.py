"""FedAMP: every client has a cloud model of its own, mixed from clients like it.

Paper: "Personalized Cross-Silo Federated Learning on Non-IID Data", AAAI 2021, arXiv:2007.03797.

The server mixes what the clients last returned, for each client with weights that grow with the
likeness of the models. The client trains from its mixture, with a pull back to it.

Where this departs from the paper: by default the weights are those of its heuristic for deep
networks (HeurFedAMP), for the exact ones vanish at the distances between deep models. The paper
does not say where local training begins: here at the mixture. Clients that have not taken part yet
are left out of it, and who joins receives the plain mean of all others, having no model to compare.
Likeness is that of parameters; running statistics are mixed with the same weights. The pull is
bounded by 1 / learning rate, beyond which a step would overshoot.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.algorithms.personal import Individual, Mixture, distance, inner, overlap
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.weights import Weights


@dataclass(frozen=True)
class FedAMP(Individual):
    """Attentive message passing between clients.

    Attributes:
        attention: `cosine` weighs another client by exp(sigma cos) (HeurFedAMP); `distance` by
            alpha_k exp(-|w_i - w_j|^2 / sigma) / sigma, as the paper derives it.
        sigma: how sharply the weights tell models apart.
        own_share: xi_ii, what the client's own model counts with `cosine`; None: 1 / clients mixed.
        pull_weight: lambda.
        step: alpha_1; the pull is lambda / alpha_k.
        decay: alpha_k is multiplied by it every `decay_every` rounds.
        decay_every: rounds.
    """

    name: ClassVar[str] = "fedamp"
    paper: ClassVar[str] = "AAAI 2021, arXiv:2007.03797"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"sigma": (5.0, 25.0, 100.0)}

    attention: Literal["cosine", "distance"] = "cosine"
    sigma: float = 25.0
    own_share: float | None = None
    pull_weight: float = 1.0
    step: float = 1e4
    decay: float = 0.1
    decay_every: int = 30

    def __post_init__(self) -> None:
        if self.own_share is not None and not 0 <= self.own_share <= 1:
            raise SubflotError(f"own_share is {self.own_share}", hint="a number from 0 to 1")
        if self.sigma < 0 or (self.sigma == 0 and self.attention == "distance"):
            raise SubflotError(f"sigma is {self.sigma}", hint="a positive number; 0 with `cosine`")
        for setting, least in (("pull_weight", 0), ("step", 1e-12), ("decay", 1e-12)):
            if not least <= getattr(self, setting) < math.inf:
                raise SubflotError(
                    f"{setting} is {getattr(self, setting)}", hint="a positive number"
                )
        if self.decay_every < 1:
            raise SubflotError(f"decay_every is {self.decay_every}", hint="at least 1")

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        own = self.own(task, state, client, turn)
        others = [other for other in sorted(state.history) if other != client.id]
        is_new = client.id not in state.history
        mixture = Mixture()
        for other in others:
            both = overlap(own, state.history[other], task.channels)
            weight = 1.0 if is_new else self._likeness(both.own, both.other, task, turn)
            mixture.add(both.filled, weight)
        if not mixture.weight:
            return Download(own)
        own_share = self._own_share(mixture.weight, 1 + len(others), is_new)
        mixture.scale((1 - own_share) / mixture.weight)
        mixture.add(own, own_share)
        return Download(mixture.total)

    def _likeness(self, own: Weights, other: Weights, task: Task, turn: Turn) -> float:
        """Weigh another client's model, before the weights are brought to their sum."""
        if self.attention == "cosine":
            # Likeness of one counts as 1, so that no exponent is large; only ratios matter.
            return math.exp(self.sigma * (cosine(own, other, task.parameters) - 1))
        away = distance(own, other, task.parameters) ** 2
        return self.step_in(turn.round) * math.exp(-away / self.sigma) / self.sigma

    def _own_share(self, others: float, num_mixed: int, is_new: bool) -> float:
        if is_new:
            return 0.0
        if self.attention == "distance":
            return max(0.0, 1 - others)
        return 1 / num_mixed if self.own_share is None else self.own_share

    def step_in(self, round: int) -> float:
        """Return alpha_k."""
        return self.step * self.decay ** ((round - 1) // self.decay_every)

    def pull(self, task: Task, download: Download, context: ClientContext) -> float:
        most = 1 / task.local.learning_rate if task.local.learning_rate else 0.0
        return min(self.pull_weight / self.step_in(context.turn.round), most)


@dataclass(frozen=True)
class FedAMPSub(FedAMP):
    """FedAMP on submodels of the first channels."""

    name: ClassVar[str] = "fedamp-sub"
    ignores_budgets: ClassVar[bool] = False


def cosine(one: Weights, other: Weights, names: frozenset[str]) -> float:
    """Return the cosine between the named tensors of two models; 0 if one has no direction."""
    squares = inner(one, one, names) * inner(other, other, names)
    return inner(one, other, names) / math.sqrt(squares) if squares > 0 else 0.0
