"""Operations on places in an image or a sequence: pooling, windows, shuffles, padding."""

import re

from subflot.channels.axes import POSITIONS, because, divide, fresh, multiply, unify
from subflot.channels.operation import Labels, Operation, Result, family, rule

SPATIAL = re.compile(
    r"_?(adaptive_)?(fractional_)?(max_pool|max_unpool|avg_pool|lp_pool|upsample\w*|"
    r"reflection_pad|replication_pad|grid_sampler)_?(?P<rank>[123])d(_\w+)?$"
)


@family(lambda op: SPATIAL.match(op.name.rstrip("_")) is not None)
def spatial(op: Operation) -> Result:
    """Pooling, resizing and the like: the last axes are positions, the others pass."""
    found = SPATIAL.match(op.name.rstrip("_"))
    assert found is not None
    x, rank = op.tensor, int(found["rank"])
    lead = len(x) - rank
    op.freeze(x.axes[lead:], POSITIONS)
    numbers = op.get("indices")
    if numbers is not None:  # Unpooling: each channel has its own places.
        for one, other in zip(x.axes[:lead], numbers.axes[:lead], strict=True):
            unify(one, other)
    return [Labels([*x.axes[:lead], *op.fixed(shape[lead:], POSITIONS)]) for shape in op.shapes]


@rule("im2col")
def im2col(op: Operation) -> Labels:
    """Windows: channels times positions in the window."""
    x = op.tensor
    op.freeze(x.axes[-2:], POSITIONS)
    channels, window = x.axes[-3], op.shape[-2] // x.shape[-3]
    inside = fresh(window, because(POSITIONS))
    return Labels([*x.axes[:-3], multiply([channels, inside]), *op.fixed(op.shape[-1:], "windows")])


@rule("col2im")
def col2im(op: Operation) -> Labels:
    """The way back from windows."""
    x = op.tensor
    op.freeze(x.axes[-1:], "windows")
    channels, inside = divide(x.axes[-2], [op.shape[-3], x.shape[-2] // op.shape[-3]])
    op.freeze([inside], POSITIONS)
    return Labels([*x.axes[:-2], channels, *op.fixed(op.shape[-2:], POSITIONS)])


@rule("unfold")
def unfold(op: Operation) -> Labels:
    """Sliding windows along one axis, with a new axis for the place in the window."""
    x, dim = op.tensor, op.dim("dimension")
    op.freeze([x.axes[dim]], "sliding windows")
    windows, inside = op.fixed((op.shape[dim], op.shape[-1]), "sliding windows")
    return Labels([*x.axes[:dim], windows, *x.axes[dim + 1 :], inside])


@rule("pixel_shuffle")
def pixel_shuffle(op: Operation) -> Labels:
    """Channels become a finer grid."""
    x = op.tensor
    channels, grid = divide(x.axes[-3], [op.shape[-3], x.shape[-3] // op.shape[-3]])
    op.freeze([grid, *x.axes[-2:]], POSITIONS)
    return Labels([*x.axes[:-3], channels, *op.fixed(op.shape[-2:], POSITIONS)])


@rule("pixel_unshuffle")
def pixel_unshuffle(op: Operation) -> Labels:
    """A grid becomes channels."""
    x = op.tensor
    op.freeze(x.axes[-2:], POSITIONS)
    grid = fresh(op.shape[-3] // x.shape[-3], because(POSITIONS))
    channels = multiply([x.axes[-3], grid])
    return Labels([*x.axes[:-3], channels, *op.fixed(op.shape[-2:], POSITIONS)])


@rule("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(op: Operation) -> Labels:
    """Groups times channels of the group, transposed."""
    x, groups = op.tensor, op.args["groups"]
    group, within = divide(x.axes[1], [groups, x.shape[1] // groups])
    op.setting("groups", group)
    return Labels([x.axes[0], multiply([within, group]), *x.axes[2:]])


@rule("constant_pad_nd")
def pad(op: Operation) -> Labels:
    """New entries before and after the old ones."""
    x = op.tensor
    pads = list(op.args["pad"])
    axes = list(x.axes)
    for back in range(len(pads) // 2):
        before, after = pads[2 * back : 2 * back + 2]
        own = len(axes) - 1 - back
        if before < 0 or after < 0:
            op.freeze([axes[own]], "entries are cut off")
            axes[own] = op.fixed([op.shape[own]], "entries are cut off")[0]
        elif before or after:
            ends = [op.fixed([size], "entries are added")[0] if size else [] for size in pads]
            axes[own] = [*ends[2 * back], *axes[own], *ends[2 * back + 1]]
    return Labels(axes)
