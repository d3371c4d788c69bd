"""SubFLOT: submodels cut and merged by optimal transport.

Paper: "SubFLOT: Submodel Extraction for Efficient and Personalized Federated Learning via Optimal
Transport".

The server aligns the global model to what a client last returned and fuses both into the client's
next submodel (OTP). The client trains it with a pull to that submodel that grows with its pruning
rate (SAR). The server aligns the result back to the global model and takes the mean (OTA).

`subflot` is the paper as printed. `subflot-partial` reads a plan differently: channels are matched
one to one and the others left out, so a client gets channels of the global model as they are, and
its own return to the places that they match, each averaged over its owners. The method that we
recommend is `subflot-plus`, in a file of its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from subflot.algorithms.averaging import owner_average
from subflot.algorithms.base import (
    Algorithm,
    Arrival,
    Client,
    ClientContext,
    Download,
    Memory,
    State,
    Turn,
    Upload,
    in_order,
)
from subflot.channels import Channels, take
from subflot.channels.keep import largest, prefix, random
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import train_locally
from subflot.transport.align import Alignment, InputMap, Residual, align
from subflot.transport.diagnose import squared_distance
from subflot.transport.merge import fuse
from subflot.transport.solve import Kind
from subflot.weights import Weights, num_bytes

LEAST_SHARE, MOST_SHARE = 0.3, 0.9
"""Ends between which `auto` chooses alpha: what the paper's grid, 0.1 to 0.7, leaves of 1."""
USUAL_SPREAD = 0.2795
"""Standard deviation of the rates {0, 1/4, 1/2, 3/4}, at which `auto` is the paper's lambda, 1."""


