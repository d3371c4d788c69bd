"""What single uploads may do to the merged model, judged by the others of their round.

An upload that is absurdly far from the rest is left out, whatever the method. Beyond that a run may
choose how uploads are merged. `mean` is the method's own average. The other ways change what this
average sees, so that every method that averages has them:

- `clipped`: a change that is longer than the round's median is shortened to it;
- `median`: each entry is the median over the clients that own it;
- `trimmed`: each entry is their mean without the largest and the smallest fifth.

Lengths are root mean squares over entries, for submodels differ in size. With each of the three, no
client counts for more examples than the round's median. Where fewer than three clients own an entry
there is no majority, and `median` and `trimmed` take the mean of clipped changes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor

from subflot.algorithms.base import Algorithm, Arrival, State, Upload
from subflot.channels import Channels, take
from subflot.channels.resize import spread
from subflot.errors import SubflotError, UnknownName
from subflot.task import Task
from subflot.weights import Weights

MERGING = ("mean", "clipped", "median", "trimmed")
TRIMMED = 0.2
"""The share of an entry's owners that is left out at each end."""
MAJORITY = 3
"""So many must be compared before one of them can be told to be wrong."""
MOST_GROWN = 2.0
"""How many times as large as the model an upload may be without being looked at."""
MOST_TIMES = 100.0
"""How many times the round's median the change of an upload that is larger may be."""
MOST_TIMES_EXAMPLES = 1e6
"""The same for the number of examples."""


@dataclass(frozen=True)
class Extent:
    """How much an upload would count: its examples, and how far it is from the global model."""

    num_examples: float
    parameters: float = 0.0
    """The root mean square of their change."""
    statistics: float = 0.0
    """The same of what norm layers count."""

    def bound(self, most: "Extent") -> "Bound":
        """Say how much of an upload counts if none may count for more than this."""
        pairs = ((self.parameters, most.parameters), (self.statistics, most.statistics))
        shares = (limit / length if length > limit else 1.0 for length, limit in pairs)
        return Bound(int(min(self.num_examples, most.num_examples)), *shares)


@dataclass(frozen=True)
class Bound:
    """How much of an upload counts."""

    num_examples: int
    parameters: float
    """By what their change is multiplied."""
    statistics: float

    def share(self, task: Task, name: str) -> float:
        """By what the change of a tensor is multiplied."""
        return self.parameters if name in task.parameters else self.statistics


def check_merging(merging: str) -> None:
    """Refuse a word that is no way of merging."""
    if merging not in MERGING:
        raise UnknownName("merging", merging, MERGING, "docs/robustness.md")


def check_merges(merging: str, algorithm: Algorithm, state: State) -> None:
    """Refuse to set how a method merges that merges no weights."""
    if merging != "mean" and not state.weights:
        raise SubflotError(
            f"merging is {merging}, and {algorithm.name} merges no weights",
            hint=f"leave it at merging=mean for {algorithm.name}",
        )


@torch.no_grad()
def extent_of(task: Task, state: State, upload: Upload) -> Extent:
    """Measure a placed upload against the global model; where there is none, against the start."""
    before = take(state.weights or task.initial, task.channels, _kept(task, upload))
    squares, entries = [0.0, 0.0], [0, 0]
    for name, tensor in upload.weights.items():
        if tensor.is_floating_point():
            kind = int(name not in task.parameters)
            squares[kind] += float(torch.dist(tensor, before[name])) ** 2
            entries[kind] += tensor.numel()
    lengths = [math.sqrt(s / max(1, n)) for s, n in zip(squares, entries, strict=True)]
    return Extent(upload.num_examples, *lengths)


def _kept(task: Task, upload: Upload) -> Channels:
    """Return the channels that an upload has; where nobody named any, the first ones."""
    sizes = {name: tensor.shape for name, tensor in task.initial.items()}
    if upload.kept or all(t.shape == sizes[name] for name, t in upload.weights.items()):
        return upload.kept
    widths = task.channels.sizes_of(upload.weights)
    return {space: torch.arange(widths[space]) for space in task.channels.prunable}


def rms(weights: Weights, names: frozenset[str]) -> float:
    """Return the root mean square of the named tensors."""
    own = [tensor for name, tensor in weights.items() if name in names]
    squares = sum(float(torch.linalg.vector_norm(tensor)) ** 2 for tensor in own)
    return math.sqrt(squares / max(1, sum(tensor.numel() for tensor in own)))


def usual(extents: Sequence[Extent]) -> Extent:
    """Return the medians of a round."""
    return Extent(
        median(one.num_examples for one in extents),
        median(one.parameters for one in extents),
        median(one.statistics for one in extents),
    )


