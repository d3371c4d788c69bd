"""Costs between channels, of kinds that solvers find easy and hard."""

import numpy as np
import torch
from numpy.typing import NDArray

from subflot.transport import distances

Matrix = NDArray[np.float64]


def euclid(source: Matrix, target: Matrix) -> Matrix:
    return distances(torch.from_numpy(source), torch.from_numpy(target)).numpy()


def random_layer(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return euclid(rng.standard_normal((n, 24)), rng.standard_normal((k, 24)))


def near_layer(n: int, k: int, rng: np.random.Generator) -> Matrix:
    wide = rng.standard_normal((max(n, k), 24))
    other = rng.permutation(wide) + 0.05 * rng.standard_normal(wide.shape)
    return euclid(wide[:n], other[:k])


def duplicate_rows(n: int, k: int, rng: np.random.Generator) -> Matrix:
    few = rng.standard_normal((5, 24))
    return euclid(few[rng.integers(5, size=n)], few[rng.integers(5, size=k)])


def integer_grid(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return rng.integers(4, size=(n, k)).astype(np.float64)


def on_a_line(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return euclid(np.arange(n, dtype=np.float64)[:, None], rng.uniform(0, n, (k, 1)))


def clusters(n: int, k: int, rng: np.random.Generator) -> Matrix:
    centres = 1000 * rng.standard_normal((6, 3))
    return euclid(
        centres[rng.integers(6, size=n)] + rng.standard_normal((n, 3)),
        centres[rng.integers(6, size=k)] + rng.standard_normal((k, 3)),
    )


def dead_channels(n: int, k: int, rng: np.random.Generator) -> Matrix:
    source, target = rng.standard_normal((n, 24)), rng.standard_normal((k, 24))
    source[rng.random(n) < 0.5] = 0
    target[rng.random(k) < 0.5] = 0
    return euclid(source, target)


def large_offset(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return 1e6 + rng.random((n, k))


def negative(n: int, k: int, rng: np.random.Generator) -> Matrix:
    return -(rng.random((n, k)) ** 4)


def products(n: int, k: int, rng: np.random.Generator) -> Matrix:
    # Every row prefers the same columns in the same order: the worst for an auction.
    return np.outer(np.arange(1, n + 1), np.arange(1, k + 1)) / (n * k)


KINDS = [
    random_layer,
    near_layer,
    duplicate_rows,
    integer_grid,
    on_a_line,
    clusters,
    dead_channels,
    large_offset,
    negative,
    products,
]
