"""SubFLOT as we recommend it.

Paper: "SubFLOT: Submodel Extraction for Efficient and Personalized Federated Learning via Optimal
Transport". What departs from it, each a setting:

- Plans match channels one to one (`plan`), so a client gets true channels of the global model.
- What a client trained returns to the channels that it was extracted from (`merge=extraction`): one
  plan serves both directions, and matching is repeated each time that the number of rounds has
  doubled (`rematch`); in between a client keeps its channels.
- A layer whose inputs are cut keeps its scale (`scale`, `subflot.channels.scale`).
- The penalty is light (`penalty_weight`): it was meant for steps a hundred times shorter.
- Where labels differ from client to client (`label_skew`), features are shared and classifiers are
  not: clients train the global model (alpha is 1), and keep what they trained of its classifier for
  what they receive next. Layers are not scaled then: scale takes weight from the narrow models'
  channels, which all clients train, and gives it to those of the few wide ones.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

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
from subflot.algorithms.subflot import SubFLOTPartial, shares_moved
from subflot.channels import ChannelMap, Channels, take
from subflot.channels.keep import prefix, window
from subflot.channels.scale import keep_scale, undo_scale
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.transport.align import Alignment
from subflot.transport.merge import fuse
from subflot.weights import Weights

GOLDEN = (5**0.5 - 1) / 2
"""Steps of the golden ratio spread any number of clients evenly."""
FIRST_ROUND = 1
"""The round in which clients say which share of their examples each class has."""
MOST_ALIKE = 0.2
"""The distance of clients' labels (`distance_of_labels`) up to which they count as alike."""
LABELS = "labels"
"""The entry of an upload that says which share of the client's examples each class has."""
KEEPS_HEAD = "keeps_head"
"""The entry of a download that says whether the client uses a classifier that it kept."""


@dataclass(frozen=True)
class SubFLOTPlus(SubFLOTPartial):
    """One-to-one plans, kept scale, a light penalty, and a classifier of one's own where it pays.

    Attributes:
        global_share: alpha; with `auto` 0.5 where labels are alike, and 1 where they differ.
        merge: `extraction` to return along the plan of the extraction, `transport` or `position`.
        rematch: whether channels are matched in every round (`always`), or when the number of
            rounds has doubled since the client last took part (`doubling`).
        scale: whether a layer whose inputs are cut is multiplied by what it lost, on the client;
            the server keeps all models in the scale of the full one.
        label_skew: whether clients' labels differ, `strong` or `none`. With `auto` clients say in
            the first round which share of their examples each class has, and the server decides.
        places: where a client begins that has no history, or brings a model of its own: with the
            `first` channels, which all clients share, or `spread` evenly, so that every channel
            has about as many owners.
    """

    name: ClassVar[str] = "subflot-plus"
    version: ClassVar[int] = 2
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "penalty_weight": (0.01, 0.1),
        "global_share": ("auto", 0.75),
    }

    global_share: float | Literal["auto"] = "auto"
    penalty_weight: float | Literal["auto"] = 0.01
    merge: Literal["transport", "position", "extraction"] = "extraction"  # type: ignore[assignment]
    rematch: Literal["always", "doubling"] = "doubling"
    scale: bool = True
    label_skew: Literal["none", "strong", "auto"] = "auto"
    places: Literal["first", "spread"] = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.plan != "partial":
            raise SubflotError(
                f"{self.plan} plans mix channels: none can return to where it came from",
                hint="take plan=partial, or the method subflot",
            )

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        state = super().start(task, clients, turn)
        return replace(state, extras={**state.extras, "labels_differ": torch.tensor(False)})

    # ----- on the server, before training

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        own = self.reference(task, state, client, turn)
        kept, moved = self._places(task, state, client, turn), {}
        if self.extract != "transport":
            kept = prefix(task.channels, client.pruning_rate)
        if kept is None:
            alignment = self.align(task, state.weights, own)
            part, moved = dict(alignment.weights), shares_moved(alignment)
            kept = extracted_from(alignment)
        else:
            part = take(state.weights, task.channels, kept)
        differ = self._labels_differ(state, turn.round)
        share: float = (
            (1.0 if differ else 0.5) if self.global_share == "auto" else self.global_share
        )
        anchor = fuse(part, own, 1.0 if self.extract == "slice" else share)
        if differ:
            anchor |= {name: part[name] for name in head_of(task.channels)}
        sent = self.offer(
            task, state, anchor, kept if self.merge == "extraction" else None, metrics=moved
        )
        keeps_head = differ or (self.label_skew == "auto" and turn.round == FIRST_ROUND)
        extras = {**sent.extras, KEEPS_HEAD: torch.tensor(keeps_head)}
        return replace(sent, weights=self.scaled(task, state, anchor, turn), extras=extras)

    def scaled(self, task: Task, state: State, weights: Weights, turn: Turn) -> Weights:
        is_scaled = self._is_scaled(state, turn.round)
        return keep_scale(weights, task.channels) if is_scaled else weights

    @property
    def _follows_agreement(self) -> bool:
        return False

    def reference(self, task: Task, state: State, client: Client, turn: Turn) -> Weights:
        own = super().reference(task, state, client, turn)
        if self.extract != "transport" or not is_brought(state, client):
            return own
        # In the order of the first channels, which it shares with all others from now on.
        first = take(state.weights, task.channels, self.first_channels(task, client))
        return self.align(task, own, first).weights

    def _places(self, task: Task, state: State, client: Client, turn: Turn) -> Channels | None:
        """Return the channels that a client goes on with; None if they are to be matched anew."""
        if self.proxy != "history" or self.rematch == "always":
            return None
        if client.id not in state.history or is_brought(state, client):
            return self.first_channels(task, client)
        place = state.places.get(client.id)
        if place is None or place.round.bit_length() != turn.round.bit_length():
            return None
        sizes = task.channels.kept_sizes(client.pruning_rate)
        has_width = {space: len(index) for space, index in place.channels.items()} == sizes
        return place.channels if has_width else None

    def first_channels(self, task: Task, client: Client) -> Channels:
        if self.places == "first":
            return super().first_channels(task, client)
        return window(task.channels, client.pruning_rate, client.id * GOLDEN)

    def history(self, task: Task, state: State, client: Client) -> Weights | None:
        own, place = super().history(task, state, client), state.places.get(client.id)
        # As it was scaled when it was trained.
        if own is None or not self._is_scaled(state, place.round if place else FIRST_ROUND + 1):
            return own
        return undo_scale(own, task.channels)

    def _is_scaled(self, state: State, round: int) -> bool:
        return self.scale and not self._labels_differ(state, round)

    def _labels_differ(self, state: State, round: int) -> bool:
        """Say whether labels counted as different in a round."""
        if self.label_skew != "auto":
            return self.label_skew == "strong"
        return round > FIRST_ROUND and bool(state.extras["labels_differ"])

    # ----- on the client

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        upload, _ = super().train(task, download, context)
        if self.label_skew == "auto" and context.turn.round == FIRST_ROUND:
            claim = shares_of_classes(task, context.examples.labels)
            upload = replace(upload, extras={} if claim is None else {LABELS: claim})
        if not download.extras[KEEPS_HEAD]:
            return upload, {}
        return upload, {name: upload.weights[name] for name in sorted(head_of(task.channels))}

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights | None:
        own = context.memory
        if not download.extras[KEEPS_HEAD]:
            return download.weights
        if any(tensor.shape != download.weights[name].shape for name, tensor in own.items()):
            return download.weights  # With a new rate, what it kept no longer fits.
        return {**download.weights, **own}

    # ----- on the server, after training

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        if self._is_scaled(state, turn.round):
            upload = replace(upload, weights=undo_scale(upload.weights, task.channels))
        if self.merge == "extraction":
            return self.watched(task, state, upload)  # It has the channels it was extracted from.
        return super().place(task, state, client, upload, turn)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        if self.label_skew != "auto" or turn.round != FIRST_ROUND:
            return super().aggregate(task, state, arrivals, turn)
        claims: list[tuple[int, Tensor]] = []

        def watched() -> Iterator[Arrival]:
            for arrival in arrivals:
                claim = arrival.upload.extras.get(LABELS)
                if claim is not None and _is_fair(claim, task):
                    claims.append((arrival.upload.num_examples, claim))
                yield arrival

        after = super().aggregate(task, state, watched(), turn)
        differ = bool(claims) and distance_of_labels(claims) > MOST_ALIKE
        return replace(after, extras={**after.extras, "labels_differ": torch.tensor(differ)})


