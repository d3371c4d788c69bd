"""Which settings a method is tried with, one batch after the other, until its trials are used up.

Nothing is run here: whoever searches is told what a batch of trials led to and says which come
next. The same results always lead to the same trials, so a search that was cut off goes on.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

FINEST = 1.1
"""Rates that lie closer to each other, as a factor, are not told apart."""


@dataclass(frozen=True)
class Trial:
    """What a method is tried with: its learning rate, and what differs from the run's settings."""

    learning_rate: float
    settings: tuple[tuple[str, Any], ...] = ()

    def at(self, rate: float) -> "Trial":
        """Return the trial of another learning rate, rounded to two digits."""
        return replace(self, learning_rate=float(f"{rate:.2g}"))

    def having(self, key: str, value: Any) -> "Trial":
        """Return the trial in which one setting is another."""
        others = ((name, old) for name, old in self.settings if name != key)
        return replace(self, settings=(*others, (key, value)))


@dataclass(frozen=True)
class Outcome:
    """What a trial led to: its accuracy on validation examples, or why it did not finish."""

    score: float | None
    reason: str = ""


Outcomes = Mapping[Trial, Outcome]
Steps = Generator[list[Trial], Outcomes, None]


@dataclass(frozen=True)
class Space:
    """What there is to search.

    Attributes:
        rates: the coarse grid of learning rates.
        trials: how many a method gets.
        settings: setting -> other values of it than the run's own.
        chance: the accuracy of guessing; who has no more has not learnt.
    """

    rates: tuple[float, ...]
    trials: int
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    chance: float = 0.0

    @property
    def factor(self) -> float:
        """By how much the grid's rates differ, on average."""
        lowest, highest = min(self.rates), max(self.rates)
        steps = len(set(self.rates)) - 1
        return float((highest / lowest) ** (1 / steps)) if steps else 3.0

    @property
    def reserve(self) -> int:
        """How many trials wait for the settings; learning rates get one more than their grid."""
        values = sum(len(values) for values in self.settings.values())
        return max(0, min(values, self.trials - len(self.rates) - 1))

    def steps(self) -> Steps:
        """Yield batches of trials and take what they led to.

        First come learning rates: the grid, and rates beyond it as long as the best one lies at an
        end. Then come the settings, one after the other, at what is best by then. What is left goes
        to the neighbours of the best learning rate, and to finer steps around it.
        """
        found: dict[Trial, Outcome] = {}
        yield from self._ask(found, [Trial(rate) for rate in sorted(set(self.rates))])
        while len(found) < self.trials - self.reserve:
            before = len(found)
            yield from self._ask(found, self._around(found, self.factor)[:1])
            if len(found) == before:
                break
        for key, values in self.settings.items():
            if start := best(found):
                yield from self._ask(found, [start.having(key, value) for value in values])
        factor = self.factor
        while len(found) < self.trials and factor >= FINEST:
            before = len(found)
            yield from self._ask(found, self._around(found, factor))
            # What was best may be no more; then the search is coarse again.
            factor = self.factor if len(found) > before else sqrt(factor)

    def _ask(self, found: dict[Trial, Outcome], trials: Sequence[Trial]) -> Steps:
        new = [trial for trial in trials if trial not in found][: self.trials - len(found)]
        if new:
            found |= yield new

    def _around(self, found: Outcomes, factor: float) -> list[Trial]:
        """Name rates so far from the best one where nothing nearer on that side was tried.

        There is none beyond an end that is no better than chance.
        """
        start = best(found)
        if start is None:  # All failed, as rates do that are too large.
            lowest = min(found, key=lambda trial: trial.learning_rate)
            return [lowest.at(lowest.learning_rate / factor)]
        own = start.learning_rate
        tried = [t.learning_rate for t in found if t.settings == start.settings]
        is_open = (found[start].score or 0.0) > self.chance
        near = []
        if not any(own < rate <= own * factor * FINEST for rate in tried) and (
            is_open or own < max(tried)
        ):
            near.append(start.at(own * factor))
        if not any(own / factor / FINEST <= rate < own for rate in tried) and (
            is_open or own > min(tried)
        ):
            near.append(start.at(own / factor))
        return near


def best(found: Outcomes) -> Trial | None:
    """Find the trial with the highest score, the first with the smallest rate among equals.

    Example:
        >>> best({Trial(0.1): Outcome(0.5), Trial(0.03): Outcome(0.5), Trial(0.3): Outcome(None)})
        Trial(learning_rate=0.03, settings=())
    """
    scores = {trial: one.score for trial, one in found.items() if one.score is not None}
    return max(scores, key=lambda t: (scores[t], -t.learning_rate)) if scores else None
