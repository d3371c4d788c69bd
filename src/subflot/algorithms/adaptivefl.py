"""AdaptiveFL: the server draws sizes, learns who can train them, and clients cut what is too large.

Paper: "AdaptiveFL: Adaptive Heterogeneous Federated Learning for Resource-Constrained AIoT
Systems", DAC 2024, arXiv:2311.13166.

A pool of submodels is made by leaving the first layers whole and narrowing the others. The
server draws members of the pool and picks a client for each by two tables, of what a client was
able to train and of how often it was tried; a client without room trains a smaller member.

Where this departs from the paper: a level of the pool is made for each pruning rate that the
clients have, so that its largest member has at most the parameters of the uniform model of that
rate. Every layer is a unit; the whole first layers of a level reach to three depths, deeper for
wider levels and near the paper's for ResNet18, and members that would leave the rest much narrower
than the rate says are left out. A client's room is certain, and known to itself alone. It cuts
a member out of what it received, which must contain it; in the paper's code it may train what it
was not sent. Where all rewards are zero, the client is drawn evenly. A client is judged on what it
trained last, which is often smaller than what it has room for: sizes are drawn evenly, and it
holds no more than it was sent. The paper judges the members of the pool instead.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from subflot.algorithms.averaging import owner_average
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
from subflot.algorithms.client_table import table_for, with_rows
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.widths import (
    Sizes,
    as_pool,
    as_sizes,
    budget_of,
    first_channels,
    fitted,
    largest_that_fits,
    num_parameters,
    sizes_at,
)
from subflot.channels import ChannelMap, Channels, take
from subflot.task import Task
from subflot.weights import Weights

POOL, LEVELS, ABLE, TRIED = "pool", "levels", "able", "tried"
"""In the state: the pool, the level of each member, T_r (clients, members) and T_c (clients,
levels)."""
MEMBERS_PER_LEVEL = 3
LEAST_WIDTH = 0.7
"""A member is left out if the layers behind its first ones were narrower than this share of the
level's width."""
MOST_REWARD = 0.5


@dataclass(frozen=True)
class AdaptiveFL(FedAvg):
    """Submodels from a pool, assigned by what was learned about the clients."""

    name: ClassVar[str] = "adaptivefl"
    paper: ClassVar[str] = "DAC 2024, arXiv:2311.13166"
    remark: ClassVar[str] = "clients are judged on the size that they were offered last"
    ignores_budgets: ClassVar[bool] = False

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        members, levels = make_pool(task, [client.pruning_rate for client in clients])
        extras = {
            POOL: as_pool(task.channels, members),
            LEVELS: levels,
            ABLE: table_for(clients, len(members)),
            TRIED: table_for(clients, 1 + int(levels.max())),
        }
        return State(task.initial, extras)

    def invite(
        self, task: Task, state: State, clients: Sequence[Client], count: int, turn: Turn
    ) -> Sequence[Client]:
        draw = turn.generator("offers")
        levels = state.extras[LEVELS]
        offers = torch.randint(len(levels), (count,), generator=draw).tolist()
        left = sorted(clients, key=lambda client: client.id)
        able, tried = (
            with_rows(state.extras[name], left)[[client.id for client in left]]
            for name in (ABLE, TRIED)
        )
        chances = rewards(able, tried, levels)
        invited = []
        for offer in offers:
            chance = chances[:, levels[offer]]
            if not chance.sum() > 0:
                chance = torch.ones_like(chance)
            drawn = int(torch.multinomial(chance, 1, generator=draw))
            invited.append(replace(left.pop(drawn), offer=offer))
            chances = torch.cat([chances[:drawn], chances[drawn + 1 :]])
        return invited

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        offer = -1 if client.offer is None else client.offer
        return first_channels(as_sizes(task.channels, state.extras[POOL][offer]))

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        sent = super().download(task, state, client, turn)
        return replace(sent, extras={POOL: state.extras[POOL]})

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        return super().train(task, self._cut(task, download, context), context)

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        return self._cut(task, download, context).weights

    def _cut(self, task: Task, download: Download, context: ClientContext) -> Download:
        """Let the client cut what it received to what it has room for."""
        received = {space: len(index) for space, index in download.kept.items()}
        rate = context.client.pruning_rate
        _, sizes = fitted(task, download.extras[POOL], received, rate)
        kept = first_channels(sizes)
        own = task.channels.resized(received)
        return replace(download, weights=take(download.weights, own, kept), kept=kept)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        seen: list[tuple[Client, Sizes]] = []

        def noted() -> Iterator[Arrival]:
            for arrival in arrivals:
                sizes = {space: len(index) for space, index in arrival.upload.kept.items()}
                seen.append((arrival.client, sizes))
                yield arrival

        weights = owner_average(state.weights, task.channels, noted())
        extras = dict(state.extras)
        pool: list[Sizes] = [as_sizes(task.channels, row) for row in extras[POOL]]
        for name in (ABLE, TRIED):
            extras[name] = with_rows(extras[name], [client for client, _ in seen])
        for client, sizes in seen:
            sent = len(pool) - 1 if client.offer is None else client.offer
            trained = pool.index(sizes) if sizes in pool else 0
            extras[ABLE][client.id] = learned(extras[ABLE][client.id], sent, trained)
            for member in (trained, sent):
                extras[TRIED][client.id, extras[LEVELS][member]] += 1
        return State(weights, extras)


