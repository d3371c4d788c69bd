"""Fill a table: run what it asks for and is not there, choose settings, write its sheet."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.tuning import Choice, Pair, Runner, Tuning
from subflot.paper.grids import Column, Grid, PaperTask
from subflot.paper.plan import RUNS, Slot, Wanted, sheet, slots, write_sheet
from subflot.paper.scales import Terms, at_hand

SHEETS = "tables"


@dataclass(frozen=True)
class Planned:
    """A run that a table needs."""

    config: RunConfig
    task: PaperTask
    is_trial: bool = False
    """Whether it only serves to choose settings."""


def plan(grid: Grid, terms: Terms, wanted: Wanted, runs: Sequence[Path]) -> list[Planned]:
    """List the runs that are asked for, each once, trials first.

    With the protocol `searched`, runs whose trials are not all in the folders `runs` have the
    usual settings, and trials that depend on others stand for those that they will be.
    """
    asked = _asked(slots(grid, terms, None), grid, terms, wanted)
    pairs = _pairs(asked) if terms.is_searched else []
    chosen = choices(pairs, terms, runs)
    found = {}
    for algorithm, task in pairs:
        if config := subject(algorithm, task, terms):
            for one in tuning_of(terms).planned(config, runs):
                found[one.run_id] = Planned(one, task, is_trial=True)
    for slot in asked:
        config, task = slot.config, slot.column.task
        if not config:
            continue
        choice = chosen.get((config.algorithm, task.name))
        if choice and choice.is_complete and choice.learning_rate:
            config = choice.applied(config, held=slot.row.settings)
        found.setdefault(config.run_id, Planned(config, task))
    return list(found.values())


def fill(
    grid: Grid,
    terms: Terms,
    wanted: Wanted,
    out: Path,
    runner: Runner | None = None,
    recorded: Path | None = None,
) -> Path:
    """Run what is asked for, and write the sheet; return its path.

    Args:
        grid: the table.
        terms: its scale, protocol, seeds and settings.
        wanted: the cells to run; the sheet has all.
        out: folder of the results; records lie in `runs` in it and sheets in `tables`.
        runner: runs configs; None to run nothing and take what there is.
        recorded: another folder of results, which is read and not written to.
    """
    wanted.check(grid)
    places = [out] if recorded is None else [out, recorded]
    runs = [place / RUNS for place in places]
    failures: dict[str, str] = {}
    everything = slots(grid, terms, None)
    chosen = {}
    if terms.is_searched:
        asked = _asked(everything, grid, terms, wanted)
        searched = choices(_pairs(asked), terms, runs, runner)
        chosen = {**choices(_pairs(everything), terms, runs), **searched}
    if runner:
        asked = _asked(slots(grid, terms, chosen), grid, terms, wanted)
        configs = {slot.config.run_id: slot.config for slot in asked if slot.config}
        failures |= runner(list(configs.values()))
    content = sheet(grid, terms, chosen, failures)
    return write_sheet(content, [place / SHEETS for place in places], runs[1:])


def _asked(found: Iterable[Slot], grid: Grid, terms: Terms, wanted: Wanted) -> list[Slot]:
    return [slot for slot in found if wanted.has(slot, grid, terms)]


def _pairs(found: Iterable[Slot]) -> list[tuple[str, PaperTask]]:
    """List methods and tasks, each pair once: what settings are chosen for."""
    pairs = {(one.row.algorithm, one.column.task.name): one.column.task for one in found}
    return [(algorithm, task) for (algorithm, _), task in pairs.items()]


def subject(algorithm: str, task: PaperTask, terms: Terms) -> RunConfig | None:
    """Return the run that a method's settings on a task are searched with, the first of the seeds.

    Variants of a method share what is found, and variants of a task too. A task without data, or
    with settings that do not fit the method, has none.
    """
    column = Column(task.name, task.title, task)
    settings = terms.of(column)
    here = at_hand(column, settings)
    if here.missing:
        return None
    own = {"name": "runs", "algorithm": algorithm, "seed": terms.seeds[0]}
    try:
        return RunConfig.of(**{**settings, **here.settings, **own})
    except SubflotError:
        return None


def choices(
    wanted: Iterable[tuple[str, PaperTask]],
    terms: Terms,
    runs: Sequence[Path],
    runner: Runner | None = None,
) -> dict[Pair, Choice]:
    """Choose for methods and tasks; where there is nothing to run, the choice is empty.

    Args:
        wanted: methods and tasks.
        terms: the scale and the seeds.
        runs: folders of records.
        runner: runs the trials that are not there yet; None takes what there is.
    """
    subjects = {(name, task.name): subject(name, task, terms) for name, task in wanted}
    there = {pair: config for pair, config in subjects.items() if config}
    found = tuning_of(terms).choose(there, runs, runner)
    return {pair: found.get(pair, Choice(*pair)) for pair in subjects}


def tuning_of(terms: Terms) -> Tuning:
    """Return how tables choose settings: all alike, but for what the terms set for all runs."""
    return Tuning(held=frozenset(terms.settings))
