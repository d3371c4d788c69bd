"""Learning rates and settings that are chosen on validation examples, by as many trials for all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import log
from pathlib import Path
from typing import Any

from subflot.algorithms import ALGORITHMS
from subflot.data import load as load_data
from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.search import Outcome, Space, Trial, best
from subflot.results import find_run

RATES = (0.03, 0.1, 0.3)
TRIALS = 8
VALIDATION_SHARE = 0.2
Pair = tuple[str, str]
"""A method and a task."""
Runner = Callable[[Sequence[RunConfig]], Mapping[str, str]]
"""Runs configs and returns why some failed, by run."""


@dataclass(frozen=True)
class Choice:
    """What was tried for a method on a task, and what was chosen."""

    algorithm: str
    task: str
    outcomes: Mapping[Trial, Outcome] = field(default_factory=dict)
    is_complete: bool = False
    """Whether all its trials are there, so that the choice is fair."""

    @property
    def learning_rate(self) -> float | None:
        """The rate of the best trial; None if nothing succeeded."""
        found = best(self.outcomes)
        return found.learning_rate if found else None

    @property
    def settings(self) -> dict[str, Any]:
        """Which settings of the best trial are other than the run's."""
        found = best(self.outcomes)
        return dict(found.settings) if found else {}

    @property
    def is_inside(self) -> bool:
        """Whether smaller and larger rates were tried than the best."""
        rates = [trial.learning_rate for trial in self.outcomes]
        return self.learning_rate is not None and min(rates) < self.learning_rate < max(rates)

    @property
    def reason(self) -> str:
        """Why one of the trials did not finish."""
        return next((one.reason for one in self.outcomes.values() if one.reason), "")

    def applied(self, config: RunConfig, held: Iterable[str] = ()) -> RunConfig:
        """Return a run with what was chosen, but for the settings that are held."""
        rate = self.learning_rate
        assert rate is not None
        chosen = {key: value for key, value in self.settings.items() if key not in held}
        settings = {**config.algorithm_settings, **chosen}
        return replace(config, learning_rate=rate, algorithm_settings=settings)

    def told(self) -> dict[str, Any]:
        """Write it down as the sheets of tables have it."""
        return {
            "algorithm": self.algorithm,
            "task": self.task,
            "learning_rate": self.learning_rate,
            "settings": self.settings,
            "is_complete": self.is_complete,
            "is_inside": self.is_inside,
            "trials": [
                {
                    "learning_rate": trial.learning_rate,
                    "settings": dict(trial.settings),
                    "score": one.score,
                    "reason": one.reason,
                }
                for trial, one in self.outcomes.items()
            ],
        }


