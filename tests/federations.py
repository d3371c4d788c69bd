"""Tiny federations of real data: four clients of four widths, a network that trains in a moment."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms import Algorithm
from subflot.algorithms.base import Client, State
from subflot.data import load
from subflot.data.dataset import Dataset
from subflot.data.federated import Examples, FederatedData, federate
from subflot.simulation import simulate
from subflot.simulation.roster import Roster
from subflot.simulation.store import Store
from subflot.task import LocalTraining, Task, weights_of
from subflot.training import batches
from subflot.training.local import seeded
from subflot.weights import Weights

RATES = (0.0, 0.25, 0.5, 0.75)
CLIENTS = tuple(Client(number, rate) for number, rate in enumerate(RATES))
WHOLE = tuple(Client(number) for number in range(len(RATES)))
"""The same clients, each able to hold the full model."""
UNLIKE = ("timing.jsonl", "manifest.json", "summary.json", "begun.json")
"""Files in which equal runs may differ; the last is not written where nobody knows all data."""
LOCAL = LocalTraining(epochs=1, batch_size=8, learning_rate=0.1)


class TinyNet(nn.Module):
    """A convolution with batch norm, a flatten and two linear layers; input (batch, 1, 8, 8)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 3 * 3, 8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        found = torch.relu(self.norm(self.conv(images))).flatten(1)
        logits: Tensor = self.head(self.dropout(torch.relu(self.hidden(found))))
        return logits


@cache
def digits(count: int = 140) -> Dataset:
    """The first of the bundled digits."""
    whole = load("digits")
    return Dataset("digits", whole.inputs[:count], whole.labels[:count], whole.classes)


@cache
def tiny_data() -> FederatedData:
    """Uneven parts of them for four clients, labels skewed, with validation and test examples."""
    return federate(
        digits(),
        partition="dirichlet",
        num_clients=len(RATES),
        concentration=1.0,
        test_share=0.3,
        validation_share=0.2,
    )


@cache
def _traced(dropout: float) -> Task:
    with seeded(0, "cpu"):
        model = TinyNet(dropout)
    return Task.of(model, torch.zeros(2, 1, 8, 8))


def tiny_task(local: LocalTraining = LOCAL, *, dropout: float = 0.0) -> Task:
    """A task on them, always with the same weights; its server holds some examples too."""
    traced = _traced(dropout)
    proxy = Examples(*digits().tensors(np.arange(0, len(digits()), 7)))
    own = copy.deepcopy(traced.template)
    return replace(traced, template=own, local=local, proxy=proxy, _idle={}, _costs={})


def run_rounds(
    algorithm: Algorithm,
    folder: Path,
    *,
    rounds: int = 3,
    stop_after: int | None = None,
    task: Task | None = None,
    data: FederatedData | None = None,
    clients: Sequence[Client] | Roster = CLIENTS,
    seed: int = 0,
    workers: int = 1,
    **settings: Any,
) -> Path:
    """Run a method on the tiny federation, or the beginning of it, into a folder."""
    for done in simulate(
        algorithm,
        task or tiny_task(),
        data or tiny_data(),
        clients,
        rounds=rounds,
        folder=folder,
        seed=seed,
        workers=workers,
        **settings,
    ):
        if done.round == stop_after:
            break
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """Everything that a run left, as bytes, but for the time that it took."""
    files: dict[str, Any] = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in UNLIKE
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    for told in ("logs", "checksums"):
        manifest[told].pop("timing.jsonl", None)
    del manifest["checksum"]  # Of the whole text, with what timing says.
    return {**files, "manifest": manifest}


def differing(one: Path, other: Path) -> list[str]:
    """Name the files in which two runs differ."""
    first, second = contents(one), contents(other)
    return sorted(n for n in first.keys() | second.keys() if first.get(n) != second.get(n))


def final_state(folder: Path) -> State:
    """What the server knew when a run ended."""
    store = Store(folder)
    manifest = store.manifest()
    assert manifest is not None
    return store.state(manifest)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    """What was logged, a round per entry."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_autograd(
    task: Task,
    weights: Weights,
    examples: Examples,
    draw: torch.Generator,
    pull: float,
    anchor: Weights,
) -> dict[str, Tensor]:
    """Local training a second time, with `pull / 2 * |w - anchor|^2` in the loss."""
    torch.randint(2**63 - 1, (), generator=draw)  # The seed of dropout.
    model = task.build(weights).train()
    local = task.local
    optimiser = torch.optim.SGD(
        model.parameters(), local.learning_rate, local.momentum, weight_decay=local.weight_decay
    )
    for chosen in batches(len(examples), local.batch_size, local.epochs, draw):
        loss = F.cross_entropy(model(examples.inputs[chosen]), examples.labels[chosen])
        for name, parameter in model.named_parameters():
            loss = loss + pull / 2 * (parameter - anchor[name]).square().sum()
        optimiser.zero_grad()
        loss.backward()
        if local.max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), local.max_norm)
        optimiser.step()
    return weights_of(model)
