"""Flado: every client trains the channels where its updates agree with those of the others.

Paper: "Adaptive Channel Sparsity for Federated Learning under System Heterogeneity", CVPR 2023,
doi:10.1109/CVPR52729.2023.01957.

This is a reconstruction. The text and code of the paper were not to be had; it follows its
abstract and the code of its authors' earlier trajectory-weighted dropout. Each client has a
probability of keeping each channel. After a round the server compares the updates of all clients
channel by channel and chooses new probabilities, so that a client spends its budget where updates
are large and reinforce each other.

Where this departs from that code: a client trains one submodel of a fixed size in a round, cut by
numbers that all clients share, in place of a new dropout mask in every step of the full model. The
budget is one of channels: the probabilities of each layer have the client's width as their mean.
Entries are averaged over the clients that trained them. Updates are compared by sketches of a
fixed length, so that the server need not hold all uploads at once. A residual sum has one
probability per channel.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from subflot.algorithms.averaging import owner_average, placed
from subflot.algorithms.base import Arrival, Client, State, Turn, Upload
from subflot.algorithms.client_table import table_for, with_rows
from subflot.algorithms.fedavg import FedAvg
from subflot.channels import ChannelMap, Channels
from subflot.channels.rows import rows
from subflot.errors import SubflotError
from subflot.task import Task

KEEP = "keep"
"""In the state: probabilities before they are fitted to a budget, shape (clients, channels)."""
LEAST = 0.05
"""No probability falls below this, or below the client's width if that is less: all are tried."""
FIRST_STEP = 0.5
"""Of the search: by how much the logarithm of a probability changes at most. Fifty steps then come
within a hundredth of what thousands reach."""


@dataclass(frozen=True)
class Flado(FedAvg):
    """Submodels drawn by probabilities that follow the agreement of the clients' updates.

    Attributes:
        rule: new probabilities make the `variance` of the merged update small, or rise with the
            `alignment` of a client's update with the mean.
        steps: of the search for the least variance, from the probabilities of before.
        step_size: eta_p, how far probabilities rise at most in a round with `alignment`.
        sketch_size: numbers that stand for what a client changed in one channel; channels with
            fewer weights are compared exactly.
    """

    name: ClassVar[str] = "flado"
    paper: ClassVar[str] = "CVPR 2023"
    remark: ClassVar[str] = "reconstruction"
    ignores_budgets: ClassVar[bool] = False

    rule: Literal["variance", "alignment"] = "variance"
    steps: int = 50
    step_size: float = 0.1
    sketch_size: int = 128

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("sketch_size", 1)):
            if getattr(self, name) < least:
                raise SubflotError(f"{name} is {getattr(self, name)}", hint=f"at least {least}")

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        num_channels = sum(task.channels.sizes[space] for space in task.channels.prunable)
        return State(task.initial, {KEEP: table_for(clients, num_channels)})

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        row = with_rows(state.extras[KEEP], [client])[[client.id]]
        # The same numbers for all clients: where one is more likely to keep than another, it does.
        thresholds = torch.rand(row.shape[1], generator=turn.generator("thresholds"))
        counts = task.channels.kept_sizes(client.pruning_rate)
        kept = {}
        for space, (own, drawn) in _by_space(task.channels, row[0], thresholds).items():
            keep = projected(own[None], width_in(task.channels, [client], space))[0]
            order = (keep / drawn).argsort(descending=True, stable=True)
            kept[space] = order[: counts[space]].sort().values
        return kept

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        sketches = {
            space: self._sketch(task, state, upload, space, turn)
            for space in task.channels.prunable
        }
        return replace(upload, extras=sketches)

    def _sketch(self, task: Task, state: State, upload: Upload, space: str, turn: Turn) -> Tensor:
        """Condense what a client changed, a row per channel; zero where it had no channel."""
        channels, parts = task.channels, []
        for name, axis in channels.producers.get(space) or channels.members(space):
            part = {name: upload.weights[name]}
            values, owned = placed(part, state.weights, channels, upload.kept)
            change = (state.weights[name] - values[name]) * owned[name]
            segments = channels.axes[name][axis]
            assert segments is not None
            changes = rows(change, axis, segments, space, channels.sizes)
            parts.append(condensed(changes, self.sketch_size, turn.generator("sketch", name)))
        return torch.cat(parts, dim=1)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        came: list[Arrival] = []

        def noted() -> Iterator[Arrival]:
            for arrival in arrivals:
                came.append(replace(arrival, upload=replace(arrival.upload, weights={}, kept={})))
                yield arrival

        weights = owner_average(state.weights, task.channels, noted())
        if not came:
            return State(weights, state.extras)
        clients = [arrival.client for arrival in came]
        ids = [client.id for client in clients]
        keep = with_rows(state.extras[KEEP], clients)
        keep[ids] = self._improved(task, keep[ids], came)
        return State(weights, {KEEP: keep})

    def _improved(self, task: Task, keep: Tensor, came: Sequence[Arrival]) -> Tensor:
        """Return new probabilities for the clients of a round, shape (clients, channels)."""
        clients = [arrival.client for arrival in came]
        examples = torch.tensor([float(arrival.upload.num_examples) for arrival in came])
        shares = (examples / examples.sum()).double()
        new = []
        for space, (old,) in _by_space(task.channels, keep).items():
            width = width_in(task.channels, clients, space)
            start = projected(old, width)
            updates = torch.stack([arrival.upload.extras[space] for arrival in came]).double()
            agreement = agreements(updates * shares[:, None, None])
            if self.rule == "variance":
                new.append(least_variance(agreement, start, width, self.steps))
            else:
                new.append(towards_mean(agreement, start, width, self.step_size))
        return torch.cat(new, dim=1)