@dataclass(frozen=True)
class Tuning:
    """How settings are chosen: the `[tune]` table of a file of runs, and what tables do.

    Attributes:
        learning_rate: the coarse grid that every search starts from.
        trials: of each method.
        rounds: of a trial; 0 for as many as a run has.
        held: settings that somebody chose, so that no trial changes them.
    """

    learning_rate: tuple[float, ...] = RATES
    trials: int = TRIALS
    rounds: int = 0
    held: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: object, held: Iterable[str] = ()) -> "Tuning":
        """Read the table."""
        hint = "write learning_rate = [0.03, 0.1, 0.3], trials = 8, and rounds = 20 for short ones"
        if not isinstance(settings, Mapping):
            raise SubflotError(f"tune is {settings!r}", hint=hint)
        for key in settings:
            if key not in ("learning_rate", "trials", "rounds"):
                raise SubflotError(f"tune has no setting `{key}`", hint=hint)
        rates = settings.get("learning_rate", RATES)
        is_list = isinstance(rates, list | tuple) and rates
        if not is_list or not all(isinstance(r, int | float) and r > 0 for r in rates):
            raise SubflotError(f"tune has learning_rate {rates!r}", hint=hint)
        counts = {key: settings.get(key, getattr(cls, key)) for key in ("trials", "rounds")}
        for key, least in (("trials", len(rates)), ("rounds", 0)):
            is_count = isinstance(counts[key], int) and not isinstance(counts[key], bool)
            if not is_count or counts[key] < least:
                told = f"tune has {key} {counts[key]!r}, which must be at least {least}"
                raise SubflotError(told, hint=hint)
        return cls(tuple(map(float, rates)), held=frozenset(held), **counts)

    def trial(self, config: RunConfig, trial: Trial) -> RunConfig:
        """Return the run that scores a trial: it looks at validation examples alone."""
        rounds = self.rounds or config.rounds
        return replace(
            config,
            learning_rate=trial.learning_rate,
            algorithm_settings={**config.algorithm_settings, **dict(trial.settings)},
            rounds=rounds,
            evaluate_every=rounds,
            validation_share=VALIDATION_SHARE,
            measure_on="validation",
        )

    def choose(
        self,
        wanted: Mapping[Pair, RunConfig],
        runs: Sequence[Path],
        runner: Runner | None = None,
    ) -> dict[Pair, Choice]:
        """Search for all methods and tasks side by side.

        Args:
            wanted: the run that each search is for.
            runs: folders of the trials' records.
            runner: runs the trials that are not there yet; None takes what there is.
        """
        failures: dict[str, str] = {}
        given: set[str] = set()

        def look(config: RunConfig) -> Outcome | None:
            # Whoever runs trials tries again what failed earlier, perhaps for want of memory.
            told = failures if runner else None
            return _outcome(config, runs, told)

        while True:
            found = {pair: self._replay(config, look) for pair, config in wanted.items()}
            missing = {one.run_id: one for _, left in found.values() for one in left}
            left = [one for run_id, one in missing.items() if run_id not in given]
            if runner is None or not left:
                break
            given |= missing.keys()
            failures |= runner(left)
        return {
            pair: Choice(*pair, outcomes, is_complete=not left)
            for pair, (outcomes, left) in found.items()
        }

    def known(self, config: RunConfig, runs: Sequence[Path]) -> tuple[int, list[RunConfig]]:
        """Count the trials that are there, and name those that come next."""
        found, left = self._replay(config, lambda one: _outcome(one, runs))
        return len(found), left

    def planned(self, config: RunConfig, runs: Sequence[Path]) -> list[RunConfig]:
        """List all trials; those that depend on others as if the middle of the grid were best."""
        middle = log(sorted(self.learning_rate)[len(self.learning_rate) // 2])
        asked: list[RunConfig] = []

        def guess(one: RunConfig) -> Outcome:
            asked.append(one)
            distance = abs(log(one.learning_rate) - middle)
            return _outcome(one, runs) or Outcome(1 / (1 + distance))

        self._replay(config, guess)
        return asked

    def _replay(
        self, config: RunConfig, look: Callable[[RunConfig], Outcome | None]
    ) -> tuple[dict[Trial, Outcome], list[RunConfig]]:
        """Go through a search as far as its trials are known; return these and what is to run."""
        tuned = {
            key: [value for value in values if value != config.algorithm_settings[key]]
            for key, values in ALGORITHMS[config.algorithm].tuned.items()
            if key not in self.held
        }
        steps = Space(self.learning_rate, self.trials, tuned, _chance(config)).steps()
        found: dict[Trial, Outcome] = {}
        batch = next(steps)
        while True:
            configs = {trial: self.trial(config, trial) for trial in batch}
            known = {trial: look(one) for trial, one in configs.items()}
            done = {trial: one for trial, one in known.items() if one is not None}
            found |= done
            if len(done) < len(batch):
                return found, [one for trial, one in configs.items() if trial not in done]
            try:
                batch = steps.send(done)
            except StopIteration:
                return found, []


def _outcome(
    config: RunConfig, runs: Sequence[Path], failures: Mapping[str, str] | None = None
) -> Outcome | None:
    """Read what a trial led to off its record, or off what was told of its failure."""
    record = find_run(config.run_id, runs)
    if record.is_finished:
        return Outcome(record.summary()["trained"])
    failed = record.failure if failures is None else failures.get(config.run_id)
    return Outcome(None, failed) if failed else None


def _chance(config: RunConfig) -> float:
    return _guessing(config.data, tuple(sorted(config.data_settings.items())))


@cache
def _guessing(data: str, settings: tuple[tuple[str, Any], ...]) -> float:
    """Return the accuracy of guessing a class; 0 where the data are not here to count them."""
    try:
        return 1 / len(load_data(data, **dict(settings)).classes)
    except SubflotError:
        return 0.0