def make_pool(task: Task, pruning_rates: Iterable[float]) -> tuple[list[Sizes], Tensor]:
    """Make the members of the pool, small ones first, and say of each to which level it belongs."""
    rates = sorted({rate for rate in pruning_rates if rate > 0}, reverse=True)
    members: list[Sizes] = []
    levels: list[int] = []
    for level, rate in enumerate(rates):
        depths = [
            (level + step) / (len(rates) + MEMBERS_PER_LEVEL) for step in range(MEMBERS_PER_LEVEL)
        ]
        for member in _level(task, rate, depths):
            members.append(member)
            levels.append(level)
    members.append({space: task.channels.sizes[space] for space in task.channels.prunable})
    return members, torch.tensor([*levels, len(rates)])


def _level(task: Task, rate: float, depths: Sequence[float]) -> list[Sizes]:
    """Make the members of one level: one width, the first layers whole to different depths."""
    starts = sorted({round(depth * len(task.channels.prunable)) for depth in depths})
    while starts:
        width = _widest_behind(task, starts[-1], rate)
        if width >= LEAST_WIDTH * (1 - rate):
            found = [_member(task.channels, start, width) for start in starts]
            return [one for place, one in enumerate(found) if one not in found[:place]]
        starts.pop()
    return [task.channels.kept_sizes(rate)]


def _widest_behind(task: Task, start: int, rate: float) -> float:
    """Find how wide a model within the budget of a rate is behind its first layers."""
    budget = budget_of(task, rate)

    def fits(width: float) -> bool:
        return num_parameters(task, _member(task.channels, start, width)) <= budget

    return largest_that_fits(fits, 1 - rate)


def _member(channels: ChannelMap, start: int, width: float) -> Sizes:
    places = enumerate(channels.prunable)
    return sizes_at(channels, {space: 1.0 if at < start else width for at, space in places})


def rewards(able: Tensor, tried: Tensor, levels: Tensor) -> Tensor:
    """Say how much each client is wanted at each level, shape (clients, levels).

    Args:
        able: T_r, shape (clients, members).
        tried: T_c, shape (clients, levels).
        levels: of each member.
    """
    # What a client was able to train speaks for all that is smaller: sums from the back.
    tails = able.flip(1).cumsum(1).flip(1)
    shares = tails / tails[:, :1].clamp(min=1e-12)
    able_to = torch.stack([shares[:, levels == level].mean(1) for level in levels.unique()], 1)
    return able_to.clamp(max=MOST_REWARD) / tried.sqrt()


def learned(able: Tensor, sent: int, trained: int) -> Tensor:
    """Return a client's row of T_r after it was sent a member and trained another, or the same."""
    able = able.clone()
    if trained == sent:
        able[sent:] += 1
        if sent == len(able) - 1:
            able[sent] += 3
    else:
        able[trained] += 3
        above = able[trained + 1 :]
        above -= torch.arange(1, len(above) + 1)
        above.clamp_(min=0)
    return able
