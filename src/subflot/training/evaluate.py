"""Measuring a model, the same way for every method."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from subflot.data.federated import Examples
from subflot.task import Task

BATCH = 256
"""Examples that are measured at once; it changes no result but that of norm statistics."""


@dataclass(frozen=True)
class Measurement:
    """How a model does on some examples."""

    num_examples: int
    num_correct: int
    loss: float
    """Sum over the examples."""

    @property
    def accuracy(self) -> float:
        """Share of the examples that are classified right."""
        return self.num_correct / self.num_examples


@torch.no_grad()
def recalibrate(task: Task, model: nn.Module, inputs: Tensor) -> None:
    """Recompute running statistics in one pass over inputs; what was there before is forgotten.

    A part of a model sees other activations than the whole, so statistics that were merged or cut
    fit none of them. Every batch counts alike. Models without such statistics are left alone.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms or not len(inputs):
        return
    model.eval()
    with _cumulative(norms):
        for batch in _batches(inputs):
            model(batch.to(task.device))
    model.eval()


@contextmanager
def _cumulative(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let norms take the plain mean of what they see, starting from nothing."""
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    yield
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _batches(inputs: Tensor) -> list[Tensor]:
    parts = list(inputs.split(BATCH))
    if len(parts) > 1 and len(parts[-1]) == 1:  # No spread over one.
        parts[-2:] = [torch.cat(parts[-2:])]
    return [part if len(part) > 1 else part.repeat_interleave(2, 0) for part in parts]


@torch.no_grad()
def measure(task: Task, model: nn.Module, examples: Examples) -> Measurement:
    """Count right answers and add up losses."""
    model.eval()
    num_correct, loss = 0, 0.0
    inputs, labels = examples.inputs.split(BATCH), examples.labels.split(BATCH)
    for some, theirs in zip(inputs, labels, strict=True):
        logits, wanted = model(some.to(task.device)), theirs.to(task.device)
        num_correct += int((logits.argmax(1) == wanted).sum())
        loss += float(task.loss(logits, wanted)) * len(wanted)
    return Measurement(len(examples), num_correct, loss)