def condensed(changes: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Shorten rows so that products of two of them stay what they were on average.

    Entries are given signs and added up in groups, both drawn at random. Rows that are short enough
    stay as they are.
    """
    length = changes.shape[1]
    if length <= size:
        return changes
    group = torch.randint(size, (length,), generator=generator)
    sign = torch.randint(2, (length,), generator=generator) * 2 - 1
    return changes.new_zeros(len(changes), size).index_add_(1, group, changes * sign)


def agreements(updates: Tensor) -> Tensor:
    """Multiply updates (clients, channels, values) in pairs, shape (channels, clients, clients)."""
    by_channel = updates.transpose(0, 1)
    return by_channel @ by_channel.transpose(1, 2)


def projected(keep: Tensor, width: Tensor) -> Tensor:
    """Scale rows so that, held between `LEAST` and 1, they have the mean `width`.

    Args:
        keep: positive, shape (clients, channels).
        width: of each client, shape (clients,).
    """
    least = width.clamp(max=LEAST)[:, None]
    # The mean grows in straight pieces with the scale; they end where an entry leaves `least` or
    # reaches 1.
    ends, order = torch.cat([least / keep, 1 / keep], dim=1).sort(dim=1)
    slopes = torch.cat([keep, -keep], dim=1).gather(1, order).cumsum(1)
    sums = torch.cat([least * keep.shape[1], slopes[:, :-1] * ends.diff(dim=1)], 1).cumsum(1)
    target = (width * keep.shape[1])[:, None]
    piece = (torch.searchsorted(sums, target) - 1).clamp(0, ends.shape[1] - 2)
    missing = target - sums.gather(1, piece)
    scale = ends.gather(1, piece) + missing / slopes.gather(1, piece).clamp(min=1e-12)
    held = torch.maximum(keep * scale, least).clamp(max=1.0)
    return torch.where(width[:, None] >= 1, 1.0, held)


def variance(agreement: Tensor, keep: Tensor) -> Tensor:
    """J, the mean squared length of the merged update when channels are kept by `keep`.

    With shared thresholds both of two clients keep a channel as often as the less likely does.
    """
    by_channel = keep.T
    larger = torch.maximum(by_channel[:, :, None], by_channel[:, None, :])
    return (agreement / larger).sum()


def least_variance(agreement: Tensor, start: Tensor, width: Tensor, steps: int) -> Tensor:
    """Search probabilities with a small J by steps against its slope; return the best that came up.

    Args:
        agreement: shape (channels, clients, clients).
        start: shape (clients, channels).
        width: mean of each client's probabilities.
        steps: how many, each shorter than the one before.
    """
    keep = best = start
    lowest = torch.inf
    scratch = torch.empty_like(agreement)
    for step in range(steps + 1):
        by_channel = keep.T
        # Of two clients the one that is more likely to keep a channel decides; of equals, both.
        torch.sub(by_channel[:, :, None], by_channel[:, None, :], out=scratch)
        decided = scratch.heaviside_(scratch.new_tensor(0.5)).mul_(agreement).sum(2).T
        value = 2 * float((decided / keep).sum())  # `variance`
        if value < lowest:
            best, lowest = keep, value
        slope = -2 * decided / keep**2
        largest = slope.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
        # Factors rather than summands: scaling to the width is the nearest point in that geometry.
        factor = (-FIRST_STEP / (1 + step) ** 0.5 * slope / largest).exp()
        keep = projected(keep * factor, width)
    return best


def towards_mean(agreement: Tensor, start: Tensor, width: Tensor, step_size: float) -> Tensor:
    """Raise a client's probabilities where its update points along the mean of all."""
    aligned = agreement.sum(2).T
    largest = aligned.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
    return projected((start + step_size * aligned / largest).clamp(min=LEAST), width)


def width_in(channels: ChannelMap, clients: Sequence[Client], space: str) -> Tensor:
    """Share of a space's channels that each client keeps."""
    counts = [channels.kept_sizes(client.pruning_rate)[space] for client in clients]
    return torch.tensor(counts, dtype=torch.float64) / channels.sizes[space]


def _by_space(channels: ChannelMap, *tables: Tensor) -> Mapping[str, tuple[Tensor, ...]]:
    """Cut tables, whose columns are all channels, into those of each space."""
    sizes = [channels.sizes[space] for space in channels.prunable]
    pieces = zip(*(table.split(sizes, dim=-1) for table in tables), strict=True)
    return dict(zip(channels.prunable, pieces, strict=True))
