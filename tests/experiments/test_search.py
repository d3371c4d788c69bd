"""Every method is tried as often as any other, and learning rates up to where they diverge."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from subflot.experiments.search import Outcome, Space, Trial, best

RATES = (0.03, 0.1, 0.3)


def searched(
    space: Space, score: Callable[[Trial], float | None]
) -> tuple[dict[Trial, float | None], list[list[Trial]]]:
    """Search where every trial has a known score."""
    found: dict[Trial, float | None] = {}
    steps, batches = space.steps(), []
    batch = next(steps)
    while True:
        batches.append(batch)
        assert not found.keys() & set(batch), "a trial was asked for twice"
        scores = {trial: score(trial) for trial in batch}
        found |= scores
        try:
            batch = steps.send({trial: Outcome(one) for trial, one in scores.items()})
        except StopIteration:
            return found, batches


def peak(rate: float, diverges: float = math.inf) -> Callable[[Trial], float | None]:
    """Scores that fall off around one learning rate, until training fails."""

    def score(trial: Trial) -> float | None:
        own = trial.learning_rate
        return None if own >= diverges else 0.9 - 0.1 * abs(math.log(own / rate))

    return score


def chosen(found: Mapping[Trial, float | None]) -> Trial:
    one = best({trial: Outcome(score) for trial, score in found.items()})
    assert one is not None
    return one


@pytest.mark.parametrize("rate", [1e-4, 0.003, 0.01, 0.05, 0.1, 0.2, 1.0, 4.0])
@pytest.mark.parametrize("settings", [{}, {"mu": [1.0]}, {"mu": [1.0, 2.0], "nu": ["a", "b", "c"]}])
def test_every_search_uses_all_its_trials(rate: float, settings: dict[str, Sequence[Any]]) -> None:
    found, _ = searched(Space(RATES, 8, settings), peak(rate))
    assert len(found) == 8


@pytest.mark.parametrize("rate", [0.005, 0.01, 0.1, 0.9, 3.0])
def test_rates_go_on_beyond_the_grid_until_the_best_lies_inside(rate: float) -> None:
    found, batches = searched(Space(RATES, 8), peak(rate))
    assert batches[0] == [Trial(0.03), Trial(0.1), Trial(0.3)]
    rates = sorted(trial.learning_rate for trial in found)
    best_rate = chosen(found).learning_rate
    assert rates[0] < best_rate < rates[-1]
    # What is left goes to finer steps: the best is near the top, and has near neighbours.
    assert 1 / 1.8 < best_rate / rate < 1.8
    place = rates.index(best_rate)
    assert rates[place + 1] / rates[place - 1] < 4


def test_rates_beyond_the_grid_differ_by_the_factor_of_the_grid() -> None:
    found, batches = searched(Space(RATES, 5), peak(3.0))
    assert batches[1:] == [[Trial(0.95)], [Trial(3.0)]]
    found, _ = searched(Space((0.1, 0.2), 3), peak(1.0))
    assert Trial(0.4) in found


def test_nothing_is_tried_beyond_a_rate_that_fails() -> None:
    found, _ = searched(Space(RATES, 8), peak(10.0, diverges=0.5))
    assert chosen(found).learning_rate < 0.5
    assert [t.learning_rate for t, score in found.items() if score is None][:1] == [0.95]
    assert max(trial.learning_rate for trial in found) == 0.95


def test_where_all_fail_smaller_rates_are_tried() -> None:
    found, _ = searched(Space(RATES, 8), peak(0.001, diverges=0.004))
    assert chosen(found).learning_rate < 0.004
    failing, _ = searched(Space(RATES, 5), lambda _: None)
    assert sorted(t.learning_rate for t in failing)[:2] == [0.003, 0.0095]
    assert len(failing) == 5


def test_an_end_that_is_no_better_than_chance_is_not_gone_beyond() -> None:
    def rising(trial: Trial) -> float:
        return 0.1 if trial.learning_rate <= 0.3 else 0.9

    found, _ = searched(Space(RATES, 6, chance=0.1), rising)
    assert max(found.values(), key=lambda s: s or 0) == 0.1  # The best of equals is the lowest.
    assert min(t.learning_rate for t in found) == 0.03
    other, _ = searched(Space(RATES, 6, chance=0.05), rising)
    assert min(t.learning_rate for t in other) < 0.03


def test_settings_are_tried_one_after_the_other_at_the_best_so_far() -> None:
    def score(trial: Trial) -> float:
        own = dict(trial.settings)
        gain = {None: 0.0, 1.0: -0.1, 2.0: 0.1}[own.get("mu")] + (0.1 if own.get("nu") else 0.0)
        return 0.5 + gain - 0.1 * abs(math.log10(trial.learning_rate))

    found, batches = searched(Space((0.3, 1.0, 3.0), 8, {"mu": [1.0, 2.0], "nu": [True]}), score)
    start = Trial(1.0)
    assert batches[1:3] == [
        [start.having("mu", 1.0), start.having("mu", 2.0)],
        [start.having("mu", 2.0).having("nu", True)],
    ]
    assert chosen(found) == Trial(1.0, (("mu", 2.0), ("nu", True)))
    # The learning rate is looked at again where settings have changed.
    assert {t.learning_rate for t in found if t.settings == chosen(found).settings} == {
        0.32,
        1.0,
        3.2,
    }


def test_trials_are_kept_for_the_settings_however_far_the_rates_go() -> None:
    found, _ = searched(Space(RATES, 8, {"mu": [1.0, 2.0], "nu": [3.0, 4.0]}), peak(100.0))
    assert sum(not trial.settings for trial in found) == 4
    few, _ = searched(Space(RATES, 4, {"mu": [1.0, 2.0]}), peak(0.1))
    assert sum(bool(trial.settings) for trial in few) == 1  # More than there is room for.


def test_a_grid_without_further_trials_is_all_there_is() -> None:
    found, batches = searched(Space((0.01, 0.05, 0.1), 3, {"mu": [1.0]}), peak(9.0))
    assert len(batches) == 1
    assert chosen(found) == Trial(0.1)


def test_the_smallest_rate_and_then_the_first_trial_wins_among_equals() -> None:
    found = {Trial(0.3): 0.5, Trial(0.1): 0.5, Trial(0.1, (("mu", 1.0),)): 0.5}
    assert chosen(found) == Trial(0.1)
