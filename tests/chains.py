"""A network of convolutions in a row, to be cut anywhere."""

import torch
from rounds import CLASSES, LOCAL
from torch import nn

from subflot.task import Task


def chain_task(*widths: int) -> Task:
    """Convolutions of these widths in a row, on the pictures of `tiny_examples`."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs in zip((1, *widths), widths, strict=False):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)]
    return Task.of(nn.Sequential(*layers), torch.randn(2, 1, 4, 4), LOCAL)
