"""Tasks whose loss is quadratic, so that a hand can follow every step."""

import torch
from torch import Tensor, nn

from subflot.algorithms.base import Client, ClientContext, Turn
from subflot.channels import ChannelMap
from subflot.data.federated import Examples
from subflot.task import LocalTraining, Task

ROOT = torch.tensor([[1.0, 0.5], [0.0, 2.0]], dtype=torch.float64)
HESSIAN = ROOT.T @ ROOT
"""Of the loss of a `Point`."""


class Point(nn.Module):
    """A point in the plane; it answers with the way to each input, seen through `ROOT`."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.at - inputs) @ ROOT.T


def half_square(ways: Tensor, labels: Tensor) -> Tensor:
    return ways.square().sum(1).mean() / 2


def point_task(local: LocalTraining) -> Task:
    """The loss is the mean of |ROOT (at - input)|^2 / 2, its gradient HESSIAN (at - mean)."""
    channels = ChannelMap({"at": (None,)}, {})
    return Task(Point(), channels, torch.zeros(1, 2, dtype=torch.float64), local, half_square)


def points(*inputs: tuple[float, float]) -> Examples:
    return Examples(torch.tensor(inputs, dtype=torch.float64), torch.zeros(len(inputs)).long())


def context_of(examples: Examples, client: int = 0, round: int = 1, seed: int = 0) -> ClientContext:
    return ClientContext(Client(client), examples, {}, Turn(round, 10, seed))


def slope_at(at: Tensor, inputs: Tensor) -> Tensor:
    """The gradient of the loss, worked out on paper."""
    return HESSIAN @ (at - inputs.mean(0))
