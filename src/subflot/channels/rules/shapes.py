"""Operations that rearrange, join and pick entries."""

import math
from collections.abc import Iterable, Sequence

from subflot.channels.axes import Axis, because, cut, divide, fresh, length, multiply, unify
from subflot.channels.flow import Origin
from subflot.channels.operation import Labels, Operation, Result, opaque, rule

NUMBERED = "entries are taken by number"


@rule("view", "_unsafe_view", "reshape", "_reshape_alias")
def view(op: Operation) -> Labels:
    """Flatten and unflatten, one run of axes with equal products at a time."""
    x = op.tensor
    if "dtype" in op.args or math.prod(op.shape) == 0:
        return opaque(op, "memory is read in another way")[0]
    axes: dict[int, Axis] = {}
    origins: dict[int, Origin | None] = {}
    old = [axis for axis, size in enumerate(x.shape) if size > 1]
    new = [axis for axis, size in enumerate(op.shape) if size > 1]
    while old and new:
        left, right = [old.pop(0)], [new.pop(0)]
        while (ours := _entries(x.shape, left)) != (theirs := _entries(op.shape, right)):
            if ours < theirs:
                left.append(old.pop(0))
            else:
                right.append(new.pop(0))
        flat = multiply([x.axes[axis] for axis in left]) if len(left) > 1 else x.axes[left[0]]
        parts = divide(flat, [op.shape[axis] for axis in right])
        axes.update(zip(right, parts, strict=True))
        if len(left) == len(right) == 1:
            origins[right[0]] = x.origin(left[0])
    rank = range(len(op.shape))
    return Labels(
        [axes.get(axis, [()]) for axis in rank],
        None if x.origins is None else [origins.get(axis) for axis in rank],
    )


@rule("as_strided")
def as_strided(op: Operation) -> Labels:
    """Memory read in another way, unless only axes of length one are concerned."""
    x, strides = op.tensor, list(op.args["stride"])
    moved = [axis for axis, size in enumerate(op.shape) if size > 1]
    same_shape = op.shape == x.shape and not op.args.get("storage_offset")
    if same_shape and all(strides[axis] == x.strides[axis] for axis in moved):
        return Labels(list(x.axes), x.origins, x.is_boolean)
    return opaque(op, "memory is read in another way")[0]


@rule("diagonal")
def diagonal(op: Operation) -> Labels:
    """Entries with equal numbers on two axes."""
    x = op.tensor
    pair = {op.dim("dim1", 0), op.dim("dim2", 1)}
    op.freeze([x.axes[axis] for axis in pair], NUMBERED)
    rest = [own for axis, own in enumerate(x.axes) if axis not in pair]
    return Labels([*rest, *op.fixed(op.shape[-1:], NUMBERED)])


def _entries(shape: Sequence[int], axes: Iterable[int]) -> int:
    return math.prod(shape[axis] for axis in axes)


def _reorder(x: Labels, order: Sequence[int]) -> Labels:
    origins = None if x.origins is None else [x.origins[axis] for axis in order]
    return Labels([x.axes[axis] for axis in order], origins, x.is_boolean)


@rule("t", "numpy_T")
def t(op: Operation) -> Labels:
    """Transpose of a matrix; a vector stays."""
    return _reorder(op.tensor, list(range(len(op.tensor)))[::-1])


@rule("transpose")
def transpose(op: Operation) -> Labels:
    """Two axes change places."""
    order = list(range(len(op.tensor)))
    one, other = op.dim("dim0"), op.dim("dim1")
    order[one], order[other] = other, one
    return _reorder(op.tensor, order)


@rule("permute")
def permute(op: Operation) -> Labels:
    """Axes in a new order."""
    return _reorder(op.tensor, [dim % len(op.tensor) for dim in op.args["dims"]])


@rule("squeeze", "unsqueeze")
def squeeze(op: Operation) -> Labels:
    """Axes of length one come and go; the others keep their order."""
    x = op.tensor
    left = iter([axis for axis, size in enumerate(x.shape) if size > 1])
    order = [None if size == 1 else next(left) for size in op.shape]
    return Labels(
        [[()] if axis is None else x.axes[axis] for axis in order],
        None
        if x.origins is None
        else [None if axis is None else x.origins[axis] for axis in order],
    )


