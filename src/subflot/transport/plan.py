"""How the channels of one model are carried onto those of another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

if TYPE_CHECKING:
    from subflot.transport.gather import Sources, Targets  # Starts the compiler.

Precision = type[np.float32] | type[np.float64]
Entries = TypeVar("Entries", "Targets", "Sources")


PRECISIONS = (torch.float32, torch.float64)
"""Means are computed in one of these."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A sparse transport plan: `mass[e]` goes from channel `source[e]` to channel `target[e]`.

    Entries are ordered by target and then by source, each pair at most once.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    mass: NDArray[np.float64]
    shape: tuple[int, int]
    """(source, target): channels of each side, also those that carry no mass."""
    cost: float
    is_optimal: bool
    """Proven: no plan with the same marginals costs less, to the rounding of double precision."""
    has_converged: bool = True

    def dense(self) -> NDArray[np.float64]:
        """Return the plan as a matrix of shape (source, target)."""
        matrix = np.zeros(self.shape)
        matrix[self.source, self.target] = self.mass
        return matrix

    @cached_property
    def share(self) -> NDArray[np.float64]:
        """What part of its target's mass each entry brings: T of Eq. 3, columns summing to one."""
        return self.mass / np.bincount(self.target, self.mass, self.shape[1])[self.target]

    @cached_property
    def _has_one_source_each(self) -> bool:
        return np.array_equal(self.target, np.arange(self.shape[1]))

    @cached_property
    def _chosen(self) -> Tensor:
        return torch.from_numpy(self.source)

    @cached_property
    def _targets(self) -> "dict[Precision, Targets]":
        from subflot.transport.gather import by_target

        entries = by_target(self.source, self.target, self.share, self.shape[1])
        return _in_each_precision(entries)

    @cached_property
    def _sources(self) -> "dict[Precision, Sources]":
        from subflot.transport.gather import by_source

        entries = by_source(self.source, self.target, self.share, self.shape[0])
        return _in_each_precision(entries)

    def carry(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """Replace the source channels along an axis by target channels.

        Each target channel becomes the mean of the source channels, weighted by the mass they
        send to it; one that receives nothing becomes zero.

        Example:
            >>> plan = Plan(np.array([0, 1, 2]), np.array([0, 1, 1]), np.array([0.5, 0.25, 0.25]),
            ...             shape=(3, 2), cost=0.0, is_optimal=True)
            >>> plan.carry(torch.tensor([[1.0], [2.0], [4.0]]))
            tensor([[1.],
                    [3.]])
        """
        if tensor.shape[axis] != self.shape[0]:
            raise ValueError(
                f"axis {axis} of a tensor of shape {tuple(tensor.shape)} has not the "
                f"{self.shape[0]} source channels of the plan"
            )
        if self._has_one_source_each:
            return tensor.index_select(axis, self._chosen.to(tensor.device))
        is_differentiated = tensor.requires_grad and torch.is_grad_enabled()
        means = self._on_cpu if tensor.is_cpu and not is_differentiated else self._anywhere
        if tensor.dtype in PRECISIONS:
            return means(tensor, axis % tensor.ndim)
        return means(tensor.float(), axis % tensor.ndim).to(tensor.dtype)

    def _on_cpu(self, tensor: Tensor, axis: int) -> Tensor:
        """Carry a tensor in main memory by a compiled function."""
        from subflot.transport.gather import add_rows, look_up, mean_rows

        values = np.ascontiguousarray(tensor.detach().numpy())
        precision = values.dtype.type
        before, after = values.shape[:axis], values.shape[axis + 1 :]
        means = np.empty((*before, self.shape[1], *after), precision)
        num_blocks, length = math.prod(before), math.prod(after)
        rows = values.reshape(num_blocks, self.shape[0], length)
        results = means.reshape(num_blocks, self.shape[1], length)
        if num_blocks == 1:
            mean_rows(rows[0], results[0], self._targets[precision])
        elif length == 1:
            look_up(rows[:, :, 0], results[:, :, 0], self._targets[precision])
        else:
            add_rows(rows, results, self._sources[precision])
        return torch.from_numpy(means)

    def _anywhere(self, tensor: Tensor, axis: int) -> Tensor:
        """Do the same on any device, also where gradients are wanted."""
        first: Tensor = tensor.movedim(axis, 0)
        starts = torch.from_numpy(self._targets[np.float64].start[:-1].astype(np.int64))
        means: Tensor = F.embedding_bag(
            self._chosen.to(tensor.device),
            first.flatten(1) if first.dim() > 1 else first[:, None],
            starts.to(tensor.device),
            mode="sum",
            per_sample_weights=torch.from_numpy(self.share).to(tensor),
        )
        return means.view(self.shape[1], *first.shape[1:]).movedim(0, axis).contiguous()

    def share_moved(self) -> float:
        """Return the share of the mass that goes to a channel of another number."""
        return float(self.mass[self.source != self.target].sum() / self.mass.sum())


def _in_each_precision(entries: Entries) -> dict[Precision, Entries]:
    """Return entries of a plan with shares of the precision of what they are to weigh."""
    single = entries._replace(share=entries.share.astype(np.float32))
    return {np.float64: entries, np.float32: single}


def make_plan(
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    mass: NDArray[np.float64],
    *,
    shape: tuple[int, int],
    cost: float,
    is_optimal: bool,
    has_converged: bool = True,
) -> Plan:
    """Put the entries in order and add up those of one pair."""
    from subflot.transport.gather import in_order

    entries = in_order(source, target, mass, shape[1])
    return Plan(*entries, shape, cost, is_optimal, has_converged)


def identity(size: int) -> Plan:
    """Return the plan that leaves every channel where it is, at no cost."""
    index = np.arange(size)
    return Plan(index, index, np.full(size, 1 / size), (size, size), 0.0, is_optimal=True)


def average(plans: Sequence[Plan], shares: Sequence[float] = ()) -> Plan:
    """Return the plan whose column-normalised matrix is the mean of the given ones.

    It is what goes on after a residual addition. Its cost is the mean of theirs.

    Args:
        plans: of one shape.
        shares: what each counts, adding up to one; all alike if none are given.
    """
    first, *rest = plans
    if not rest:
        return first
    if any(plan.shape != first.shape for plan in rest):
        raise ValueError(f"plans of unlike shapes: {[plan.shape for plan in plans]}")
    parts = list(shares) or [1 / len(plans)] * len(plans)
    mass = [plan.share * part for plan, part in zip(plans, parts, strict=True)]
    return make_plan(
        np.concatenate([plan.source for plan in plans]),
        np.concatenate([plan.target for plan in plans]),
        np.concatenate(mass) / first.shape[1],
        shape=first.shape,
        cost=sum(plan.cost * part for plan, part in zip(plans, parts, strict=True)),
        is_optimal=False,
        has_converged=all(plan.has_converged for plan in plans),
    )
