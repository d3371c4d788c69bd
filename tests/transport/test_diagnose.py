import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread
from numpy.typing import NDArray
from tolerances import Tolerance
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.testing import assert_close

from subflot.channels import ChannelMap, take, trace
from subflot.errors import SubflotError
from subflot.transport import Alignment, Plan, align, identity
from subflot.transport.diagnose import MAX_PANELS, Match, diagnose, draw, squared_distance

SUMS: Tolerance = {"rtol": 1e-12, "atol": 0.0}
"""Double precision, added up in another order."""
SINGLE: Tolerance = {"rtol": 1e-6, "atol": 0.0}
"""Rows added up in single precision."""


class Joined(nn.Module):
    """Two layers side by side, so that a narrow head's columns are no prefix of a wide one's."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 3), nn.Linear(2, 4)
        self.norm = nn.BatchNorm1d(7)
        self.head = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(F.relu(self.norm(torch.cat([self.a(x), self.b(x)], 1))))
        return logits


def two_layers(first: list[list[float]]) -> tuple[dict[str, Tensor], ChannelMap]:
    """Weights of a network whose first layer has these rows, and its map."""
    model = nn.Sequential(nn.Linear(2, len(first)), nn.ReLU(), nn.Linear(len(first), 2))
    weights = model.state_dict()
    weights["0.weight"] = torch.tensor(first)
    return weights, trace(model, torch.randn(3, 2))


def joined(seed: int, num_a: int, num_b: int) -> tuple[dict[str, Tensor], ChannelMap]:
    """Random weights of some widths, running statistics included, and the map of full width."""
    torch.manual_seed(seed)
    model = Joined()
    channels = trace(model, torch.randn(4, 2))
    weights = {
        name: torch.randn_like(tensor) if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    return take(weights, channels, {"a": torch.arange(num_a), "b": torch.arange(num_b)}), channels


def entries(weights: Mapping[str, Tensor], num_a: int, num_b: int) -> dict[tuple[str, ...], float]:
    """Every number under the names of the channels it belongs to, written down by hand."""
    a, b = [f"a{i}" for i in range(num_a)], [f"b{i}" for i in range(num_b)]
    both, x, y = a + b, ["x0", "x1"], ["y0", "y1"]
    labels = {
        "a.weight": (a, x),
        "a.bias": (a,),
        "b.weight": (b, x),
        "b.bias": (b,),
        "norm.weight": (both,),
        "norm.bias": (both,),
        "norm.running_mean": (both,),
        "norm.running_var": (both,),
        "head.weight": (y, both),
        "head.bias": (y,),
    }
    numbers = {}
    for name, axes in labels.items():
        for entry, value in zip(product(*axes), weights[name].flatten().tolist(), strict=True):
            numbers[(name, *entry)] = value
    return numbers


Numbers = Mapping[tuple[str, ...], float]


def plain_distance(one: Numbers, other: Numbers, counted: Any = lambda name: True) -> float:
    total = 0.0
    for key in {**one, **other}:
        if counted(key[0]):
            total += (one.get(key, 0.0) - other.get(key, 0.0)) ** 2
    return total


def test_a_permuted_copy_is_matched_at_no_cost_and_its_moves_are_counted() -> None:
    source, channels = two_layers([[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]])
    target = take(source, channels, {"0": torch.tensor([0, 2, 1])})
    found = diagnose(align(source, target, channels), source, target, channels)
    (match,) = found.matches
    assert match == Match("0.weight", "0", 3, 3, 0.0, match.share_moved, is_optimal=True)
    assert_close(match.share_moved, 2 / 3, **SUMS)


def test_two_channels_that_become_one_by_hand() -> None:
    # Half the mass stays in place, the other half comes from number 1 over a distance of 10.
    source, channels = two_layers([[0.0, 0.0], [6.0, 8.0]])
    target = take(source, channels, {"0": torch.tensor([0])})
    found = diagnose(align(source, target, channels), source, target, channels)
    assert found.matches == (Match("0.weight", "0", 2, 1, 5.0, 0.5, is_optimal=True),)


def test_there_is_a_row_for_every_layer_that_makes_a_space() -> None:
    source, channels = joined(0, 3, 4)
    target, _ = joined(1, 2, 4)
    blurred = align(source, target, channels, entropy=0.5)
    found = diagnose(blurred, source, target, channels)
    rows = [
        (m.tensor, m.space, m.num_source_channels, m.num_target_channels) for m in found.matches
    ]
    assert rows == [("a.weight", "a", 3, 2), ("b.weight", "b", 4, 4)]
    assert not any(match.is_optimal for match in found.matches)  # Blurred plans are not.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("widths", [(3, 4, 3, 4), (3, 4, 2, 1), (2, 1, 3, 4), (3, 1, 2, 4)])
def test_the_squared_distance_is_that_of_a_plain_loop(
    widths: tuple[int, int, int, int], dtype: torch.dtype
) -> None:
    one, channels = joined(0, *widths[:2])
    other, _ = joined(1, *widths[2:])
    one, other = ({n: t.to(dtype) for n, t in w.items()} for w in (one, other))
    expected = plain_distance(entries(one, *widths[:2]), entries(other, *widths[2:]))
    assert expected > 1
    tolerance = SUMS if dtype == torch.float64 else SINGLE
    assert_close(squared_distance(one, other, channels), expected, **tolerance)
    assert_close(squared_distance(other, one, channels), expected, **tolerance)
    assert squared_distance(one, one, channels) == 0


def test_squares_beyond_single_precision_are_added_up_in_double() -> None:
    one, channels = two_layers([[3e30, 0.0], [0.0, 4e30]])
    none = {name: torch.zeros_like(tensor) for name, tensor in one.items()}
    narrow = take(none, channels, {"0": torch.tensor([0])})
    for other in (none, narrow):
        assert_close(squared_distance(one, other, channels), 25e60, **SINGLE)


@pytest.mark.parametrize("widths", [(3, 4, 2, 1), (2, 1, 3, 4)])
def test_both_deltas_are_those_of_a_plain_loop(widths: tuple[int, int, int, int]) -> None:
    source, channels = joined(0, *widths[:2])
    target, _ = joined(1, *widths[2:])
    alignment = align(source, target, channels)
    before = entries(source, *widths[:2])
    carried, last = (entries(w, *widths[2:]) for w in (alignment.weights, target))
    anchor = {key: 0.3 * carried[key] + 0.7 * last[key] for key in carried}
    found = diagnose(alignment, source, target, channels, global_share=0.3)
    assert_close(found.delta_ot, plain_distance(carried, before), **SUMS)
    assert_close(found.delta_p, plain_distance(anchor, before), **SUMS)
    assert found.global_share == 0.3

    parameters = {name for name, _ in Joined().named_parameters()}
    narrower = diagnose(
        alignment, source, target, channels, global_share=0.3, parameters=parameters
    )
    no_statistics = (lambda name: "running" not in name,)
    assert_close(narrower.delta_ot, plain_distance(carried, before, *no_statistics), **SUMS)
    assert_close(narrower.delta_p, plain_distance(anchor, before, *no_statistics), **SUMS)
    assert narrower.delta_ot < found.delta_ot


def test_with_the_whole_share_the_anchor_is_the_aligned_model() -> None:
    source, channels = joined(0, 3, 4)
    target, _ = joined(1, 2, 2)
    alignment = align(source, target, channels)
    whole = diagnose(alignment, source, target, channels, global_share=1.0)
    assert whole.delta_p == whole.delta_ot
    none = diagnose(alignment, source, target, channels, global_share=0.0)
    assert_close(none.delta_p, squared_distance(target, source, channels), **SINGLE)


def reverse(size: int) -> Plan:
    index = np.arange(size)
    return Plan(index[::-1].copy(), index, np.full(size, 1 / size), (size, size), 0.0, True)


def darkness(path: Path) -> NDArray[Any]:
    return 1.0 - np.asarray(imread(path))[..., :3].mean(2)


@pytest.mark.parametrize("size", [5, 100])  # An image, and dots.
def test_a_picture_shows_where_the_mass_goes(tmp_path: Path, size: int) -> None:
    draw(identity(size), tmp_path / "stay.png")
    draw(reverse(size), tmp_path / "turn.png")
    stay, turn = darkness(tmp_path / "stay.png"), darkness(tmp_path / "turn.png")
    for picture, is_diagonal in ((stay, True), (turn, False)):
        # The frame is the darkest row and column; what is inside is the plan.
        rows, columns = (
            np.flatnonzero(picture.mean(a) > 0.6 * picture.mean(a).max()) for a in (1, 0)
        )
        inside = picture[rows.min() + 4 : rows.max() - 3, columns.min() + 4 : columns.max() - 3]
        height, width = inside.shape
        upper_left = inside[: height // 2, : width // 2].sum()
        upper_right = inside[: height // 2, width - width // 2 :].sum()
        assert (upper_left > 3 * upper_right) == is_diagonal
        assert (upper_right > 3 * upper_left) != is_diagonal


def drawn(monkeypatch: pytest.MonkeyPatch, shown: Plan | Alignment) -> Figure:
    """The figure itself instead of a file."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    draw(shown, "unwritten.png")
    return figures[0]


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes if axes.get_title()]


