"""Gradients at other points than where a model stands, for methods that look ahead."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from subflot.data.federated import Examples
from subflot.task import Task

Slope = Callable[[list[Tensor]], list[Tensor]]
"""Where parameters stand -> the gradient of a loss there."""


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """List the parameters that training changes, each once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def gradient(loss: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Differentiate a loss; zero for parameters that it does not depend on."""
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return list(found)


def slope_of(task: Task, model: nn.Module, examples: Examples) -> Slope:
    """Return the gradient of the task's loss on some examples, as a function of the parameters."""

    def at(point: list[Tensor]) -> list[Tensor]:
        here = trainable(model)
        with standing_at(here, point):
            return gradient(task.loss(model(examples.inputs), examples.labels), here)

    return at


@contextmanager
def standing_at(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> Iterator[None]:
    """Let a model stand at other values; afterwards it stands where it was, to the bit.

    Graphs that are made inside must be used inside.
    """
    here = [parameter.data for parameter in parameters]
    try:
        _move(parameters, values)
        yield
    finally:
        _move(parameters, here)


def _move(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> None:
    for parameter, value in zip(parameters, values, strict=True):
        parameter.data = value


@contextmanager
def fixed_buffers(model: nn.Module) -> Iterator[None]:
    """Undo what passes inside do to buffers, such as running statistics."""
    buffers = list(model.buffers())
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)


def with_gradient(value: Tensor, parameters: Sequence[Tensor], known: Sequence[Tensor]) -> Tensor:
    """Return a loss of this value whose gradient, whatever the value came from, is `known`.

    Example:
        >>> point = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with_gradient(torch.tensor(7.0), [point], [torch.tensor([0.5, 0.25])]).backward()
        >>> point.grad
        tensor([0.5000, 0.2500])
    """
    loss: Tensor = _WithGradient.apply(value.detach(), known, *parameters)  # type: ignore[no-untyped-call]
    return loss


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, known: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.known = known
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, *(outer[0] * slope for slope in ctx.known))
