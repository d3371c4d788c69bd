"""How certain a difference between two methods is, client by client.

Methods are run on the same clients, so what is drawn again is the difference of each client. The
interval is a studentised bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap,
12.5): clients are drawn again within each seed, every draw is divided by its own standard error,
and the quantiles are taken of that. Percentiles are too short for clients as few and skewed as a
run's: `tests/reporting/test_paired.py` counts how often both cover the truth. BCa lies between.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.results import RunRecord

RECOMMENDED = "subflot-plus"
"""What the others are compared with, where it was run."""
KINDS = ("trained", "extracted")
"""Accuracies that every client has; `global` is one number a seed."""
LEVEL = 0.95
NUM_RESAMPLES = 4000
MOST = 100.0
"""Percentage points by which accuracies can differ."""
FLAT = 1e-12
"""Variance of a resample, as a share of that of all clients, below which its clients are alike."""
DIGITS = 9
"""Decimals of a difference; what is beyond them is the rounding of shares."""
MARK = "†"
"""Stands behind an interval that excludes zero."""
SAME_CLIENTS = (
    *("data", "domains", "labels", "max_examples", "num_clients"),
    *("partition", "concentration", "classes_per_client", "min_examples"),
    *("test_share", "validation_share", "measure_on"),
    *("pruning_rates", "client_rates", "budgets", "budget", "redraw_every"),
)
"""Settings in which runs of one seed agree if client 3 of one is client 3 of the other."""

BySeed = Mapping[int, Mapping[int, float]]
"""Seed -> client -> accuracy in percent."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Paired:
    """What clients gain with one method against another, in percentage points.

    Attributes:
        mean: over clients of the means of each seed, over seeds.
        low, high: the interval, over clients of these seeds; None where clients are too few, or
            too many gain the same, for one that is bounded.
        seeds: those that both methods have.
        num_clients: pairs, over all seeds.
        num_gain, num_lose: of these, who is better off and who worse.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    num_clients: int
    num_gain: int
    num_lose: int

    @property
    def is_certain(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def __str__(self) -> str:
        """Write the difference, its interval, and the mark if that excludes zero."""
        if self.low is None or self.high is None:
            return f"{self.mean:+.2f}"
        tail = f" {MARK}" if self.is_certain else ""
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]{tail}"

    def fields(self) -> dict[str, Any]:
        """Return what it holds, for JSON."""
        return {**asdict(self), "is_certain": self.is_certain}


def meaning(found: Iterable[Paired]) -> str:
    """Say what the intervals of differences are about; that of one seed is none over seeds."""
    counts = {len(one.seeds) for one in found}
    over = "clients within each seed"
    if 1 in counts:
        over = "the clients of one division" + (
            f" where there is one seed and else {over}" if len(counts) > 1 else ""
        )
    return f"{100 * LEVEL:.0f} % bootstrap interval over {over}, not over seeds"


def difference(own: BySeed, other: BySeed) -> Paired | None:
    """Compare two methods on the clients and seeds that both have; None if there are none."""
    strata = {}
    for seed in sorted(own.keys() & other.keys()):
        both = sorted(own[seed].keys() & other[seed].keys())
        if both:
            found = np.array([own[seed][one] - other[seed][one] for one in both])
            strata[seed] = found.round(DIGITS)
    if not strata:
        return None
    every = np.concatenate(list(strata.values()))
    low = high = None
    if min(map(len, strata.values())) > 1:
        ends = np.array(interval(list(strata.values())))
        if np.isfinite(ends).all():
            low, high = (float(end) for end in ends.clip(-MOST, MOST))
    return Paired(
        mean=fmean(float(one.mean()) for one in strata.values()),
        low=low,
        high=high,
        seeds=tuple(strata),
        num_clients=len(every),
        num_gain=int((every > 0).sum()),
        num_lose=int((every < 0).sum()),
    )


def interval(strata: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Bound the mean over seeds of the mean over clients.

    An end is infinite where too few clients differ from the others, and not a number where none
    does.

    Args:
        strata: of each seed the differences, of shape (..., clients), at least two of them.
    """
    centre = sum(one.mean(-1) for one in strata) / len(strata)
    shift: Any = 0.0
    variance: Any = 0.0
    own: Any = 0.0
    for values, counts in zip(strata, _resamples(tuple(v.shape[-1] for v in strata)), strict=True):
        size = values.shape[-1]
        off = values - values.mean(-1, keepdims=True)
        first, second = off @ counts / size, off**2 @ counts / size
        shift = shift + first
        variance = variance + np.maximum(second - first**2, 0.0) / (size - 1)
        own = own + (off**2).mean(-1) / (size - 1)
    # A draw of clients that are all alike says nothing of the spread: it bounds nothing.
    is_flat = variance <= FLAT * own[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(is_flat, np.copysign(np.inf, shift), shift / np.sqrt(variance))
    scaled[is_flat & (shift**2 <= FLAT * own[..., None])] = 0.0
    below = round(NUM_RESAMPLES * (1 - LEVEL) / 2)
    scaled.partition((below, NUM_RESAMPLES - 1 - below), axis=-1)
    error = np.where(own > 0, np.sqrt(own), np.nan) / len(strata)
    low = centre - error * scaled[..., NUM_RESAMPLES - 1 - below]
    high = centre - error * scaled[..., below]
    return low, high


@lru_cache(maxsize=8)
def _resamples(sizes: tuple[int, ...]) -> list[Floats]:
    """Of each stratum, how often each client is drawn in every resample: (clients, resamples).

    The raw stream of a generator is the same in all versions of numpy, and so are tables.
    """
    stream = np.random.PCG64(0)
    found = []
    for size in sizes:
        drawn = stream.random_raw((NUM_RESAMPLES, size)) % np.uint64(size)
        place = drawn.astype(np.int64) + size * np.arange(NUM_RESAMPLES)[:, None]
        counts = np.bincount(place.ravel(), minlength=NUM_RESAMPLES * size)
        found.append(counts.reshape(NUM_RESAMPLES, size).T.astype(np.float64))
    return found


# ----- from records


def by_seed(records: Sequence[RunRecord], kind: str = "trained") -> dict[int, dict[int, float]]:
    """Read the accuracies of a method's runs, in percent."""
    return {
        record.config.get("seed", 0): {
            client: 100 * share for client, share in record.client_accuracies(kind).items()
        }
        for record in records
    }


def cohort(record: RunRecord) -> tuple[str, ...]:
    """Say on whom a run was made: runs of which this is equal can be compared in pairs."""
    return tuple(str(record.config.get(key)) for key in SAME_CLIENTS)


def compare(
    own: Sequence[RunRecord], other: Sequence[RunRecord], kind: str = "trained"
) -> Paired | None:
    """Compare the runs of two methods; seeds that were not run on the same clients are left out."""
    whom = {record.config.get("seed", 0): cohort(record) for record in other}
    mine = [one for one in own if whom.get(one.config.get("seed", 0)) == cohort(one)]
    return difference(by_seed(mine, kind), by_seed(other, kind))


def reference(algorithms: Sequence[str]) -> int:
    """Choose which of several methods the others are compared with; return its place.

    Example:
        >>> reference(["heterofl", "subflot-plus"]), reference(["heterofl", "fedavg"])
        (1, 0)
    """
    return algorithms.index(RECOMMENDED) if RECOMMENDED in algorithms else 0
