"""SubFLOT: submodels cut and merged by optimal transport.

Paper: "SubFLOT: Submodel Extraction for Efficient and Personalized Federated Learning via Optimal
Transport".

The server aligns the global model to what a client last returned and fuses both into the client's
next submodel (OTP). The client trains it with a pull to that submodel that grows with its pruning
rate (SAR). The server aligns the result back to the global model and takes the mean (OTA).

`subflot` is the paper as printed. `subflot-partial` reads a plan differently: channels are matched
one to one and the others left out, so a client gets channels of the global model as they are, and
its own return to the places that they match, each averaged over its owners.

`subflot-plus` is the method that we recommend: one-to-one plans, layers that keep their scale when
their inputs are cut, a light penalty, and one plan for both directions: what a client trained
returns to the places that it was extracted from.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from subflot.algorithms.averaging import owner_mean, owner_sums
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
)
from subflot.channels import ChannelMap, Channels, take
from subflot.channels.keep import largest, prefix, random, window
from subflot.channels.scale import keep_scale, undo_scale
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import train_locally
from subflot.transport.align import Alignment, InputMap, Residual, align
from subflot.transport.diagnose import squared_distance
from subflot.transport.merge import fuse
from subflot.transport.solve import Kind
from subflot.weights import Weights

LEAST_SHARE, MOST_SHARE = 0.1, 0.7
"""Ends of the paper's grid for alpha, between which `auto` chooses."""
GOLDEN = (5**0.5 - 1) / 2
"""Steps of the golden ratio spread any number of clients evenly."""
USUAL_SPREAD = 0.2795
"""Standard deviation of the rates {0, 1/4, 1/2, 3/4}, at which `auto` is the paper's lambda, 1."""


