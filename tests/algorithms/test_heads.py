"""Heads of early exits: what they compute, and which one there is room for."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn

from subflot.algorithms.depthfl import DepthFL
from subflot.algorithms.exits import num_parameters, with_exits
from subflot.algorithms.heads import Exit, exits_behind, has_grid, strongest
from subflot.algorithms.scalefl import ScaleFL
from subflot.channels.blocks import Cut
from subflot.models import MODELS
from subflot.task import Task

PICTURES = Cut("features", frozenset(), 6, 1, (9, 8))
SIGNALS = Cut("features", frozenset(), 6, 1, (1, 26))
SERIES = Cut("features", frozenset(), 6, 1, (20,))
TOKENS = Cut("embedding", frozenset(), 6, 2, (7,))
HIDDEN = Cut("hidden", frozenset(), 6, 1, ())
CUTS = (PICTURES, SIGNALS, SERIES, TOKENS, HIDDEN)
EXITS = [one for cut in CUTS for one in exits_behind(cut)]


def features_of(cut: Cut, count: int = 4) -> Tensor:
    shape = list(cut.positions)
    shape.insert(cut.axis - 1, cut.num_channels)
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("one", EXITS, ids=str)
def test_every_head_tells_the_classes_apart_and_has_the_parameters_that_are_counted(
    one: Exit,
) -> None:
    head = one.head(3)
    assert head(features_of(one.cut)).shape == (4, 3)
    assert one.num_parameters(3) == sum(p.numel() for p in head.parameters())


def test_a_head_tells_positions_apart_and_the_smallest_does_not() -> None:
    upright = features_of(PICTURES)
    for one, differs in ((exits_behind(PICTURES)[0], True), (exits_behind(PICTURES)[-1], False)):
        head = one.head(3)
        apart = float((head(upright) - head(upright.flip(2))).detach().abs().max())
        assert (apart > 1e-3) == differs


def test_a_grid_by_hand() -> None:
    cut = Cut("features", frozenset(), 1, 1, (4, 2))
    head = Exit(cut, growth=0, grid=2).head(2)
    # Rows in twos, columns alone: four numbers, first along the columns.
    seen = torch.arange(8.0).view(1, 1, 4, 2)
    weight, bias = head.get_parameter("linear.weight"), head.get_parameter("linear.bias")
    expected = weight @ torch.tensor([1.0, 2.0, 5.0, 6.0]) + bias
    torch.testing.assert_close(head(seen), expected[None], **FLOAT32)


def test_convolutions_are_separable_and_go_on_until_four_positions_are_left() -> None:
    head = Exit(SIGNALS, growth=2, grid=4).head(3)
    # Of 26 steps 13, 7 and 4 are left; channels double each time.
    found = [layer for layer in head.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in found] == [6, 6, 6, 12, 12, 12, 12, 24, 24, 24, 24, 48]
    assert [layer.stride for layer in found[::4]] == [(1, 2)] * 3
    assert all(layer.groups == layer.in_channels for layer in found[::2])
    assert {layer.kernel_size for layer in found[::2]} == {(1, 3)}
    assert head.get_parameter("linear.weight").shape == (3, 48 * 4)


def test_a_head_is_the_same_every_time_and_leaves_the_global_stream_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, other = (Exit(PICTURES, 1, 4).head(3).state_dict() for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(one, other, **EXACT)


@given(st.sampled_from(CUTS), st.integers(0, 20000))
def test_the_strongest_head_that_fits_is_taken(cut: Cut, room: int) -> None:
    found = strongest(cut, 3, room)
    exits = exits_behind(cut)
    assert found == exits[-1] or found.num_parameters(3) <= room
    for stronger in exits[: exits.index(found)]:
        assert stronger.num_parameters(3) > room


@pytest.mark.parametrize("method", [DepthFL(), ScaleFL()], ids=["depthfl", "scalefl"])
@pytest.mark.parametrize("name", ["digit5cnn", "harcnn"])
def test_where_linear_layers_hold_most_parameters_heads_have_convolutions(
    name: str, method: DepthFL | ScaleFL
) -> None:
    network = MODELS[name]
    torch.manual_seed(0)
    task = Task.of(network.build(4, width=0.25), network.example())  # type: ignore[call-arg]
    found = with_exits(method.prepare(task))
    heads: nn.ModuleList = found.template.heads  # type: ignore[assignment]
    assert any(isinstance(layer, nn.Conv2d) for layer in heads[0].modules())
    for rate in (0.25, 0.5, 0.75):
        depth, narrowed = method.size(found, rate)
        assert num_parameters(found, found.names(depth), narrowed) <= found.budget(rate)


def test_tokens_and_linear_layers_have_no_grid() -> None:
    assert [has_grid(cut) for cut in CUTS] == [True, True, True, False, False]
