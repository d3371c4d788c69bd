"""Processes that share the work of a round."""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch

from subflot.algorithms.base import Client, Turn
from subflot.errors import SubflotError
from subflot.simulation.federation import Federation
from subflot.simulation.server import Report
from subflot.simulation.store import Manifest
from subflot.training import Measurement

P = ParamSpec("P")
R = TypeVar("R")

_federation: Federation | None = None
"""In a worker process: what it works on."""


class Promise(Generic[R]):
    """Work that was handed out; `result` waits for it."""

    def __init__(self, wait: Callable[[], R]) -> None:
        self._wait = wait

    def result(self) -> R:
        """Return what came out."""
        try:
            return self._wait()
        except BrokenProcessPool:
            raise SubflotError(
                "a worker process was killed",
                hint="often memory ran out: try fewer --workers; finished rounds are kept, and "
                "the same command goes on after the last of them",
            ) from None


class Workers:
    """A pool of processes that each hold the federation and use one thread.

    With one worker the work is done here, when its result is asked for.
    """

    def __init__(self, federation: Federation, num_workers: int) -> None:
        self.federation, self.num_workers = federation, num_workers
        self._pool: ProcessPoolExecutor | None = None
        if num_workers > 1:
            # A fork shares the data and takes models that are defined in a script or a notebook.
            methods = multiprocessing.get_all_start_methods()
            is_forked = "fork" in methods and federation.task.device == "cpu"
            self._pool = ProcessPoolExecutor(
                num_workers,
                multiprocessing.get_context("fork" if is_forked else "spawn"),
                initializer=_begin,
                initargs=(federation, os.getpid()),
            )

    def submit(
        self,
        step: Callable[Concatenate[Federation, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Promise[R]:
        """Hand out a step of the federation."""
        if self._pool is None:
            return Promise(lambda: step(self.federation, *args, **kwargs))
        future = self._pool.submit(_work, step, args, kwargs)
        return Promise(future.result)

    def take_part(
        self, invited: Sequence[Client], turn: Turn, is_measured: bool
    ) -> Iterator[Report]:
        """Hand out the clients of a round; report on each, in their order, when it is done."""
        promises = [
            self.submit(Federation.take_part, client, turn, is_measured) for client in invited
        ]
        for promise in promises:
            yield promise.result()

    def measure_global(self, manifest: Manifest, clients: Sequence[int]) -> dict[int, Measurement]:
        """Measure the model that a round wrote, each worker on a part of the clients."""
        parts = [clients[start :: self.num_workers] for start in range(self.num_workers)]
        promises = [
            self.submit(Federation.measure_global, manifest, part) for part in parts if part
        ]
        return {client: one for promise in promises for client, one in promise.result().items()}

    def close(self) -> None:
        """Stop the processes at once, whatever they do."""
        if self._pool is not None:
            running = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            for process in running:
                process.kill()
            for process in running:
                process.join()


def _begin(federation: Federation, parent: int) -> None:
    global _federation
    _federation = federation
    follow(parent)


def follow(parent: int) -> None:
    """Make this process one that works for another: one thread, and it ends when that one ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent decides when to stop.
    torch.set_num_threads(1)
    if sys.platform == "linux":
        # Die with the parent, however it ends; PR_SET_PDEATHSIG is 1.
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _work(step: Callable[..., R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
    assert _federation is not None
    return step(_federation, *args, **kwargs)


def default_workers(device: str) -> int:
    """Return one worker per core that this process may use; one for a GPU, which they share."""
    if torch.device(device).type != "cpu":
        return 1
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # Not on every system.
        return os.cpu_count() or 1
