"""Dirichlet partitions at their hardest: more clients than the draw can serve, and then filled up.

CPU seconds, median; one thread.
"""

import json
import statistics
import time

import numpy as np

from subflot.data.partition import dirichlet

NUM_CLIENTS, CONCENTRATION, NUM_EXAMPLES, NUM_CLASSES = 1000, 0.01, 2000, 10
REPEATS = 5


def main() -> None:
    """Time the partition with several seeds; print the median and one line of JSON."""
    labels = np.arange(NUM_EXAMPLES) % NUM_CLASSES
    seconds = []
    for seed in range(REPEATS):
        start = time.process_time()
        dirichlet(labels, NUM_CLIENTS, CONCENTRATION, seed)
        seconds.append(time.process_time() - start)
    median = statistics.median(seconds)
    print(
        f"dirichlet, {NUM_EXAMPLES} examples to {NUM_CLIENTS} clients, concentration "
        f"{CONCENTRATION}: {median:.3f} s (CPU, median)"
    )
    print(json.dumps({"dirichlet_cpu_seconds": median}))


if __name__ == "__main__":
    main()
