"""Loading each data set that is here: first and second time, and the memory of four processes.

Starts from an empty cache. CPU seconds; the second load is the median of several. Memory is what a
process gains by loading Tiny-ImageNet and reading all of it, where pages that several processes
share count in parts (PSS); of four processes the sum is compared with one alone.
"""

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Read before they are timed: what a reader imports is no part of reading.
import PIL.Image  # noqa: F401
import scipy.io  # noqa: F401
import torch

from subflot.data import SETS, Dataset, load
from subflot.data.source import Source

REPEATS = 7
PROCESSES = 4


def settings_at_hand(source: Source[Any]) -> dict[str, Any] | None:
    """Settings with which the files that are here suffice; None if there are none."""
    if source.find(source.settings()) is not None:
        return {}
    domains = tuple(
        domain
        for domain in getattr(source.settings(), "domains", ())
        if source.find(source.settings(domains=(domain,))) is not None
    )
    return {"domains": domains} if domains else None


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def ratio_of_loads(name: str, settings: dict[str, Any]) -> float:
    """Time a first load and some more; print a row."""
    first = cpu_seconds(lambda: load(name, **settings))
    second = statistics.median(cpu_seconds(lambda: load(name, **settings)) for _ in range(REPEATS))
    data = load(name, **settings)
    print(
        f"{name:14} {len(data):7,} examples  first {first:7.3f} s  second {second * 1e3:6.2f} ms  "
        f"ratio {second / first:.5f}"
    )
    return second / first


def own_memory() -> int:
    """Bytes of this process, of shared pages its part."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def gain_memory(barrier: Any, gains: Any) -> None:
    """Load Tiny-ImageNet in step with the other processes; tell what it took."""
    torch.set_num_threads(1)
    barrier.wait()
    before = own_memory()
    barrier.wait()
    data = load("tiny-imagenet")
    read_all(data)
    barrier.wait()
    gains.put(own_memory() - before)
    barrier.wait()


def read_all(data: Dataset) -> int:
    """Touch every page."""
    return sum(int(image.sum()) for image in data.inputs)


def memory_gain(processes: int) -> int:
    """Bytes that so many processes gain together."""
    context = multiprocessing.get_context("spawn")
    barrier, gains = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=gain_memory, args=(barrier, gains)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total: int = sum(gains.get() for _ in workers)
    for worker in workers:
        worker.join()
    return total


def main() -> None:
    """Measure the sets that are here and print rows and keys."""
    torch.set_num_threads(1)
    result = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SUBFLOT_CACHE"] = cache
        ratios = []
        for name, source in SETS.items():
            settings = settings_at_hand(source)
            if settings is None:
                print(f"{name:14} is not here; see `subflot data get {name}`")
            elif source.layouts != ((),):
                ratios.append(ratio_of_loads(name, settings))
        if ratios:
            result["worst_second_load_ratio"] = max(ratios)
        if settings_at_hand(SETS["tiny-imagenet"]) is not None:
            one, several = memory_gain(1), memory_gain(PROCESSES)
            size = load("tiny-imagenet").inputs.nbytes
            print(
                f"tiny-imagenet holds {size / 1e6:.0f} MB; one process takes {one / 1e6:.0f} MB, "
                f"{PROCESSES} take {several / 1e6:.0f} MB"
            )
            result["memory_ratio_four_processes"] = several / one
    print(json.dumps(result))


if __name__ == "__main__":
    main()