@rule("expand")
def expand(op: Operation) -> Labels:
    """What is spread is the same everywhere, so any order will do."""
    x = op.tensor
    return Labels([_spread(x, op.shape, axis) for axis in range(len(op.shape))])


def _spread(x: Labels, shape: Sequence[int], axis: int) -> Axis:
    own = axis - len(shape) + len(x)
    return x.axes[own] if own >= 0 and x.shape[own] == shape[axis] else fresh(shape[axis])


@rule("repeat")
def repeat(op: Operation) -> Labels:
    """Whole copies one after the other."""
    x, lead = op.tensor, len(op.shape) - len(op.tensor)
    axes = []
    for axis, size in enumerate(op.shape):
        own: Axis = x.axes[axis - lead] if axis >= lead else [()]
        copies = size // length(own)
        spread = fresh(copies, because("copies") if length(own) > 1 else None)
        axes.append(multiply([spread, own]))
    return Labels(axes)


@rule("cat")
def cat(op: Operation) -> Labels:
    """One after the other along an axis, alike along the rest."""
    rank = len(op.shape)
    parts = [part for part in op.args["tensors"] if len(part) == rank]
    dim = int(op.args.get("dim", 0)) % rank
    for axis in range(rank):
        if axis != dim:
            for part in parts[1:]:
                unify(part.axes[axis], parts[0].axes[axis])
    axes = list(parts[0].axes)
    axes[dim] = [term for part in parts for term in part.axes[dim] if length([term])]
    return Labels(axes)


@rule("stack")
def stack(op: Operation) -> Labels:
    """Alike along every axis, with a new one that tells them apart."""
    parts = op.args["tensors"]
    dim = int(op.args.get("dim", 0)) % len(op.shape)
    for part in parts[1:]:
        for one, other in zip(part.axes, parts[0].axes, strict=True):
            unify(one, other)
    new = op.fixed([len(parts)], "tensors are stacked")
    return Labels([*parts[0].axes[:dim], *new, *parts[0].axes[dim:]])


@rule(
    "split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"
)
def split(op: Operation) -> Result:
    """Consecutive pieces."""
    x, dim = op.tensor, op.dim()
    pieces = cut(x.axes[dim], [shape[dim] for shape in op.shapes])
    return [_with_axis(x, dim, piece) for piece in pieces]


def _with_axis(x: Labels, dim: int, axis: Axis) -> Labels:
    return Labels([*x.axes[:dim], axis, *x.axes[dim + 1 :]], x.origins, x.is_boolean)


@rule("slice")
def take_slice(op: Operation) -> Labels:
    """A stretch of one axis."""
    x, dim = op.tensor, op.dim()
    size, taken = x.shape[dim], op.shape[dim]
    if taken == size:
        return _with_axis(x, dim, x.axes[dim])
    if op.args.get("step", 1) != 1:
        op.freeze([x.axes[dim]], "every so many entries are taken")
        return _with_axis(x, dim, op.fixed([taken], "every so many entries are taken")[0])
    start = op.args.get("start") or 0
    start = min(max(start + size if start < 0 else start, 0), size)
    _, middle, _ = cut(x.axes[dim], [start, taken, size - start - taken])
    return _with_axis(x, dim, middle)


@rule("select", "unbind")
def select(op: Operation) -> Result:
    """Entries by their number."""
    x, dim = op.tensor, op.dim()
    op.freeze([x.axes[dim]], NUMBERED)
    origins = None if x.origins is None else [*x.origins[:dim], *x.origins[dim + 1 :]]
    return [Labels([*x.axes[:dim], *x.axes[dim + 1 :]], origins) for _ in op.shapes]


@rule("index_select")
def index_select(op: Operation) -> Labels:
    """Entries by their numbers."""
    x, dim = op.tensor, op.dim()
    op.freeze([x.axes[dim]], NUMBERED)
    return _with_axis(x, dim, op.fixed([op.shape[dim]], NUMBERED)[0])


