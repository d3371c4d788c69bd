"""A server at work on a network of three layers, and what its clients last returned."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from subflot.algorithms import make
from subflot.algorithms.base import Client, Place, State, Turn
from subflot.task import Task
from subflot.weights import Weights

RATES = (0.0, 0.5, 0.75)
"""They leave 6 and 4 channels of the hidden layers, 3 and 2, or 2 and 1."""
ROWS = tuple(Client(number, rate) for number, rate in enumerate(RATES))
EXAMPLES = (10, 30, 20)
TURN = Turn(3, 5, 0)


@cache
def task() -> Task:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)
    ).double()
    return Task.of(model, torch.zeros(2, 3, dtype=torch.float64))


def model_at(rate: float, seed: int) -> dict[str, Tensor]:
    """Random weights of a width."""
    draw = torch.Generator().manual_seed(seed)
    part = task().narrow(task().initial, rate)
    return {n: torch.randn(t.shape, generator=draw, dtype=t.dtype) for n, t in part.items()}


def at_work(history: Sequence[int] = (0, 1, 2)) -> State:
    """A server with a global model, and with what some clients last returned."""
    start = make("subflot-plus").start(task(), ROWS, TURN)
    last = {client: model_at(RATES[client], 10 + client) for client in history}
    places = {client: Place(1) for client in history}
    return State(model_at(0.0, 5), start.extras, last, places)


def assert_same(one: Weights, other: Weights, *, rtol: float, atol: float) -> None:
    assert one.keys() == other.keys()
    for name, tensor in other.items():
        assert_close(one[name], tensor, rtol=rtol, atol=atol)