@dataclass(frozen=True)
class SubFLOT(Algorithm):
    """The paper as printed, with a switch for each of its parts.

    Attributes:
        global_share: alpha, what the aligned global model counts in a submodel (Eq. 6), or `auto`:
            0.3 while the clients' updates agree, rising to 0.9 as they cancel each other.
        penalty_weight: lambda of the pull to the received submodel, before it is scaled by the
            pruning rate (Eq. 7), or `auto`: 1 at the paper's usual rates, growing with their
            spread.
        plan: `balanced` carries every channel; `partial` matches one to one.
        input_map: on the input side of a layer merged channels are averaged (`mean`, Eq. 3) or
            added (`sum`).
        residual: behind a sum of branches go on with the `average` of their plans, or match
            them together (`joint`).
        entropy: positive for blurred plans, as a share of the largest cost.
        extract: `transport`; `prefix` fuses the first channels of the global model with the
            client's in place of the aligned ones; `slice` sends them alone (without OTP).
        merge: `transport`, or `position` for the owners' mean at the first channels (without OTA).
        proxy: what stands for a client: its `history`, or the `prefix`, largest (`magnitude`) or a
            `random` part of the global model.
    """

    name: ClassVar[str] = "subflot"
    paper: ClassVar[str] = "SubFLOT"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "penalty_weight": (0.01, 0.1, 1.0),
        "global_share": (0.3, 0.5, 0.7),
    }
    keeps_history: ClassVar[bool] = True
    takes_models: ClassVar[bool] = True
    needs_transport: ClassVar[bool] = True

    global_share: float | Literal["auto"] = 0.5
    penalty_weight: float | Literal["auto"] = 1.0
    plan: Kind = "balanced"
    input_map: InputMap = "mean"
    residual: Residual = "average"
    entropy: float = 0.0
    extract: Literal["transport", "prefix", "slice"] = "transport"
    merge: Literal["transport", "position"] = "transport"
    proxy: Literal["history", "prefix", "magnitude", "random"] = "history"

    def __post_init__(self) -> None:
        if self.plan == "partial" and self.residual == "average":
            raise SubflotError(
                "partial plans of branches have no average",
                hint="take residual=joint with plan=partial",
            )
        for setting in ("global_share", "penalty_weight"):
            value, most = getattr(self, setting), 1 if setting == "global_share" else float("inf")
            if value != "auto" and not (isinstance(value, int | float) and 0 <= value <= most):
                raise SubflotError(
                    f"{setting} is {value!r}", hint=f"`auto` or a number from 0 to {most:g}"
                )

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        rates = torch.tensor([client.pruning_rate for client in clients], dtype=torch.float64)
        extras = {"rate_spread": rates.std(correction=0), "disagreement": torch.tensor(0.5)}
        return State(task.initial, extras)

    def adopt(self, task: Task, state: State, clients: Sequence[Client]) -> State:
        """Let the global model begin as the widest that a client brings, at the first channels.

        The mean of all, each where it matches the widest, was worse: models that were trained apart
        are too unlike for it.
        """
        there = [client for client in in_order(clients) if client.id in state.history]
        if not there:
            return state
        widest = max(there, key=lambda client: num_bytes(state.history[client.id]))
        own = self.history(task, state, widest) or {}
        sizes = task.channels.sizes_of(own)
        first = {space: torch.arange(sizes[space]) for space in task.channels.prunable}
        only = [Arrival(widest, Upload(own, 1, first))]
        return replace(state, weights=owner_average(state.weights, task.channels, only))

    # ----- OTP, on the server

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        own = self.reference(task, state, client, turn)
        if self.extract == "slice":
            return self.offer(task, state, task.narrow(state.weights, client.pruning_rate))
        if self.extract == "prefix":
            part, moved = task.narrow(state.weights, client.pruning_rate), {}
        else:
            alignment = self.align(task, state.weights, own)
            part, moved = dict(alignment.weights), shares_moved(alignment)
        return self.offer(task, state, fuse(part, own, self._global_share(state)), metrics=moved)

    def offer(
        self,
        task: Task,
        state: State,
        anchor: Weights,
        kept: Channels | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> Download:
        """Return a submodel as a client receives it."""
        extras = {}
        if self.penalty_weight == "auto":
            extras["penalty_weight"] = state.extras["rate_spread"] / USUAL_SPREAD
        away = squared_distance(anchor, state.weights, task.channels, parameters=task.parameters)
        return Download(anchor, kept or {}, extras, {**(metrics or {}), "delta_p": away})

    def reference(self, task: Task, state: State, client: Client, turn: Turn) -> Weights:
        """Return what stands for the client, at its present width and in the full model's scale."""
        first = self.first_channels(task, client)
        if self.proxy == "magnitude":
            first = largest(task.channels, client.pruning_rate, state.weights)
        elif self.proxy == "random":
            draw = turn.generator("proxy", client.id)
            first = random(task.channels, client.pruning_rate, draw)
        own = self.history(task, state, client) if self.proxy == "history" else None
        if own is not None:
            sizes = task.channels.sizes_of(own)
            if all(sizes[space] == len(index) for space, index in first.items()):
                return own
        part = take(state.weights, task.channels, first)
        if own is None:
            return part
        return self.align(task, own, part).weights  # Its rate changed: carried to the new width.

    def first_channels(self, task: Task, client: Client) -> Channels:
        """Choose the channels that a client without a history begins with."""
        return prefix(task.channels, client.pruning_rate)

    def scaled(self, task: Task, state: State, weights: Weights, turn: Turn) -> Weights:
        """Return a submodel in the scale in which a client trains it."""
        return weights

    def history(self, task: Task, state: State, client: Client) -> Weights | None:
        """Return what a client last uploaded, in the scale of the full model."""
        return state.history.get(client.id)

    @property
    def _follows_agreement(self) -> bool:
        """Whether alpha depends on how far the clients' updates agree."""
        return self.global_share == "auto"

    def _global_share(self, state: State) -> float:
        if self.global_share != "auto":
            return self.global_share
        disagreement = float(state.extras["disagreement"])
        return LEAST_SHARE + (MOST_SHARE - LEAST_SHARE) * disagreement

    def align(self, task: Task, source: Weights, target: Weights) -> Alignment:
        """Carry a model into the shapes and the order of another."""
        return align(
            source,
            target,
            task.channels,
            plan=self.plan,
            residual=self.residual,
            input_map=self.input_map,
            entropy=self.entropy,
        )

    # ----- SAR, on the client

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        weight = self.penalty_weight
        if weight == "auto":
            weight = float(download.extras["penalty_weight"])
        trained = train_locally(
            task,
            download.weights,
            context.examples,
            context.generator("batches"),
            # The gradient of lambda rho |W - W_anchor|^2 (Eq. 7 and 8).
            pull=2 * weight * context.client.pruning_rate,
        )
        metrics = {"training_loss": trained.loss}
        upload = Upload(trained.weights, len(context.examples), download.kept, metrics=metrics)
        return upload, context.memory

    # ----- OTA, on the server

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        if self.merge == "position":
            placed = replace(upload, kept=prefix(task.channels, client.pruning_rate))
        else:
            alignment = self.align(task, upload.weights, state.weights)
            if self.plan == "partial":
                placed = replace(upload, kept=matched(task, upload.weights, alignment))
            else:
                placed = replace(upload, weights=alignment.weights)
            moved = squared_distance(
                alignment.weights, upload.weights, task.channels, parameters=task.parameters
            )
            placed = replace(placed, metrics={**upload.metrics, "delta_ot": moved})
        return self.watched(task, state, placed)

    def watched(self, task: Task, state: State, placed: Upload) -> Upload:
        """Note how far a placed upload went, if alpha depends on how far uploads agree."""
        if not self._follows_agreement:
            return placed
        before = take(state.weights, task.channels, placed.kept)
        length = squared_length(placed.weights, before, task.parameters)
        return replace(placed, metrics={**placed.metrics, "update": length})

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        examples: list[int] = []
        lengths: list[float] = []

        def watched() -> Iterator[Arrival]:
            for arrival in arrivals:
                examples.append(arrival.upload.num_examples)
                length = arrival.upload.metrics.get("update", 0.0)
                lengths.append(length * arrival.shortened**2)
                yield arrival

        weights = owner_average(state.weights, task.channels, watched())
        extras = dict(state.extras)
        if examples and self._follows_agreement:
            total = sum(n * length for n, length in zip(examples, lengths, strict=True))
            left = squared_length(weights, state.weights, task.parameters)
            disagreement = 1 - left * sum(examples) / total if total else 0.5
            extras["disagreement"] = torch.tensor(min(1.0, max(0.0, disagreement)))
        return State(weights, extras)


@dataclass(frozen=True)
class SubFLOTPartial(SubFLOT):
    """SubFLOT with one-to-one plans: true submodels, merged where they match."""

    name: ClassVar[str] = "subflot-partial"
    plan: Kind = "partial"
    residual: Residual = "joint"


def matched(task: Task, weights: Weights, alignment: Alignment) -> Channels:
    """Read off one-to-one plans which channel of the target each channel of the source is."""
    sizes = task.channels.sizes_of(weights)
    kept = {s: torch.arange(sizes[s]) for s in task.channels.prunable}
    for space, plans in alignment.plans.items():
        plan = next(iter(plans.values()))
        kept[space] = torch.empty(sizes[space], dtype=torch.int64)
        kept[space][torch.from_numpy(plan.source)] = torch.from_numpy(plan.target)
    return kept


def shares_moved(alignment: Alignment) -> dict[str, float]:
    """Say of each layer which share of its channels a plan carried to another place."""
    return {
        f"moved/{layer}": plan.share_moved()
        for plans in alignment.plans.values()
        for (layer, _), plan in plans.items()
    }


def squared_length(weights: Weights, before: Weights, names: frozenset[str]) -> float:
    """Sum the squares of what changed."""
    return sum(
        float(torch.linalg.vector_norm(tensor - before[name])) ** 2
        for name, tensor in weights.items()
        if name in names
    )