def is_odd(size: float, before: float, num_examples: int, counts: Sequence[int]) -> bool:
    """Say whether an upload must be looked at: it is large, or claims very many examples.

    Args:
        size: the root mean square of its parameters.
        before: of those that it is merged into.
        num_examples: what it claims.
        counts: what all of the round claim.
    """
    return size > MOST_GROWN * before or num_examples > MOST_TIMES_EXAMPLES * median(counts)


def fault_among(one: Extent, extents: Sequence[Extent]) -> str:
    """Say why an upload that is odd is left out; nothing, if it may be merged.

    Args:
        one: of the upload.
        extents: of all uploads of the round that passed the other checks.
    """
    if len(extents) < MAJORITY:
        return ""
    most = usual(extents)
    if one.num_examples > MOST_TIMES_EXAMPLES * most.num_examples:
        return f"it claims {one.num_examples} examples; the round's median is {most.num_examples:g}"
    if one.parameters > MOST_TIMES * most.parameters:
        return (
            f"its change is of size {one.parameters:.3g}; "
            f"the round's median is {most.parameters:.3g}"
        )
    return ""


@torch.no_grad()
def clipped(task: Task, state: State, arrival: Arrival, bound: Bound) -> Arrival:
    """Shorten the change of an upload."""
    upload = arrival.upload
    before = take(state.weights, task.channels, upload.kept)
    weights = {
        name: _clipped(before[name], tensor, bound.share(task, name))
        for name, tensor in upload.weights.items()
    }
    return _with(arrival, weights, bound)


def _with(arrival: Arrival, weights: Weights, bound: Bound) -> Arrival:
    upload = replace(arrival.upload, weights=weights, num_examples=bound.num_examples)
    return Arrival(arrival.client, upload, bound.parameters)


def _clipped(before: Tensor, after: Tensor, share: float) -> Tensor:
    return before.lerp(after, share) if share < 1 and after.is_floating_point() else after


@torch.no_grad()
def agreed(
    merging: str, task: Task, state: State, arrivals: Sequence[tuple[Arrival, Bound]]
) -> Iterator[Arrival]:
    """Give every client, of its entries, what all that own them agree on.

    It goes tensor by tensor, so that of one tensor alone there are as many copies as clients.
    """
    names = {
        name: None
        for arrival, _ in arrivals
        for name, tensor in arrival.upload.weights.items()
        if tensor.is_floating_point()
    }
    merged = {name: _agreed(merging, task, state.weights, arrivals, name) for name in names}
    for arrival, bound in arrivals:
        upload = arrival.upload
        whole = {name: merged[name] for name in upload.weights if name in merged}
        own = take(whole, task.channels, upload.kept)
        yield _with(arrival, {**upload.weights, **own}, bound)


def _agreed(
    merging: str,
    task: Task,
    weights: Weights,
    arrivals: Sequence[tuple[Arrival, Bound]],
    name: str,
) -> Tensor:
    rows, shares = [], []
    for arrival, bound in arrivals:
        upload = arrival.upload
        if name in upload.weights:
            part = {name: upload.weights[name]}
            values, owned = spread(part, weights, task.channels, upload.kept)
            rows.append(values[name].where(owned[name], math.nan))
            shares.append(bound.share(task, name))
    return robust_mean(merging, weights[name], torch.stack(rows), shares)


def robust_mean(merging: str, old: Tensor, values: Tensor, shares: Sequence[float]) -> Tensor:
    """Merge the values of each entry.

    Example:
        >>> values = torch.tensor([[1.0, 5.0], [2.0, math.nan], [90.0, math.nan]])
        >>> robust_mean("median", torch.zeros(2), values, [1.0, 1.0, 0.1])
        tensor([2., 5.])

    Args:
        merging: `median` or `trimmed`.
        old: the tensor before.
        values: a row per client; NaN where it does not own an entry.
        shares: by what each client's change is shortened where there is no majority.
    """
    owners = values.isfinite().sum(0)
    most = (owners - 1).div(2, rounding_mode="floor")  # At least one of the middle stays.
    ends = most if merging == "median" else (TRIMMED * owners).ceil().to(most).minimum(most)
    place = torch.arange(len(values)).view(-1, *(1,) * old.ndim)
    ordered = values.sort(0).values  # Those who do not own an entry come last.
    is_middle = (place >= ends) & (place < owners - ends)
    middle = ordered.where(is_middle, 0.0).sum(0) / (owners - 2 * ends).clamp(min=1)
    shared = torch.tensor(shares, dtype=old.dtype).view(-1, *(1,) * old.ndim)
    bounded = old + ((values - old) * shared).nan_to_num(0.0).sum(0) / owners.clamp(min=1)
    return middle.where(owners >= MAJORITY, bounded)