@dataclass(frozen=True)
class SubFLOT(Algorithm):
    """The paper as printed, with a switch for each of its parts.

    Attributes:
        global_share: alpha, what the aligned global model counts in a submodel (Eq. 6), or `auto`:
            0.7 while the clients' updates agree, falling to 0.1 as they cancel each other.
        penalty_weight: lambda of the pull to the received submodel, before it is scaled by the
            pruning rate (Eq. 7), or `auto`: 1 at the paper's usual rates, growing with their
            spread.
        plan: `balanced` carries every channel; `partial` matches one to one.
        input_map: on the input side of a layer merged channels are averaged (`mean`, Eq. 3) or
            added (`sum`).
        residual: behind a sum of branches go on with the `average` of their plans, or match
            them together (`joint`).
        entropy: positive for blurred plans, as a share of the largest cost.
        extract: `transport`, or `prefix` for the first channels of the global model (without OTP).
        merge: `transport`; `extraction` to return along the plan of the extraction, which needs
            one-to-one plans; or `position` for the owners' mean at the first channels (without
            OTA).
        scale: whether a layer whose inputs are cut is multiplied by what it lost, on the client
            (`subflot.channels.scale`); the server keeps all models in the scale of the full one.
        head: whether the layer that makes the outputs is `shared` like every other, `personal`
            (alpha is zero there), `auto`: personal if in the first round, when all clients start
            alike, their updates of it agreed less than those of the rest of the network, as with
            labels that differ from client to client, or `kept`: clients train the global one
            (alpha is one there), and keep what they trained to use it on what they receive next.
        places: where a client without a history begins: with the `first` channels, which all
            clients share, or `spread` evenly, so that every channel has about as many owners.
        proxy: what stands for a client: its `history`, or the `prefix`, largest (`magnitude`) or a
            `random` part of the global model.
    """

    name: ClassVar[str] = "subflot"
    paper: ClassVar[str] = "SubFLOT"
    keeps_history: ClassVar[bool] = True
    needs_transport: ClassVar[bool] = True

    global_share: float | Literal["auto"] = 0.5
    penalty_weight: float | Literal["auto"] = 1.0
    plan: Kind = "balanced"
    input_map: InputMap = "mean"
    residual: Residual = "average"
    entropy: float = 0.0
    extract: Literal["transport", "prefix"] = "transport"
    merge: Literal["transport", "extraction", "position"] = "transport"
    scale: bool = False
    head: Literal["shared", "personal", "auto", "kept"] = "shared"
    places: Literal["first", "spread"] = "first"
    proxy: Literal["history", "prefix", "magnitude", "random"] = "history"

    def __post_init__(self) -> None:
        if self.plan == "partial" and self.residual == "average":
            raise SubflotError(
                "partial plans of branches have no average",
                hint="take residual=joint with plan=partial",
            )
        if self.merge == "extraction" and self.plan != "partial":
            raise SubflotError(
                f"{self.plan} plans mix channels: none can return to where it came from",
                hint="take plan=partial and residual=joint with merge=extraction",
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
        if self.head == "auto":
            extras["is_head_personal"] = torch.tensor(False)
        return State(task.initial, extras)

    # ----- OTP, on the server

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        own = self.reference(task, state, client, turn)
        kept: Channels = {}
        metrics = {}
        if self.extract == "transport":
            alignment = self._align(task, state.weights, own)
            part: Weights = alignment.weights
            if self.merge == "extraction":
                kept = extracted_from(alignment)
            for plans in alignment.plans.values():
                for (layer, _), plan in plans.items():
                    metrics[f"moved/{layer}"] = plan.share_moved()
        else:
            part = task.narrow(state.weights, client.pruning_rate)
            if self.merge == "extraction":
                kept = prefix(task.channels, client.pruning_rate)
        anchor = fuse(part, own, self._global_share(state))
        if self.head == "kept":
            anchor |= {name: part[name] for name in head_of(task.channels)}
        elif self._is_head_personal(state):
            anchor |= {name: own[name] for name in head_of(task.channels)}
        extras = {}
        if self.penalty_weight == "auto":
            extras["penalty_weight"] = state.extras["rate_spread"] / USUAL_SPREAD
        metrics["delta_p"] = squared_distance(
            anchor, state.weights, task.channels, parameters=task.parameters
        )
        if self.scale:
            anchor = keep_scale(anchor, task.channels)
        return Download(anchor, kept, extras, metrics)

    def reference(self, task: Task, state: State, client: Client, turn: Turn) -> Weights:
        """Return what stands for the client, at its present width and in the full model's scale."""
        first = self._first(task, client)
        if self.proxy == "magnitude":
            first = largest(task.channels, client.pruning_rate, state.weights)
        elif self.proxy == "random":
            draw = turn.generator("proxy", client.id)
            first = random(task.channels, client.pruning_rate, draw)
        own = state.history.get(client.id) if self.proxy == "history" else None
        if own is not None and self.scale:
            own = undo_scale(own, task.channels)
        if own is not None:
            sizes = task.channels.sizes_of(own)
            if all(sizes[space] == len(index) for space, index in first.items()):
                return own
        part = take(state.weights, task.channels, first)
        if own is None:
            return part
        return self._align(task, own, part).weights  # Its rate changed: carried to the new width.

    def _first(self, task: Task, client: Client) -> Channels:
        """Choose the channels that a client without a history begins with."""
        if self.places == "first":
            return prefix(task.channels, client.pruning_rate)
        return window(task.channels, client.pruning_rate, client.id * GOLDEN)

    def _global_share(self, state: State) -> float:
        if self.global_share != "auto":
            return self.global_share
        disagreement = float(state.extras["disagreement"])
        return MOST_SHARE - (MOST_SHARE - LEAST_SHARE) * disagreement

    def _is_head_personal(self, state: State) -> bool:
        if self.head != "auto":
            return self.head == "personal"
        return bool(state.extras["is_head_personal"])

    def _align(self, task: Task, source: Weights, target: Weights) -> Alignment:
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
        if self.head != "kept":
            return upload, context.memory
        return upload, {name: trained.weights[name] for name in head_of(task.channels)}

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights | None:
        own = context.memory
        if self.head != "kept" or any(t.shape != download.weights[n].shape for n, t in own.items()):
            return download.weights  # With a new rate, what it kept no longer fits.
        return {**download.weights, **own}

    # ----- OTA, on the server

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        if self.scale:
            upload = replace(upload, weights=undo_scale(upload.weights, task.channels))
        if self.merge == "extraction":
            placed = upload  # With the channels that it was extracted from.
        elif self.merge == "position":
            placed = replace(upload, kept=prefix(task.channels, client.pruning_rate))
        else:
            alignment = self._align(task, upload.weights, state.weights)
            if self.plan == "partial":
                placed = replace(upload, kept=matched(task, upload.weights, alignment))
            else:
                placed = replace(upload, weights=alignment.weights)
            moved = squared_distance(
                alignment.weights, upload.weights, task.channels, parameters=task.parameters
            )
            placed = replace(placed, metrics={**upload.metrics, "delta_ot": moved})
        if not self._is_watched(turn):
            return placed
        before = take(state.weights, task.channels, placed.kept)
        lengths = {
            f"update_{part}": _squared_length(placed.weights, before, names)
            for part, names in _parts(task).items()
        }
        return replace(placed, metrics={**placed.metrics, **lengths})

    def _is_watched(self, turn: Turn) -> bool:
        """Whether something depends on how far the updates of this round agree."""
        return self.global_share == "auto" or (self.head == "auto" and turn.round == 1)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        examples: list[int] = []
        lengths: dict[str, list[float]] = {part: [] for part in _parts(task)}

        def watched() -> Iterator[Arrival]:
            for arrival in arrivals:
                upload = arrival.upload
                examples.append(upload.num_examples)
                for part, found in lengths.items():
                    found.append(upload.metrics.get(f"update_{part}", 0.0))
                yield arrival

        sums = owner_sums(state.weights, task.channels, watched())
        weights = owner_mean(state.weights, sums)
        extras = dict(state.extras)
        if examples and self._is_watched(turn):
            total = {
                part: sum(n * length for n, length in zip(examples, found, strict=True))
                for part, found in lengths.items()
            }
            if self.global_share == "auto":
                mean = sum(total.values()) / sum(examples)
                left = _squared_length(weights, state.weights, task.parameters)
                disagreement = 1 - left / mean if mean else 0.5
                extras["disagreement"] = torch.tensor(min(1.0, max(0.0, disagreement)))
            if self.head == "auto" and turn.round == 1:
                owned = {
                    part: _owned_length(weights, state.weights, names, sums)
                    for part, names in _parts(task).items()
                }
                # The shares of the updates that are left in their mean, without dividing by zero.
                is_personal = owned["head"] * total["body"] < owned["body"] * total["head"]
                extras["is_head_personal"] = torch.tensor(is_personal)
        return State(weights, extras)


@dataclass(frozen=True)
class SubFLOTPartial(SubFLOT):
    """SubFLOT with one-to-one plans: true submodels, merged where they match."""

    name: ClassVar[str] = "subflot-partial"
    plan: Kind = "partial"
    residual: Residual = "joint"


@dataclass(frozen=True)
class SubFLOTPlus(SubFLOTPartial):
    """SubFLOT as we recommend it: true submodels that keep their scale, and one plan a round."""

    name: ClassVar[str] = "subflot-plus"
    penalty_weight: float | Literal["auto"] = 0.01
    merge: Literal["transport", "extraction", "position"] = "extraction"
    scale: bool = True


def extracted_from(alignment: Alignment) -> Channels:
    """Read off one-to-one plans which channel of the source each channel of the target is."""
    kept = {}
    for space, plans in alignment.plans.items():
        plan = next(iter(plans.values()))
        kept[space] = torch.empty(plan.shape[1], dtype=torch.int64)
        kept[space][torch.from_numpy(plan.target)] = torch.from_numpy(plan.source)
    return kept


def matched(task: Task, weights: Weights, alignment: Alignment) -> Channels:
    """Read off one-to-one plans which channel of the target each channel of the source is."""
    sizes = task.channels.sizes_of(weights)
    kept = {s: torch.arange(sizes[s]) for s in task.channels.prunable}
    for space, plans in alignment.plans.items():
        plan = next(iter(plans.values()))
        kept[space] = torch.empty(sizes[space], dtype=torch.int64)
        kept[space][torch.from_numpy(plan.source)] = torch.from_numpy(plan.target)
    return kept


def head_of(channels: ChannelMap) -> frozenset[str]:
    """Name the tensors that make the outputs of a model."""
    outputs = {space for space, reason in channels.frozen.items() if reason.text == "output"}
    return frozenset(
        name
        for name, axes in channels.axes.items()
        if any(segment.space in outputs for segments in axes for segment in segments or ())
    )


def _parts(task: Task) -> dict[str, frozenset[str]]:
    """The parameters that make the outputs, and the others."""
    head = head_of(task.channels) & task.parameters
    return {"head": head, "body": task.parameters - head}


def _squared_length(weights: Weights, before: Weights, names: frozenset[str]) -> float:
    """Sum the squares of what changed."""
    return sum(
        float(torch.linalg.vector_norm(tensor - before[name])) ** 2
        for name, tensor in weights.items()
        if name in names
    )


def _owned_length(
    weights: Weights,
    before: Weights,
    names: frozenset[str],
    sums: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
) -> float:
    """Sum the squares of what changed, each as often as there are examples behind it."""
    return sum(
        float(((weights[name] - before[name]).double().square() * sums[name][1]).sum())
        for name in weights
        if name in names and name in sums
    )
