"""Methods whose clients share a part of the model and keep the rest to themselves.

What a client keeps neither reaches the server nor comes from it: at first it is that of the initial
model, which everybody has. There is no global model, since no client uses the shared part alone.
A client whose pruning rate changes takes along what it has of the channels that it then holds.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from subflot.algorithms.base import Client, ClientContext, Download, Memory, State, Turn, Upload
from subflot.algorithms.personal import Personalised
from subflot.channels import put, take
from subflot.channels.keep import prefix
from subflot.task import Task
from subflot.weights import Weights

RATE = "its pruning rate"
"""The entry of a memory that says at which pruning rate its tensors were cut."""


@dataclass(frozen=True)
class PartlyShared(Personalised):
    """FedAvg of some tensors. Methods say which stay on the client."""

    has_global: ClassVar[bool] = False

    @abstractmethod
    def private(self, task: Task) -> frozenset[str]:
        """Name the tensors that stay on the client."""

    def start(self, task: Task, clients: Sequence[Client], turn: Turn) -> State:
        private = self.private(task)
        return State({name: t for name, t in task.initial.items() if name not in private})

    def train(
        self, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        whole = replace(download, weights=self.extracted(task, download, context))
        upload, _ = super().train(task, whole, context)
        own = {name: upload.weights[name] for name in sorted(self.private(task))}
        shared = {name: upload.weights[name] for name in download.weights}
        return replace(upload, weights=shared), remember(own, self._rate(context))

    def extracted(self, task: Task, download: Download, context: ClientContext) -> Weights:
        initial = {name: task.initial[name] for name in self.private(task)}
        own = recall(task, context.memory, initial, self._rate(context))
        return _in_order(task, {**download.weights, **own})

    def trained(self, task: Task, upload: Upload, context: ClientContext) -> Weights:
        if not upload.weights:  # Nobody kept what was shared: its model is the next one it gets.
            return {}
        own = {name: context.memory[name] for name in self.private(task)}
        return _in_order(task, {**upload.weights, **own})

    def _rate(self, context: ClientContext) -> float:
        return 0.0 if self.ignores_budgets else context.client.pruning_rate


def remember(own: Weights, pruning_rate: float) -> Memory:
    """Return what a client remembers of tensors that it keeps; nothing of none."""
    return {**own, RATE: torch.tensor(pruning_rate, dtype=torch.float64)} if own else {}


def recall(task: Task, memory: Memory, initial: Weights, pruning_rate: float) -> Weights:
    """Return the tensors that a client kept, at its present width.

    Args:
        task: the model.
        memory: what `remember` returned; empty at first.
        initial: the tensors in full size, for channels that the client has not had yet.
        pruning_rate: of the client, now.
    """
    now = prefix(task.channels, pruning_rate)
    first = take(initial, task.channels, now)
    if not memory:
        return first
    own = {name: memory[name] for name in initial}
    if float(memory[RATE]) == pruning_rate:
        return own
    before = prefix(task.channels, float(memory[RATE]))
    values, owned = (
        take(full, task.channels, now) for full in put(own, initial, task.channels, before)
    )
    return {name: torch.where(owned[name], values[name], t) for name, t in first.items()}


def _in_order(task: Task, weights: Weights) -> Weights:
    """Order tensors as the model does: modules are kept for weights in that order."""
    return {name: weights[name] for name in task.initial}
