"""Settings of modules that count channels are found, and only those that do."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot import build, take, trace
from subflot.channels.keep import prefix
from subflot.channels.trial import Trial


class TrainingView(nn.Module):
    """Training alone reshapes to a constant; a setting of the module happens to have its value."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 8
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 10)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            x = x.view(-1, 8)
        return self.head(self.second(x) + 0 * self.depth)


def test_a_setting_is_not_held_to_count_channels_because_evaluation_runs_with_it() -> None:
    model = TrainingView()
    channels = trace(model, torch.randn(2, 4))
    assert "first" not in channels.prunable
    assert "depth" not in channels.attributes
    narrow = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    assert narrow.train()(torch.randn(2, 4)).shape == (2, 3)


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
