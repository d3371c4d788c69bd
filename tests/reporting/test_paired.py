"""A difference comes with an interval that covers the truth as often as it says."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import report, write_run
from numpy.typing import NDArray

from subflot.data.partition import PARTITIONS
from subflot.reporting.paired import (
    MOST,
    SAME_CLIENTS,
    Paired,
    by_seed,
    cohort,
    difference,
    interval,
    meaning,
)

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]
SIMULATIONS, AT_ONCE = 2000, 250


def skewed(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Most clients lose a little, few gain much."""
    return random.exponential(6.0, shape) - 4.0


def discrete(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Two models, 8 to 40 test examples: differences are few fractions, many of them zero."""
    count = random.choice([8, 20, 40], shape)
    good = random.beta(6.0, 1.0, shape)
    right = random.binomial(count, good) - random.binomial(count, np.maximum(good - 0.05, 0.0))
    return np.asarray(100.0 * right / count)


def mostly_zero(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Four clients in five have the same accuracy with both methods."""
    return np.where(random.random(shape) < 0.2, random.choice([5.0, 10.0, -5.0, 25.0], shape), 0.0)


def percentiles(seeds: Sequence[Floats]) -> tuple[Floats, Floats]:
    """The simpler interval: quantiles of the means of resamples."""
    random = np.random.default_rng(2)
    size = seeds[0].shape[-1]
    counts = [random.multinomial(size, [1 / size] * size, 2000).T for _ in seeds]
    means = sum(one @ drawn / size for one, drawn in zip(seeds, counts, strict=True)) / len(seeds)
    low, high = np.quantile(means, (0.025, 0.975), axis=-1)
    return low, high


def covered(draw: Draw, num_clients: int, num_seeds: int, bounds: Any = interval) -> float:
    """Say how often an interval, where there is one, holds the mean of all clients, in percent."""
    random = np.random.default_rng(1)
    truth = draw(random, (1_000_000,)).mean()
    hits = given = 0
    for _ in range(SIMULATIONS // AT_ONCE):
        seeds = [draw(random, (AT_ONCE, num_clients)) for _ in range(num_seeds)]
        low, high = bounds(seeds)
        given += int((np.isfinite(low) & np.isfinite(high)).sum())
        hits += int((np.isfinite(low) & (low <= truth) & (truth <= high) & np.isfinite(high)).sum())
    return 100 * hits / given


@pytest.mark.parametrize("draw", [skewed, discrete, mostly_zero])
@pytest.mark.parametrize("num_clients", [20, 30])
def test_intervals_cover_the_truth_95_times_in_100(draw: Draw, num_clients: int) -> None:
    assert 93 <= covered(draw, num_clients, num_seeds=3) <= 97


def test_an_interval_of_one_seed_covers_too_where_percentiles_do_not() -> None:
    assert 93 <= covered(skewed, num_clients=20, num_seeds=1) <= 97
    assert covered(skewed, num_clients=20, num_seeds=1, bounds=percentiles) < 91


def test_a_small_case_agrees_with_all_resamples_counted_one_by_one() -> None:
    found = [1.0, 2.0, 4.0, 8.0, 16.0]  # 31 / 5 on average.
    error = stdev(found) / 5**0.5

    def scaled(drawn: tuple[float, ...]) -> float:
        off, spread = fmean(drawn) - 6.2, stdev(drawn) / 5**0.5
        return off / spread if spread else float("inf") * off

    every = sorted(map(scaled, itertools.product(found, repeat=5)))
    low, high = (6.2 - error * every[round(len(every) * share)] for share in (0.975, 0.025))
    ours = difference({0: dict(enumerate(found))}, {0: dict.fromkeys(range(5), 0.0)})
    assert ours is not None
    assert ours.mean == pytest.approx(6.2)
    # Of 4,000 draws, not of all: the ends differ by what the draw of quantiles leaves open.
    assert ours.low == pytest.approx(low, abs=0.05 * (high - low))
    assert ours.high == pytest.approx(high, abs=0.05 * (high - low))


def test_every_seed_counts_the_same_and_only_common_clients_count() -> None:
    own = {0: {1: 60.0, 2: 80.0, 3: 0.0}, 1: {1: 50.0}, 2: {1: 99.0}}
    other = {0: {1: 50.0, 2: 60.0}, 1: {1: 50.0, 7: 100.0}, 3: {1: 0.0}}
    # Seed 0: +10 and +20, on average +15; seed 1: 0.
    assert difference(own, other) == Paired(
        mean=7.5, low=None, high=None, seeds=(0, 1), num_clients=3, num_gain=2, num_lose=0
    )
    assert difference({0: {1: 5.0}}, {1: {1: 5.0}}) is None
    assert difference({0: {1: 5.0}}, {0: {2: 5.0}}) is None


def test_what_all_clients_gain_alike_has_no_interval() -> None:
    shares = (0.55, 0.5), (0.35, 0.3)  # Not the same difference to the last bit.
    own, other = ({0: {c: 100 * s[side] for c, s in enumerate(shares)}} for side in (0, 1))
    found = difference(own, other)
    assert found is not None
    assert (str(found), found.is_certain) == ("+5.00", False)


def test_two_clients_bound_nothing() -> None:
    found = difference({0: {1: 60.0, 2: 72.0}}, {0: {1: 50.0, 2: 70.0}})
    assert found is not None
    assert (found.mean, found.low, found.high) == (6.0, None, None)  # Half of all draws are alike.


def test_one_client_in_thirty_bounds_nothing() -> None:
    own = {0: {client: 20.0 * (client == 7) for client in range(30)}}
    found = difference(own, {0: dict.fromkeys(range(30), 0.0)})
    assert found is not None
    assert (found.low, found.high, found.is_certain) == (None, None, False)


def test_an_interval_stays_within_what_accuracies_can_differ_by() -> None:
    found = [100.0, 100.0, 95.0, 100.0, 90.0, 95.0, 100.0, 5.0]
    low, high = interval([np.array(found)])
    assert low < -MOST < MOST < high  # One client of eight pulls far to its side.
    ours = difference({0: dict(enumerate(found))}, {0: dict.fromkeys(range(8), 0.0)})
    assert ours is not None
    assert (ours.low, ours.high) == (-MOST, MOST)


@given(st.lists(st.integers(-20, 20), min_size=6, max_size=12))
def test_the_other_way_round_it_is_the_mirror_image(steps: list[int]) -> None:
    own = {0: {client: 5.0 * step for client, step in enumerate(steps)}}
    zero = {0: dict.fromkeys(range(len(steps)), 0.0)}
    one, other = difference(own, zero), difference(zero, own)
    assert one is not None
    assert other is not None
    assert other.mean == pytest.approx(-one.mean)
    assert (one.num_gain, one.num_lose) == (other.num_lose, other.num_gain)
    if one.low is not None and one.high is not None:
        assert (other.low, other.high) == pytest.approx((-one.high, -one.low))
        assert one.low <= one.mean <= one.high


def test_seeds_are_kept_and_never_drawn() -> None:
    # Seeds are 40 points apart and clients one: drawing seeds would give more than 40 points.
    own = {seed: {c: 40.0 * seed + c % 2 for c in range(10)} for seed in (0, 1, 2)}
    found = difference(own, {seed: dict.fromkeys(range(10), 0.0) for seed in own})
    assert found is not None
    assert found.mean == pytest.approx(40.5)
    assert found.low == pytest.approx(40.5, abs=0.4)
    assert found.high == pytest.approx(40.5, abs=0.4)


def test_a_mark_stands_where_zero_is_excluded() -> None:
    sure = Paired(2.0, 0.5, 3.5, (0,), 9, 9, 0)
    assert str(sure) == "+2.00 [+0.50, +3.50] †"
    assert str(Paired(-2.0, -3.5, -0.5, (0,), 9, 0, 9)) == "-2.00 [-3.50, -0.50] †"
    assert str(Paired(0.5, -0.5, 1.5, (0,), 9, 5, 4)) == "+0.50 [-0.50, +1.50]"
    assert str(Paired(0.5, 0.0, 1.5, (0,), 9, 5, 4)) == "+0.50 [+0.00, +1.50]"
    assert sure.fields()["is_certain"] is True


def test_one_seed_is_never_called_an_interval_over_seeds() -> None:
    one, three = (Paired(0.5, 0.0, 1.5, seeds, 9, 5, 4) for seeds in ((0,), (0, 1, 2)))
    assert meaning([one]).endswith("over the clients of one division, not over seeds")
    assert meaning([three]).endswith("over clients within each seed, not over seeds")
    assert "one division where there is one seed and else clients within" in meaning([three, one])


def test_records_are_read_by_seed_in_percent(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / str(seed), [[report(0, 10 + 5 * seed), report(1, 20)]], seed=seed)
        for seed in (0, 1)
    ]
    assert by_seed(runs) == {0: {0: 50.0, 1: 100.0}, 1: {0: 75.0, 1: 100.0}}
    assert by_seed(runs[:1], "extracted") == {0: {0: 25.0, 1: 50.0}}


def test_runs_on_other_clients_are_of_another_cohort(tmp_path: Path) -> None:
    done = [[report(0, 5)]]
    one = write_run(tmp_path / "a", done, algorithm="heterofl")
    other = write_run(tmp_path / "b", done, algorithm="fedavg", learning_rate=0.5)
    apart = write_run(tmp_path / "c", done, concentration=9.0)
    rates = write_run(tmp_path / "d", done, pruning_rates=(0.5,))
    assert cohort(one) == cohort(other)
    assert len({cohort(one), cohort(apart), cohort(rates)}) == 3


def test_every_setting_of_a_partition_tells_cohorts_apart() -> None:
    assert {key for one in PARTITIONS.values() for key in one.settings} <= set(SAME_CLIENTS)
