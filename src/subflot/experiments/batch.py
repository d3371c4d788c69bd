"""Many runs, one after the other or side by side; one that fails does not stop the others."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.runner import run
from subflot.results import FAILED, find_run
from subflot.simulation import Round
from subflot.simulation.store import forget
from subflot.simulation.workers import default_workers, follow
from subflot.texts import write_text

OnRound = Callable[[Round], None]
Watched = Callable[[RunConfig], OnRound]
"""What follows the rounds of a run."""
OnEnd = Callable[[RunConfig, str], None]
"""Told of each run that ended, and why it failed if it did."""


def unfinished(configs: Sequence[RunConfig], folders: Sequence[Path]) -> list[RunConfig]:
    """List the runs that have no whole record in any of the folders yet."""
    return [one for one in configs if not find_run(one.run_id, folders).is_finished]


def run_all(
    configs: Sequence[RunConfig],
    folder: Path,
    *,
    recorded: Sequence[Path] = (),
    jobs: int = 1,
    workers: int | None = None,
    keep_models: bool = False,
    watched: Watched = lambda _: lambda _: None,
    on_end: OnEnd = lambda *_: None,
) -> dict[str, str]:
    """Run what is not finished; return why runs failed, by run.

    Args:
        configs: what to run; the record of each goes to a folder of its own, named by its run_id.
        folder: of all records.
        recorded: further folders of records; what is finished there is not run either.
        jobs: runs side by side, in processes of their own.
        workers: processes of each run; None: the cores, shared among the jobs.
        keep_models: leave the models of finished runs on disk; tables do not need them.
        watched: follows the rounds of a run; side by side only ends are told.
        on_end: told of every run that ended.
    """
    if jobs < 1:
        raise SubflotError(f"jobs is {jobs}", hint="at least 1")
    each = workers or max(1, default_workers("cpu") // jobs)
    left = unfinished(configs, (folder, *recorded))
    ended = (
        ((one, _try(one, folder, each, keep_models, watched(one))) for one in left)
        if jobs == 1 or len(left) < 2
        else _side_by_side(left, folder, each, keep_models, jobs)
    )
    failures = {}
    for config, reason in ended:
        on_end(config, reason)
        if reason:
            failures[config.run_id] = reason
    return failures


def _side_by_side(
    configs: Sequence[RunConfig], folder: Path, workers: int, keep_models: bool, jobs: int
) -> Iterator[tuple[RunConfig, str]]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=follow, initargs=(os.getpid(),))
    try:
        promises = {
            pool.submit(_try, config, folder, workers, keep_models): config for config in configs
        }
        for promise in as_completed(promises):
            yield promises[promise], promise.result()
    except BrokenProcessPool:
        raise SubflotError(
            "a process that runs a table was killed",
            hint="often memory ran out: try fewer --jobs; finished rounds are kept",
        ) from None
    finally:
        running = list((pool._processes or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.kill()


def _try(
    config: RunConfig,
    folder: Path,
    workers: int,
    keep_models: bool,
    on_round: OnRound = lambda _: None,
) -> str:
    """Run one config; return why it failed, nothing if it did not."""
    place = folder / config.run_id
    try:
        run(config, place, workers=workers, on_round=on_round)
    except SubflotError as error:
        message: Any = error.args[0]
        reason = str(message).partition("\n")[0]
        if place.is_dir():
            write_text(place / FAILED, reason + "\n")
        return reason
    (place / FAILED).unlink(missing_ok=True)
    if not keep_models:
        forget(place)
    return ""
