"""What an alignment did: a row per layer, the distances of the theorem, and pictures of plans."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from subflot.channels.flow import Origin
from subflot.channels.rows import split
from subflot.channels.space import ChannelMap, Segments
from subflot.drawing import blank, check_picture
from subflot.errors import SubflotError
from subflot.transport.align import Alignment
from subflot.transport.plan import Plan
from subflot.weights import Weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_PANELS, MAX_COLUMNS = 24, 6
"""Plans that one picture shows; of more, as many from first to last at even distances."""
LARGEST_IMAGE, FEW_ENTRIES = 64, 4
"""Channels up to which each pair is a visible pixel, and entries per channel up to which a larger
plan is drawn as dots: in an image they would be too small to see."""


@dataclass(frozen=True)
class Match:
    """How the channels of one space that one layer makes were matched."""

    tensor: str
    space: str
    num_source_channels: int
    num_target_channels: int
    cost: float
    """Of the plan; layers that `residual="joint"` matches together share a plan and its cost."""
    share_moved: float
    """Share of the mass that goes to a channel of another number."""
    is_optimal: bool


@dataclass(frozen=True)
class Diagnosis:
    """What an alignment did to each layer and to the whole model; see `diagnose`."""

    matches: tuple[Match, ...]
    delta_ot: float
    delta_p: float
    global_share: float
    """Alpha of Eq. 6, on which `delta_p` depends."""


@torch.no_grad()
def diagnose(
    alignment: Alignment,
    source: Weights,
    target: Weights,
    channels: ChannelMap,
    *,
    global_share: float = 0.5,
    parameters: Collection[str] | None = None,
) -> Diagnosis:
    """Tell what an alignment of `source` onto `target` did.

    The two distances are the terms that one pair of models adds to the sums over clients in the
    paper's assumptions. T is the alignment; squared distances are those of `squared_distance`:

    - `delta_ot`, Assumption 5 (bounded OT perturbation), delta_OT^2: ||T(W_i) - W_i||^2, with the
      source as the client's model W_i. Aligned model against source.
    - `delta_p`, Assumption 6 (bounded personalization error), delta_P^2: ||W~_i - W_G||^2, with the
      source as the global model W_G and the target as the client's last model. W~_i is the anchor
      of Eq. 6, global_share * aligned + (1 - global_share) * target, so this is anchor against
      source; with a global share of one it equals `delta_ot`.

    The paper is loose here. It compares models of different widths, "parameters absent in the
    submodel are considered masked to zero", without saying which parameters the present ones are,
    though a plan has no fixed positions. We read: channel c of the narrower model stands at
    number c of the wider one, absent entries count as zero. A permutation that leaves the function
    as it is therefore still has a distance. The assumptions speak of aggregation (client onto
    global) and of extraction (global onto client): a pair is one or the other, and the number of
    the other direction only says what it would be if the roles were changed.

    Args:
        alignment: what `align(source, target, channels)` returned.
        source: the model that was carried.
        target: the model that it was carried to.
        channels: the map of the family.
        global_share: alpha of Eq. 6.
        parameters: tensors that count as W. None takes all of floating point, with the running
            statistics of normalisation, which the theorem's W does not hold.
    """
    matches = tuple(
        Match(origin[0], space, *plan.shape, plan.cost, plan.share_moved(), plan.is_optimal)
        for (space, origin), plan in _plans(alignment).items()
    )
    sizes, target_sizes = channels.sizes_of(source), channels.sizes_of(target)
    delta_ot = delta_p = 0.0
    for name in _counted(source, parameters):
        carried, last = _double(alignment.weights[name]), _double(target[name])
        anchor = global_share * carried + (1 - global_share) * last
        own = _double(source[name])
        delta_ot += _squared_distance(name, carried, own, channels, target_sizes, sizes)
        delta_p += _squared_distance(name, anchor, own, channels, target_sizes, sizes)
    return Diagnosis(matches, delta_ot, delta_p, global_share)


@torch.no_grad()
def squared_distance(
    one: Weights,
    other: Weights,
    channels: ChannelMap,
    *,
    parameters: Collection[str] | None = None,
) -> float:
    """Return the sum of squared differences of two models of a family, of any widths.

    Channel c of one is compared with channel c of the other, whatever the shapes: behind a flatten
    with all its positions. Entries of a channel that the other model does not have are compared
    with zero. Squares are added up in the precision of the weights along a row, and then in double.

    Args:
        one: weights of one model.
        other: weights of another.
        channels: the map of the family.
        parameters: tensors that count; None takes all of floating point.

    Example:
        >>> from subflot.channels.space import Segment
        >>> channels = ChannelMap({"w": ((Segment("h", repeat=2),),)}, {"h": 2})
        >>> wide, narrow = torch.tensor([1.0, 2.0, 3.0, 0.0]), torch.tensor([1.0, 4.0])
        >>> squared_distance({"w": wide}, {"w": narrow}, channels)
        13.0
    """
    sizes, other_sizes = channels.sizes_of(one), channels.sizes_of(other)
    return sum(
        _squared_distance(name, one[name], other[name], channels, sizes, other_sizes)
        for name in _counted(one, parameters)
    )


def _counted(weights: Weights, parameters: Collection[str] | None) -> list[str]:
    return [
        name
        for name, tensor in weights.items()
        if (parameters is None or name in parameters)
        and isinstance(tensor, Tensor)
        and tensor.is_floating_point()
    ]


def _squared_distance(
    name: str,
    one: Tensor,
    other: Tensor,
    channels: ChannelMap,
    sizes: Mapping[str, int],
    other_sizes: Mapping[str, int],
) -> float:
    """Compare one tensor of two models whose spaces have these sizes."""
    axes = channels.axes[name]
    shared, rest = _parted(one, axes, sizes, other_sizes)
    other_shared, other_rest = _parted(other, axes, other_sizes, sizes)
    return _squares(shared - other_shared.to(shared.device)) + rest + other_rest


def _parted(
    tensor: Tensor,
    axes: Sequence[Segments | None],
    sizes: Mapping[str, int],
    other_sizes: Mapping[str, int],
) -> tuple[Tensor, float]:
    """Cut off the channels that the other model lacks; return what is left, and their squares."""
    rest = 0.0
    for axis, segments in enumerate(stretches or () for stretches in axes):
        if all(s.space is None or sizes[s.space] <= other_sizes[s.space] for s in segments):
            continue
        left = []
        for piece, segment in zip(split(tensor, axis, segments, sizes), segments, strict=True):
            if segment.space is not None and sizes[segment.space] > other_sizes[segment.space]:
                parts = piece.unflatten(axis, (segment.copies, -1, segment.repeat))
                piece, more = (
                    part.flatten(axis, axis + 2)
                    for part in parts.tensor_split([other_sizes[segment.space]], axis + 1)
                )
                rest += _squares(more)
            left.append(piece)
        tensor = torch.cat(left, axis) if len(left) > 1 else left[0]
    return tensor, rest


def _squares(tensor: Tensor) -> float:
    """Sum the squares of a tensor, of its rows in its own precision and of them in double."""
    rows = tensor.reshape(len(tensor), -1) if tensor.ndim else tensor.reshape(1, 1)
    dtype = torch.promote_types(rows.dtype, torch.float32)
    total = float(_double(torch.linalg.vector_norm(rows, dim=1, dtype=dtype)).square().sum())
    return total if math.isfinite(total) else float(_double(rows).square().sum())


def _double(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float64)  # Not every device has double precision.


def _plans(alignment: Alignment) -> dict[tuple[str, Origin], Plan]:
    """One plan per space and layer that makes it, in the order of the walk."""
    return {
        (space, origin): plan
        for space, plans in alignment.plans.items()
        for origin, plan in plans.items()
    }


def draw(shown: Plan | Alignment, path: str | Path) -> None:
    """Draw a plan, or one panel per layer of an alignment, into a PNG or PDF file.

    Source channels go down, target channels go right; the darker a pair, the larger its part of
    what the target channel receives. A model with more than `MAX_PANELS` layers shows a selection.
    """
    path = check_picture(path)
    panels = [("", shown)] if isinstance(shown, Plan) else _panels(shown)
    num_columns = min(MAX_COLUMNS, len(panels))
    num_rows = -(-len(panels) // num_columns)
    figure = blank(3 * num_columns, 3.2 * num_rows)
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    for axes, (title, plan) in zip(grid.flat, panels, strict=False):
        _draw_plan(axes, plan)
        axes.set_title(title, fontsize="small")
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    if isinstance(shown, Alignment) and len(panels) < len(_plans(shown)):
        figure.suptitle(f"{len(panels)} of {len(_plans(shown))} layers")
    figure.supxlabel("target channel")
    figure.supylabel("source channel")
    figure.savefig(path, format=path.suffix.lower()[1:])


def _panels(alignment: Alignment) -> list[tuple[str, Plan]]:
    """Titles and plans of the layers to show."""
    plans = _plans(alignment)
    if not plans:
        raise SubflotError("the alignment has no plan to draw")
    num_makers: dict[str, int] = {}
    for _, (tensor, _) in plans:
        num_makers[tensor] = num_makers.get(tensor, 0) + 1
    panels = [
        (tensor if num_makers[tensor] == 1 else f"{tensor}: {space}", plan)
        for (space, (tensor, _)), plan in plans.items()
    ]
    if len(panels) <= MAX_PANELS:
        return panels
    places = [round(i * (len(panels) - 1) / (MAX_PANELS - 1)) for i in range(MAX_PANELS)]
    return [panels[place] for place in places]


def _draw_plan(axes: "Axes", plan: Plan) -> None:
    num_sources, num_targets = plan.shape
    most = float(plan.share.max())
    if max(plan.shape) > LARGEST_IMAGE and len(plan.mass) <= FEW_ENTRIES * sum(plan.shape):
        # The scale starts below zero, for the faintest dot must still be seen.
        axes.scatter(
            plan.target,
            plan.source,
            2,
            plan.share,
            cmap="Greys",
            linewidths=0,
            vmin=-most / 4,
            vmax=most,
        )
        axes.set_xlim(-0.5, num_targets - 0.5)
        axes.set_ylim(num_sources - 0.5, -0.5)
    else:
        matrix = plan.dense()
        matrix[plan.source, plan.target] = plan.share
        axes.imshow(
            matrix, cmap="Greys", aspect="auto", interpolation="nearest", vmin=0.0, vmax=most
        )
    axes.locator_params(integer=True)
    axes.tick_params(labelsize="x-small")
