"""Spaces that no layer makes: the inner one of a product of two parameters."""

from typing import Any

import pytest
import torch
from tolerances import DOUBLE, EXACT
from torch import Tensor, nn

from subflot import ChannelMap, build, take, trace
from subflot.channels.keep import prefix, random
from subflot.transport import align

INNER = "left"


class LowRank(nn.Module):
    """A layer whose weights are a product of two parameters, between two plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 8), nn.Linear(6, 2)
        self.left, self.right = nn.Parameter(torch.rand(8, 4)), nn.Parameter(torch.rand(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.first(x) @ (self.left @ self.right))
        return result


class OnlyProducts(nn.Module):
    """Nothing but a product of parameters, so that no layer makes any space."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.rand(3, 4)), nn.Parameter(torch.rand(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.left @ self.right)


def traced(kind: type[nn.Module]) -> tuple[nn.Module, ChannelMap, Tensor]:
    torch.manual_seed(0)
    model, example = kind().double(), torch.rand(5, 3, dtype=torch.float64)
    channels = trace(model, example)
    assert INNER in channels.prunable
    assert INNER not in channels.producers
    return model, channels, example


@pytest.mark.parametrize("residual", ["average", "joint"])
@pytest.mark.parametrize("kind", [LowRank, OnlyProducts])
def test_a_permuted_copy_is_aligned_exactly(kind: type[nn.Module], residual: Any) -> None:
    model, channels, _ = traced(kind)
    generator = torch.Generator().manual_seed(1)
    order = {s: torch.randperm(channels.sizes[s], generator=generator) for s in channels.prunable}
    target = take(model.state_dict(), channels, order)
    aligned = align(model.state_dict(), target, channels, residual=residual)
    for name, value in target.items():
        torch.testing.assert_close(aligned.weights[name], value, **EXACT)
    plans = list(aligned.plans[INNER].values())
    assert list(aligned.plans[INNER]) == channels.members(INNER)
    assert all(plan is plans[0] for plan in plans)


@pytest.mark.parametrize("plan", ["balanced", "partial"])
@pytest.mark.parametrize("kind", [LowRank, OnlyProducts])
def test_the_result_has_the_shapes_of_the_target(kind: type[nn.Module], plan: Any) -> None:
    model, channels, example = traced(kind)
    wide = model.state_dict()
    narrow = take(wide, channels, random(channels, 0.5, torch.Generator().manual_seed(2)))
    for source, target in ((wide, narrow), (narrow, wide)):
        aligned = align(source, target, channels, plan=plan).weights
        assert {n: t.shape for n, t in aligned.items()} == {n: t.shape for n, t in target.items()}
        with torch.no_grad():
            assert build(model, channels, aligned)(example).isfinite().all()


@pytest.mark.parametrize("times", [2, 3])
def test_merged_copies_keep_the_function_when_one_side_adds(times: int) -> None:
    model, channels, example = traced(OnlyProducts)
    order = {INNER: torch.arange(channels.sizes[INNER]).repeat_interleave(times)}
    wide = take(model.state_dict(), channels, order)
    wide["right"] = wide["right"] / times
    back = align(wide, model.state_dict(), channels, input_map="sum").weights
    with torch.no_grad():
        torch.testing.assert_close(build(model, channels, back)(example), model(example), **DOUBLE)


def test_all_tensors_of_the_space_take_part_in_the_match() -> None:
    # Channels of the left side are all alike: only the right side can tell them apart.
    _, channels, _ = traced(OnlyProducts)
    source = {"left": torch.ones(3, 4), "right": torch.tensor([[1.0, 1], [2, 2], [3, 3], [4, 4]])}
    target = {"left": torch.ones(3, 2), "right": torch.tensor([[3.5, 3.5], [1.5, 1.5]])}
    assert {n: t.shape for n, t in target.items()} == {
        n: t.shape for n, t in take(source, channels, prefix(channels, 0.5)).items()
    }
    aligned = align(source, target, channels).weights
    torch.testing.assert_close(aligned["right"], target["right"], **EXACT)
