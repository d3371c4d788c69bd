"""Which runs a table needs: those of its cells, and the trials that choose their settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.tuning import Choice, Pair, Runner, Tuning
from subflot.paper.grids import Column, Grid, Row
from subflot.paper.scales import Terms, at_hand

RUNS = "runs"
"""Folder of all records, of whichever table: what two tables share is run once."""
Choices = Mapping[Pair, Choice]


@dataclass(frozen=True)
class Planned:
    """A run of a cell or a trial, or why there is none."""

    row: Row
    column: Column
    config: RunConfig | None
    reason: str = ""
    is_trial: bool = False

    @property
    def pair(self) -> Pair:
        """The method and the task, which have their settings in common."""
        return self.row.algorithm, self.column.task.name


def slots(grid: Grid, terms: Terms, choices: Choices | None = None) -> list[Planned]:
    """Name every run of a grid, column by column.

    Args:
        grid: the table.
        terms: its scale, protocol and seeds.
        choices: of the protocol `searched`; None takes the usual settings, which is good enough
            to count runs.
    """
    found = [
        _planned(row, column, seed, terms, choices)
        for column in grid.columns
        for seed in terms.seeds
        for row in grid.rows
    ]
    # A setting that fits no run at all is a slip, not a matter of one column.
    if terms.settings and not any(one.config for one in found):
        raise SubflotError(
            f"no run fits these settings: {found[0].reason}",
            hint=f"--set gave {', '.join(terms.settings)}",
        )
    return found


def _planned(
    row: Row, column: Column, seed: int, terms: Terms, choices: Choices | None = None
) -> Planned:
    settings = terms.of(column)
    here = at_hand(column, settings)
    if here.missing:
        return Planned(row, column, None, here.missing)
    own: dict[str, Any] = {**settings, **row.settings, **here.settings}
    try:
        config = RunConfig.of(**{**own, "name": RUNS, "algorithm": row.algorithm, "seed": seed})
    except SubflotError as error:
        return Planned(row, column, None, error.args[0])
    found = Planned(row, column, config)
    if choices is None or not terms.is_searched:
        return found
    choice = choices.get(found.pair, Choice(*found.pair))
    if choice.learning_rate is None:
        failed = f"no learning rate works: {choice.reason}" if choice.reason else ""
        return replace(found, config=None, reason=failed)
    return replace(found, config=choice.applied(config, held=row.settings))


def asked(found: Iterable[Planned], grid: Grid, terms: Terms) -> list[Planned]:
    """Return the runs that the terms ask for."""
    return [one for one in found if terms.ask_for(one.row, one.column, grid)]


def subjects(found: Iterable[Planned], terms: Terms) -> dict[Pair, Planned]:
    """Return the run that each method's settings on a task are searched with.

    It has the first of the seeds. Variants of a method share what is found, and variants of a task
    too. A task without data, or with settings that do not fit the method, has no config.
    """
    searched: dict[Pair, Planned] = {}
    for one in found:
        if one.pair not in searched:
            name, task = one.row.algorithm, one.column.task
            row, column = Row(name, name, name), Column(task.name, task.title, task)
            searched[one.pair] = _planned(row, column, terms.seeds[0], terms)
    return searched


def choose(
    found: Iterable[Planned], terms: Terms, runs: Sequence[Path], runner: Runner | None = None
) -> dict[Pair, Choice]:
    """Choose settings for methods and tasks; where there is nothing to run, the choice is empty.

    Args:
        found: runs of these methods and tasks.
        terms: the scale and the seeds.
        runs: folders of records.
        runner: runs the trials that are not there yet; None takes what there is.
    """
    searched = subjects(found, terms)
    there = {pair: one.config for pair, one in searched.items() if one.config}
    chosen = tuning_of(terms).choose(there, runs, runner)
    return {pair: chosen.get(pair, Choice(*pair)) for pair in searched}


def tuning_of(terms: Terms) -> Tuning:
    """Return how tables choose settings: all alike, but for what the terms set for all runs."""
    return Tuning(held=frozenset(terms.settings))


def plan(grid: Grid, terms: Terms, runs: Sequence[Path]) -> list[Planned]:
    """List the runs that are asked for, each once, trials first.

    With the protocol `searched`, runs whose trials are not all in the folders `runs` have the
    usual settings, and trials that depend on others stand for those that they will be.
    """
    wanted = asked(slots(grid, terms), grid, terms)
    chosen: Choices = {}
    found: dict[str, Planned] = {}
    if terms.is_searched:
        chosen = choose(wanted, terms, runs)
        for one in subjects(wanted, terms).values():
            for trial in tuning_of(terms).planned(one.config, runs) if one.config else ():
                found[trial.run_id] = replace(one, config=trial, is_trial=True)
    for one in wanted:
        if config := one.config:
            choice = chosen.get(one.pair)
            if choice and choice.is_complete and choice.learning_rate:
                config = choice.applied(config, held=one.row.settings)
            found.setdefault(config.run_id, replace(one, config=config))
    return list(found.values())
