"""The paper's equations in plain loops, for three linear layers with something between them."""

import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from subflot.weights import Weights

LAYERS = ("0", "2", "4")


def plan(cost: Tensor) -> Tensor:
    """The best of all plans of uniform marginals, shape (source, target).

    Both sides are repeated until they are equally long, so that a plan is a permutation.
    """
    sources, targets = cost.shape
    slots = math.lcm(sources, targets)
    best, least = None, float("inf")
    for order in itertools.permutations(range(slots)):
        pairs = [(at * sources // slots, to * targets // slots) for at, to in enumerate(order)]
        total = sum(float(cost[pair]) for pair in pairs)
        if total < least:
            best, least = pairs, total
    assert best is not None
    found = torch.zeros(sources, targets, dtype=torch.float64)
    for source, target in best:
        found[source, target] += 1.0
    return found / found.sum(0)  # Every column is divided by its sum.


def matching(cost: Tensor) -> list[int]:
    """The cheapest way to give each of fewer sources a target of its own."""

    def total(order: Iterable[int]) -> float:
        return sum(float(cost[source, target]) for source, target in enumerate(order))

    sources, targets = cost.shape
    return list(min(itertools.permutations(range(targets), sources), key=total))


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """The Euclidean distance of every row to every other, shape (rows, others)."""
    return torch.tensor([[float((a - b).square().sum()) ** 0.5 for b in others] for a in rows])


def aligned(source: Weights, target: Weights) -> dict[str, Tensor]:
    """Eq. 3 to 5, layer by layer; classes are never matched."""
    result = {}
    before = torch.eye(3, dtype=torch.float64)
    for layer in LAYERS:
        entered = source[f"{layer}.weight"] @ before  # Eq. 3
        if layer == LAYERS[-1]:
            after = torch.eye(2, dtype=torch.float64)
        else:
            after = plan(distances(entered, target[f"{layer}.weight"]))  # Eq. 4
        result[f"{layer}.weight"] = after.T @ entered  # Eq. 5
        result[f"{layer}.bias"] = after.T @ source[f"{layer}.bias"]
        before = after
    return result


def fused(one: Weights, own: Weights, share: float) -> dict[str, Tensor]:
    return {name: share * one[name] + (1 - share) * own[name] for name in own}  # Eq. 6


def mean(models: Sequence[Weights], counts: Sequence[int]) -> dict[str, Tensor]:
    total = sum(counts)
    return {  # Eq. 9
        name: sum(
            (m[name] * n / total for m, n in zip(models, counts, strict=True)), torch.zeros(())
        )
        for name in models[0]
    }
