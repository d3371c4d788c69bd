"""Settings of modules that count channels are found, and only those that do."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot import trace
from subflot.channels.trial import Trial


class Stacked(nn.Module):
    """Attention blocks of one class, whose settings count channels."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Attention() for _ in range(depth)))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(1))


class Attention(nn.Module):
    """Heads cut out by one setting and laid together by another."""

    def __init__(self) -> None:
        super().__init__()
        self.head_dim, self.width = 8, 16
        self.into, self.out = nn.Linear(12, 48), nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = self.into(x).view(batch, tokens, 3, 2, self.head_dim).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        return x + self.out(mixed.reshape(batch, tokens, self.width))


def test_settings_are_found_in_as_many_trials_whatever_the_depth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trials: list[int] = []
    resize = Trial.resize

    def counted(*args: Any, **kwargs: Any) -> Any:
        trials[-1] += 1
        return resize(*args, **kwargs)

    monkeypatch.setattr(Trial, "resize", counted)
    for depth in (2, 5):
        trials.append(0)
        channels = trace(Stacked(depth), torch.randn(2, 5, 12))
        for place in range(depth):
            assert f"blocks.{place}.head_dim" in channels.attributes
            assert f"blocks.{place}.width" in channels.attributes
    assert trials[0] == trials[1]
