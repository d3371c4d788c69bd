"""Kept scale for methods that cut channels by their positions."""

import pytest
import torch
from rounds import CLIENTS, FULL_CLIENTS, play
from tolerances import EXACT, FLOAT32
from torch import nn

from subflot.algorithms.base import Client, Turn
from subflot.algorithms.cut import CutFedAvg
from subflot.algorithms.feddrop import FedDrop
from subflot.algorithms.fedmp import FedMP
from subflot.algorithms.fedrolex import FedRolex
from subflot.algorithms.heterofl import HeteroFL
from subflot.channels import take
from subflot.task import LocalTraining, Task

TURN = Turn(2, 9, 0)
METHODS = [HeteroFL(scale=True), FedRolex(scale=True), FedDrop(scale=True), FedMP(scale=True)]


def plain_task(learning_rate: float = 0.1) -> Task:
    """Without norms the scale of what a layer reads matters."""
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Linear(8, 3))
    local = LocalTraining(epochs=1, batch_size=4, learning_rate=learning_rate)
    return Task.of(net, torch.randn(2, 1, 4, 4), local)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_what_is_sent_has_the_scale_of_the_full_layer_and_what_returns_has_not(
    method: CutFedAvg,
) -> None:
    task = plain_task()
    state = method.start(task, CLIENTS, TURN)
    client = Client(0, 0.5)
    download = method.download(task, state, client, TURN)
    plain = take(state.weights, task.channels, download.kept)
    # Half of the inputs are left: what they are multiplied by is doubled.
    for name, factor in (("1.weight", 1), ("3.weight", 2), ("5.weight", 2), ("3.bias", 1)):
        torch.testing.assert_close(download.weights[name], factor * plain[name], **EXACT)
    for part in play(method, plain_task(0.0), [client])[1]:
        back = take(task.initial, task.channels, part.upload.kept)
        torch.testing.assert_close(dict(part.upload.weights), back, **FLOAT32)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_at_full_width_it_changes_nothing(method: CutFedAvg) -> None:
    kept, _ = play(method, plain_task(), FULL_CLIENTS, rounds=2)
    plain, _ = play(type(method)(), plain_task(), FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(kept.weights, plain.weights, **EXACT)
