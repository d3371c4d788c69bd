"""One learning rate for each method and task, chosen on validation examples from one grid."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.paper import Column, PaperTask
from subflot.experiments.scales import Terms, at_hand
from subflot.results import RunRecord, find_run

GRID = (0.01, 0.05, 0.1)
VALIDATION_SHARE = 0.2


@dataclass(frozen=True)
class Choice:
    """What was tried for a method on a task, and what was chosen."""

    algorithm: str
    task: str
    scores: Mapping[float, float | None]
    """Learning rate -> accuracy on validation examples; None where there is no finished run."""
    reason: str = ""
    """Why one of them did not finish."""

    @property
    def is_complete(self) -> bool:
        """Whether every rate has been tried, so that the choice is fair."""
        return all(score is not None for score in self.scores.values())

    @property
    def learning_rate(self) -> float | None:
        """The rate with the highest score, the smallest of equals; None if nothing succeeded.

        Example:
            >>> Choice("fedavg", "har", {0.01: 0.5, 0.05: 0.75, 0.1: 0.75}).learning_rate
            0.05
        """
        tried = {rate: score for rate, score in self.scores.items() if score is not None}
        return max(tried, key=lambda rate: (tried[rate], -rate)) if tried else None


def trials(algorithm: str, task: PaperTask, terms: Terms) -> dict[float, RunConfig]:
    """Return the runs that decide the learning rate of a method on a task, by rate.

    Variants of a method share its rate, and variants of a task theirs. Test examples are not
    looked at: the runs train on four fifths of the training examples and are measured on the
    others, after the last round, with the first of the seeds. A task without data, or with
    settings that do not fit the method, has none.
    """
    column = Column(task.name, task.title, task)
    settings = terms.of(column)
    here = at_hand(column, settings)
    if here.missing:
        return {}
    settings |= here.settings
    try:
        return {rate: _trial(algorithm, settings, terms, rate) for rate in GRID}
    except SubflotError:
        return {}


def _trial(algorithm: str, settings: dict[str, Any], terms: Terms, rate: float) -> RunConfig:
    seeded = {"name": "runs", "algorithm": algorithm, "seed": terms.seeds[0]}
    return trial(RunConfig.of(**{**settings, **seeded}), rate)


def trial(config: RunConfig, rate: float, rounds: int = 0) -> RunConfig:
    """Return the run that scores a learning rate: it looks at validation examples alone.

    Args:
        config: the run that the rate is for.
        rate: the learning rate.
        rounds: how long it is tried; 0 for as long as the run itself.
    """
    rounds = rounds or config.rounds
    return replace(
        config,
        learning_rate=rate,
        rounds=rounds,
        evaluate_every=rounds,
        validation_share=VALIDATION_SHARE,
        measure_on="validation",
    )


def choose(
    wanted: Iterable[tuple[str, PaperTask]],
    terms: Terms,
    runs: Sequence[Path],
    failures: Mapping[str, str],
) -> dict[tuple[str, str], Choice]:
    """Read the choices for methods and tasks off the records of their trials.

    Args:
        wanted: methods and tasks.
        terms: the scale and the seeds.
        runs: folders of records.
        failures: run -> why it did not finish.
    """
    return {
        (algorithm, task.name): _choice(algorithm, task, terms, runs, failures)
        for algorithm, task in wanted
    }


def _choice(
    algorithm: str,
    task: PaperTask,
    terms: Terms,
    runs: Sequence[Path],
    failures: Mapping[str, str],
) -> Choice:
    tried = {rate: one.run_id for rate, one in trials(algorithm, task, terms).items()}
    scores = {rate: _score(find_run(run_id, runs)) for rate, run_id in tried.items()}
    reasons = (failures[run_id] for run_id in tried.values() if run_id in failures)
    return Choice(algorithm, task.name, scores, next(reasons, ""))


def _score(record: RunRecord) -> float | None:
    return record.summary()["trained"] if record.is_finished else None


@dataclass(frozen=True)
class Tuning:
    """The `[tune]` table of a file of runs: which learning rates to try, and for how long.

    Attributes:
        learning_rate: the rates, the same for all methods.
        rounds: of a trial; 0 for as many as a run has.
    """

    learning_rate: tuple[float, ...] = GRID
    rounds: int = 0

    @classmethod
    def of(cls, settings: object) -> "Tuning":
        """Read the table."""
        hint = "write learning_rate = [0.01, 0.05, 0.1], and rounds = 20 for shorter trials"
        if not isinstance(settings, Mapping):
            raise SubflotError(f"tune is {settings!r}", hint=hint)
        for key in settings:
            if key not in ("learning_rate", "rounds"):
                raise SubflotError(f"tune has no setting `{key}`", hint=hint)
        rates, rounds = settings.get("learning_rate", GRID), settings.get("rounds", 0)
        is_list = isinstance(rates, list | tuple) and rates
        if not is_list or not all(isinstance(r, int | float) and r > 0 for r in rates):
            raise SubflotError(f"tune has learning_rate {rates!r}", hint=hint)
        if not isinstance(rounds, int) or rounds < 0:
            raise SubflotError(f"tune has rounds {rounds!r}", hint=hint)
        return cls(tuple(map(float, rates)), rounds)

    def trials(self, configs: Sequence[RunConfig]) -> dict[str, dict[float, RunConfig]]:
        """Return the trials of each method, with the first of its seeds, by learning rate."""
        first: dict[str, RunConfig] = {}
        for config in configs:
            first.setdefault(config.algorithm, config)
        return {
            name: {rate: trial(config, rate, self.rounds) for rate in self.learning_rate}
            for name, config in first.items()
        }

    def choose(
        self,
        configs: Sequence[RunConfig],
        runs: Path,
        runner: Callable[[Sequence[RunConfig]], Mapping[str, str]],
    ) -> tuple[list[RunConfig], list[Choice]]:
        """Run the trials that are not there yet, and give each method its learning rate.

        Runs of a method that no rate fits are left out; its choice says why. If nothing is left,
        that is an error.

        Args:
            configs: runs of one or more methods.
            runs: folder of the trials' records.
            runner: runs configs and returns why some failed, by run.
        """
        tried = self.trials(configs)
        failures = runner([one for of_method in tried.values() for one in of_method.values()])
        choices = {}
        for name, of_method in tried.items():
            scores = {rate: _score(RunRecord(runs / c.run_id)) for rate, c in of_method.items()}
            reasons = [failures[c.run_id] for c in of_method.values() if c.run_id in failures]
            choices[name] = Choice(name, configs[0].name, scores, next(iter(reasons), ""))
        chosen = {name: one.learning_rate for name, one in choices.items() if one.learning_rate}
        if not chosen:
            first = next(iter(choices.values()))
            raise SubflotError(f"no learning rate works for {first.algorithm}: {first.reason}")
        tuned = [
            replace(config, learning_rate=chosen[config.algorithm])
            for config in configs
            if config.algorithm in chosen
        ]
        return tuned, list(choices.values())
