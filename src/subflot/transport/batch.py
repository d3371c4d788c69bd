"""Align many pairs of models on all cores."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any

import torch

from subflot.channels.space import ChannelMap
from subflot.errors import SubflotError
from subflot.transport.align import Alignment, align
from subflot.weights import Weights


def align_all(
    pairs: Iterable[tuple[Weights, Weights]],
    channels: ChannelMap,
    *,
    workers: int | None = None,
    **settings: Any,
) -> Iterator[Alignment]:
    """Align the source to the target of every pair; yield the results in the order of the pairs.

    Each is what `align` returns for the pair, to the bit. Pairs are taken only as workers become
    free, and at most one result more than there are workers waits to be fetched. Until the
    last one is fetched, or the iterator is closed, torch computes with one thread. Several batches
    may run at once. Workers are threads; they pay from about 20 ms per alignment on. The clients of
    a run are aligned by the processes of the engine, which pay at any size.

    Args:
        pairs: source and target weights, for example made on the fly.
        channels: the map of the family.
        workers: alignments at once, each on a core of its own; all cores if not given.
        settings: what else `align` takes.
    """
    num_workers = _num_cores() if workers is None else workers
    if num_workers < 1:
        raise SubflotError(f"workers={workers}", hint="at least one, or none for all cores")
    return _run(iter(pairs), channels, num_workers, settings)


def _run(
    pairs: Iterator[tuple[Weights, Weights]],
    channels: ChannelMap,
    num_workers: int,
    settings: dict[str, Any],
) -> Iterator[Alignment]:
    running: deque[Future[Alignment]] = deque()
    # Threads suffice: matrix products, solvers and copies all let other threads run meanwhile.
    with _ONE_THREAD_EACH, ThreadPoolExecutor(num_workers) as pool:
        try:
            for source, target in pairs:
                running.append(pool.submit(align, source, target, channels, **settings))
                if len(running) > num_workers:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


class _OneThreadEach:
    """While any batch runs, torch computes with one thread; after the last it has its own again.

    The number is one for the whole process, and batches may overlap in any order.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_running = self._num_threads = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._num_running == 0:
                self._num_threads = torch.get_num_threads()
                torch.set_num_threads(1)
            self._num_running += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_running -= 1
            if self._num_running == 0:
                torch.set_num_threads(self._num_threads)


_ONE_THREAD_EACH = _OneThreadEach()


def _num_cores() -> int:
    """Cores that this process may use, which a container or a scheduler may have limited."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
