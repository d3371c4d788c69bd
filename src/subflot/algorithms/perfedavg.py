"""Per-FedAvg: a global model from which one local step leads far.

Paper: "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach", NeurIPS 2020, arXiv:2002.07948.

The global model makes the mean of f_i(w - alpha grad f_i(w)) small: the loss of every client after
a step of its own. A client steps ahead on one batch and moves the model by the gradient that it
finds there on another; the curvature in between is ignored (first order) or taken from a
difference of two gradients (Hessian-free).

A step takes two batches, or three (Hessian-free). A round has as many steps as one of FedAvg, and
sees each example twice or three times as often; with `match=examples` it sees each as often as in
FedAvg, and takes half as many steps, or a third.

Where this departs from the paper: uploads count by their examples. A batch too small to be divided
is used whole for each purpose. beta and what else concerns the outer step (momentum, weight decay,
clipping) is that of the task's local training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from subflot.algorithms.base import ClientContext, Download, Memory, Upload
from subflot.algorithms.gradients import (
    Slope,
    fixed_buffers,
    gradient,
    slope_of,
    standing_at,
    trainable,
    with_gradient,
)
from subflot.algorithms.personal import Personalised
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task, weights_of
from subflot.training import Objective, batches
from subflot.training.evaluate import BATCH
from subflot.training.local import num_batches, seeded
from subflot.weights import Weights

STEADY = 4
"""Examples in a part of a divided batch. Over two, batch norm behind a single pixel divides by the
difference of two numbers, and gradients explode."""


@dataclass(frozen=True)
class PerFedAvg(Personalised):
    """Model-agnostic meta-learning across clients.

    What is measured is the model after one step of size alpha along the gradient of all of the
    client's training examples.

    Attributes:
        inner_rate: alpha, the step ahead; None for the task's learning rate.
        curvature: `first-order` ignores it, `hessian-free` estimates it.
        probe: delta, how far along the gradient the two points of that estimate lie.
        match: what a round has as many of as FedAvg's: outer `steps`, to the nearest whole epoch,
            or `examples` that it sees.
    """

    name: ClassVar[str] = "perfedavg"
    version: ClassVar[int] = 2  # It had seen each example as often as FedAvg.
    paper: ClassVar[str] = "NeurIPS 2020, arXiv:2002.07948"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"inner_rate": (None, 0.01, 0.1)}

    inner_rate: float | None = None
    curvature: Literal["first-order", "hessian-free"] = "first-order"
    probe: float = 1e-3
    match: Literal["steps", "examples"] = "steps"

    def __post_init__(self) -> None:
        if self.inner_rate is not None and not 0 <= self.inner_rate < float("inf"):
            raise SubflotError(f"inner_rate is {self.inner_rate}", hint="zero or a positive number")
        if not 0 < self.probe < float("inf"):
            raise SubflotError(f"probe is {self.probe}", hint="a positive number, such as 0.001")

    @property
    def _parts(self) -> int:
        """Batches that one step uses."""
        return 2 if self.curvature == "first-order" else 3

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        local = task.local
        batch_size, epochs = self._parts * local.batch_size, local.epochs
        if self.match == "steps":
            count = len(context.examples)
            epochs = round(
                epochs * num_batches(count, local.batch_size) / num_batches(count, batch_size)
            )
        local = replace(local, batch_size=batch_size, epochs=epochs)
        return super().train(replace(task, local=local), download, context)

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective:
        alpha = self._inner_rate(task)
        batch_size = task.local.batch_size // self._parts

        def after_a_step(model: nn.Module, batch: Examples) -> Tensor:
            ahead, judged, *around = divided(batch, self._parts, batch_size)
            parameters = trainable(model)
            here = [parameter.data for parameter in parameters]
            with fixed_buffers(model):
                there = moved(here, slope_of(task, model, ahead)(here), -alpha)
            with standing_at(parameters, there):
                loss = task.loss(model(judged.inputs), judged.labels)
                outer = gradient(loss, parameters)
            for examples in around:
                with fixed_buffers(model):
                    bent = curved(slope_of(task, model, examples), here, outer, self.probe)
                outer = moved(outer, bent, -alpha)
            return with_gradient(loss, parameters, outer)

        return after_a_step

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        return self.adapted(task, download.weights, context)

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        return self.adapted(task, upload.weights, context)

    def adapted(self, task: Task, weights: Weights, context: ClientContext) -> Weights:
        """Return the model after one step of size alpha on the client's training examples."""
        inputs, labels = context.examples.inputs, context.examples.labels
        draw = context.generator("adapt")
        seed = int(torch.randint(2**63 - 1, (), generator=draw))
        with task.lend(weights) as model, seeded(seed, task.device), fixed_buffers(model):
            model.train()
            parameters = trainable(model)
            here = [parameter.data for parameter in parameters]
            there = here
            for chosen in batches(len(labels), BATCH, 1, draw):
                share = len(chosen) / len(labels)
                some = chosen if len(chosen) > 1 else chosen.repeat_interleave(2)
                batch = Examples(inputs[some].to(task.device), labels[some].to(task.device))
                slope = slope_of(task, model, batch)(here)
                there = moved(there, slope, -share * self._inner_rate(task))
            with standing_at(parameters, there):
                return weights_of(model)

    def _inner_rate(self, task: Task) -> float:
        return task.local.learning_rate if self.inner_rate is None else self.inner_rate


@dataclass(frozen=True)
class PerFedAvgSub(PerFedAvg):
    """Per-FedAvg on submodels of the first channels."""

    name: ClassVar[str] = "perfedavg-sub"
    ignores_budgets: ClassVar[bool] = False


def divided(batch: Examples, parts: int, batch_size: int) -> list[Examples]:
    """Divide examples evenly into batches; too few of them serve whole for all.

    A part has at least half of `batch_size`, and `STEADY` examples unless that is less itself.
    """
    least = max(min(batch_size, STEADY), (batch_size + 1) // 2)
    if len(batch) < parts * least:
        return [batch] * parts
    inputs, labels = batch.inputs.tensor_split(parts), batch.labels.tensor_split(parts)
    return [Examples(*part) for part in zip(inputs, labels, strict=True)]


def curved(slope: Slope, here: list[Tensor], direction: list[Tensor], probe: float) -> list[Tensor]:
    """Return the Hessian times a direction as a central difference; exact on a quadratic."""
    plus, minus = (slope(moved(here, direction, step)) for step in (probe, -probe))
    return [(p - m) / (2 * probe) for p, m in zip(plus, minus, strict=True)]


def moved(point: list[Tensor], direction: list[Tensor], step: float) -> list[Tensor]:
    """Return the point that lies a step along a direction."""
    return list(torch._foreach_add(point, direction, alpha=step))