def shares_of_classes(task: Task, labels: Tensor) -> Tensor | None:
    """Say which share of a client's examples each class has; None if labels are no classes."""
    if _num_classes(task) is None or labels.dim() != 1 or labels.is_floating_point():
        return None
    counts = torch.bincount(labels, minlength=_num_classes(task) or 0)
    return counts.to(torch.float64) / max(1, len(labels))


def distance_of_labels(claims: Sequence[tuple[int, Tensor]]) -> float:
    """Say how far clients' shares of the classes are from those of all, beyond what chance does.

    It is the share of its examples that a client would have to exchange to be like all (the total
    variation), less what is expected of as many examples drawn from all; the mean by examples.

    Example:
        >>> one, other = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
        >>> round(distance_of_labels([(10**6, one), (10**6, other)]), 2)
        0.5
        >>> distance_of_labels([(10, one), (30, one)])
        0.0
    """
    total = sum(count for count, _ in claims)
    whole = torch.stack([share * (count / total) for count, share in claims]).sum(0)
    spread = (2 / math.pi * whole * (1 - whole)).clamp(min=0).sqrt().sum()
    beyond = [
        (count, ((share - whole).abs().sum() - spread / math.sqrt(count)) / 2)
        for count, share in claims
    ]
    return max(0.0, sum(count * float(distance) for count, distance in beyond) / total)


def _num_classes(task: Task) -> int | None:
    """Count the outputs of the model; None if they are not made by just one layer."""
    channels = task.channels
    found = [space for space, reason in channels.frozen.items() if reason.text == "output"]
    return channels.sizes[found[0]] if len(found) == 1 else None


def _is_fair(claim: Tensor, task: Task) -> bool:
    """Whether these can be shares of the classes."""
    is_shaped = claim.shape == (_num_classes(task),) and claim.dtype == torch.float64
    return is_shaped and bool((claim >= 0).all()) and abs(float(claim.sum()) - 1) < 1e-6


def is_brought(state: State, client: Client) -> bool:
    """Say whether what stands for a client is a model that it brought along."""
    place = state.places.get(client.id)
    return place is not None and place.round == 0


def extracted_from(alignment: Alignment) -> Channels:
    """Read off one-to-one plans which channel of the source each channel of the target is."""
    kept = {}
    for space, plans in alignment.plans.items():
        plan = next(iter(plans.values()))
        kept[space] = torch.empty(plan.shape[1], dtype=torch.int64)
        kept[space][torch.from_numpy(plan.target)] = torch.from_numpy(plan.source)
    return kept


def head_of(channels: ChannelMap) -> frozenset[str]:
    """Name the tensors that make the outputs of a model."""
    outputs = {space for space, reason in channels.frozen.items() if reason.text == "output"}
    return frozenset(
        name
        for name, axes in channels.axes.items()
        if any(segment.space in outputs for segments in axes for segment in segments or ())
    )