def test_every_layer_has_a_panel_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    source, channels = joined(0, 3, 4)
    figure = drawn(monkeypatch, align(source, source, channels))
    assert titles(figure) == ["a.weight", "b.weight"]
    assert figure.get_suptitle() == ""


def test_of_many_layers_a_selection_is_drawn_and_the_title_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = {str(n): {(f"{n}.weight", 0): identity(2)} for n in range(50)}
    figure = drawn(monkeypatch, Alignment({}, plans))
    names = titles(figure)
    assert len(names) == len(set(names)) == MAX_PANELS
    assert (names[0], names[-1]) == ("0.weight", "49.weight")
    assert figure.get_suptitle() == f"{MAX_PANELS} of 50 layers"


def test_a_layer_that_makes_two_spaces_is_named_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {"h": {("w", 0): identity(2)}, "c": {("w", 0): identity(3)}}
    assert titles(drawn(monkeypatch, Alignment({}, plans))) == ["w: h", "w: c"]


def test_the_suffix_chooses_the_kind_of_picture(tmp_path: Path) -> None:
    draw(identity(3), tmp_path / "plan.pdf")
    draw(identity(3), str(tmp_path / "plan.PNG"))
    assert (tmp_path / "plan.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "plan.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SubflotError, match=r"cannot draw into .*\.gif"):
        draw(identity(3), tmp_path / "plan.gif")


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match="no plan to draw"):
        draw(Alignment({}, {}), tmp_path / "plan.png")


def test_without_matplotlib_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SubflotError, match=r"needs matplotlib[\s\S]*subflot\[plots\]"):
        draw(identity(3), tmp_path / "plan.png")
