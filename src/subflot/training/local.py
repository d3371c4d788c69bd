"""The training loop that most methods share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task, weights_of
from subflot.training.descent import Descent
from subflot.weights import Weights

Objective = Callable[[nn.Module, Examples], Tensor]
"""The loss of a model on a batch, with its graph."""


@dataclass(frozen=True)
class Trained:
    """What local training leaves."""

    weights: Weights
    loss: float
    """Mean over the examples of all batches, before the step of each."""


def batches(
    num_examples: int, batch_size: int, epochs: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield the examples of each batch, every example once an epoch in a new order.

    The last batch of an epoch may be smaller. One example left over joins the batch before it, for
    batch norm has no spread over one.

    Example:
        >>> [len(batch) for batch in batches(7, 3, 1, torch.Generator())]
        [3, 4]
    """
    starts = _starts(num_examples, batch_size)
    for _ in range(epochs):
        order = torch.randperm(num_examples, generator=generator)
        for start, stop in zip(starts, [*starts[1:], num_examples], strict=True):
            yield order[start:stop]


def num_batches(num_examples: int, batch_size: int) -> int:
    """Count the batches of an epoch.

    Example:
        >>> num_batches(7, 3)
        2
    """
    return len(_starts(num_examples, batch_size))


def _starts(num_examples: int, batch_size: int) -> list[int]:
    starts = list(range(0, num_examples, batch_size))
    if len(starts) > 1 and num_examples - starts[-1] == 1 and batch_size > 1:
        starts.pop()
    return starts


def train_locally(
    task: Task,
    weights: Weights,
    examples: Examples,
    generator: torch.Generator,
    *,
    objective: Objective | None = None,
    pull: float = 0.0,
    anchor: Weights | None = None,
) -> Trained:
    """Train a model on a client's examples as the task says.

    Args:
        task: the model, its loss, and how it is trained.
        weights: where training starts; they are not changed.
        examples: at least one.
        generator: draws the order of the examples, and seeds what the model draws itself (dropout).
        objective: what is made small; the task's loss by default.
        pull: adds `pull * (parameters - anchor)` to every gradient, which is the gradient of
            `pull / 2 * |parameters - anchor|^2`, without a graph.
        anchor: where the parameters are pulled to; where training starts by default.
    """
    if not len(examples):
        raise SubflotError("a client without examples cannot train")
    local = task.local
    inputs, labels = examples.inputs.to(task.device), examples.labels.to(task.device)
    if len(examples) == 1:
        # The same mean loss, and batch norm can take its variance.
        inputs, labels = inputs.repeat_interleave(2, 0), labels.repeat_interleave(2, 0)
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    total = torch.zeros((), device=task.device)
    num_seen = 0
    with task.lend(weights) as model, seeded(seed, task.device), _explained(local.batch_size):
        model.train()
        parameters = [p for p in model.parameters() if p.requires_grad]
        start = weights if anchor is None else anchor
        anchors = [
            start[name].to(task.device)
            for name, p in model.named_parameters()
            if p.requires_grad and pull
        ]
        descent = Descent(parameters, local)
        for chosen in batches(len(labels), local.batch_size, local.epochs, generator):
            batch = Examples(inputs[chosen], labels[chosen])
            for parameter in parameters:
                parameter.grad = None
            if objective is None:
                loss = task.loss(model(batch.inputs), batch.labels)
            else:
                loss = objective(model, batch)
            loss.backward()
            if pull:
                _add_pull(parameters, anchors, pull)
            if local.max_norm:
                nn.utils.clip_grad_norm_(parameters, local.max_norm)
            descent.step()
            total += loss.detach() * len(chosen)
            num_seen += len(chosen)
        trained = weights_of(model)
    return Trained(trained, float(total) / max(1, num_seen))


@contextmanager
def _explained(batch_size: int) -> Iterator[None]:
    """Say what to do where a norm would have to find the spread of a single number."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise SubflotError(
            f"batch norm has no spread over a batch of one example (batch_size={batch_size})",
            hint="set batch_size to 2 or more, or take a model with another norm",
        ) from None


@torch.no_grad()
def _add_pull(parameters: list[nn.Parameter], anchors: list[Tensor], pull: float) -> None:
    pairs = zip(parameters, anchors, strict=True)
    present = [(p, a) for p, a in pairs if p.grad is not None]
    away = torch._foreach_sub([p for p, _ in present], [a for _, a in present])
    gradients = [p.grad for p, _ in present if p.grad is not None]
    torch._foreach_add_(gradients, list(away), alpha=pull)


@contextmanager
def seeded(seed: int, device: str) -> Iterator[None]:
    """Let what a model draws itself depend on a seed, and leave the global stream as it was."""
    on_gpu = [torch.device(device)] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=on_gpu):
        torch.manual_seed(seed)
        yield