@rule("index")
def index(op: Operation) -> Labels:
    """Entries by arrays of numbers or by a mask; the axes that are not indexed pass."""
    x = op.tensor
    indices = list(op.args["indices"])
    given = [axis for axis, one in enumerate(indices) if one is not None]
    if any(indices[axis].is_boolean for axis in given) and len(given) > 1:
        return opaque(op, "several masks")[0]
    width = len(indices[given[0]]) if indices[given[0]].is_boolean else 1
    taken = set(range(given[0], given[0] + width)) if width > 1 else set(given)
    op.freeze([x.axes[axis] for axis in taken], NUMBERED)
    op.freeze([axis for one in given for axis in indices[one].axes], NUMBERED)
    rest = [x.axes[axis] for axis in range(len(x)) if axis not in taken]
    adjacent = max(taken) - min(taken) + 1 == len(taken)
    lead = min(taken) if adjacent else 0
    new = len(op.shape) - len(rest)
    fixed = op.fixed(op.shape[lead : lead + new], NUMBERED)
    return Labels([*rest[:lead], *fixed, *rest[lead:]])


@rule("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(op: Operation) -> Labels:
    """Values written where `index` would read."""
    x, values = op.tensor, op.args["values"]
    given = [axis for axis, one in enumerate(op.args["indices"]) if one is not None]
    width = len(op.args["indices"][given[0]]) if op.args["indices"][given[0]].is_boolean else 1
    taken = set(range(given[0], given[0] + width)) if width > 1 else set(given)
    op.freeze([x.axes[axis] for axis in taken], NUMBERED)
    op.freeze([a for one in given for a in op.args["indices"][one].axes], NUMBERED)
    behind = len(x) - max(taken) - 1  # Axes after the indexed ones line up with the values'.
    for back, axis in enumerate(reversed(values.axes), start=1):
        if back <= behind and length(axis) > 1:
            unify(axis, x.axes[-back])
        else:
            op.freeze([axis], NUMBERED)
    if any(axis not in taken for axis in range(max(taken))) and len(values) > behind:
        op.freeze([x.axes[axis] for axis in range(max(taken))], NUMBERED)
    return Labels(list(x.axes))


@rule("index_fill")
def index_fill(op: Operation) -> Labels:
    """One value at numbered places."""
    op.freeze([op.tensor.axes[op.dim()]], NUMBERED)
    return Labels(list(op.tensor.axes))


@rule("index_add", "index_copy", "index_reduce")
def index_add(op: Operation) -> Labels:
    """Rows written at numbered places."""
    x, source, dim = op.tensor, op.args["source"], op.dim()
    op.freeze([x.axes[dim], source.axes[dim]], NUMBERED)
    for axis in range(len(x)):
        if axis != dim:
            unify(x.axes[axis], source.axes[axis])
    return Labels(list(x.axes))


@rule("scatter", "scatter_add", "scatter_reduce")
def scatter(op: Operation) -> Labels:
    """Entries written at numbered places, which differ along the other axes."""
    x, numbers, dim = op.tensor, op.args["index"], op.dim()
    written = [numbers] if op.get("src") is None else [numbers, op.args["src"]]
    op.freeze([x.axes[dim], *(one.axes[dim] for one in written)], NUMBERED)
    for axis in range(len(x)):
        for one in written if axis != dim else ():
            if length(one.axes[axis]) == length(x.axes[axis]):
                unify(x.axes[axis], one.axes[axis])
            else:
                op.freeze([x.axes[axis], one.axes[axis]], "only a part is written")
    return Labels(list(x.axes))


@rule("gather")
def gather(op: Operation) -> Labels:
    """Entries by their numbers, which differ along the other axes."""
    x, numbers, dim = op.tensor, op.args["index"], op.dim()
    op.freeze([x.axes[dim], numbers.axes[dim]], NUMBERED)
    for axis in range(len(x)):
        if axis != dim and length(numbers.axes[axis]) == length(x.axes[axis]):
            unify(x.axes[axis], numbers.axes[axis])
        elif axis != dim:
            op.freeze([x.axes[axis], numbers.axes[axis]], "only a part is gathered")
    return Labels(list(numbers.axes))
