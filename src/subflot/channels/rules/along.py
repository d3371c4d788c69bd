"""Operations along an axis: reductions, and those to which its order matters."""

from collections.abc import Sequence

from subflot.channels.axes import Axis, unify
from subflot.channels.operation import Labels, Operation, Result, rule
from subflot.channels.rules.elementwise import pointwise


@rule(
    *("mean", "sum", "prod", "amax", "amin", "var", "std", "logsumexp", "any", "all", "norm"),
    *("linalg_vector_norm", "nansum", "nanmean", "count_nonzero", "var_mean", "std_mean"),
    *("aminmax",),
)
def reduce(op: Operation) -> Result:
    """The order along what is reduced does not matter."""
    return [_reduced(op, shape) for shape in op.shapes]


def _reduced(op: Operation, shape: Sequence[int]) -> Labels:
    x, gone = op.tensor, op.dims()
    keeps = len(shape) == len(x)
    axes: list[Axis] = [[()] if axis in gone else own for axis, own in enumerate(x.axes)]
    return Labels([own for axis, own in enumerate(axes) if keeps or axis not in gone])


@rule("max", "min")
def extreme(op: Operation) -> Result:
    """The value depends on no order, where it was found does."""
    if op.get("other") is not None:
        return pointwise(op)
    value = _reduced(op, op.shape)
    if len(op.shapes) == 1:
        return value
    place = _reduced(op, op.shape)
    place.positions = [op.tensor.axes[axis] for axis in op.dims()]
    return [value, place]


@rule(
    *("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "flip"),
    *("roll", "_fft_c2c", "_fft_r2c", "_fft_c2r", "kthvalue", "median", "nanmedian", "mode"),
    *("argmax", "argmin"),
)
def ordered(op: Operation) -> Result:
    """The order along some axes matters; the others pass."""
    x, dims = op.tensor, _ordered_dims(op)
    op.freeze([x.axes[dim] for dim in dims], "the order along this axis matters")
    results = []
    for shape in op.shapes:
        keeps = len(shape) == len(x)
        kept = [axis for axis in range(len(x)) if keeps or axis not in dims]
        fixed = op.fixed(shape, "the order along this axis matters")
        axes = [fixed[place] if axis in dims else x.axes[axis] for place, axis in enumerate(kept)]
        results.append(Labels(axes))
    return results


def _ordered_dims(op: Operation) -> set[int]:
    """The named axes; without a name it is the last one for what keeps the shape, else all."""
    if "dim" in op.args or "dims" in op.args or op.name in ("argmax", "argmin", "median", "roll"):
        return op.dims()
    return {len(op.tensor) - 1}


@rule("tril", "triu")
def triangle(op: Operation) -> Labels:
    """Rows and columns of a matrix are told apart by number."""
    x = op.tensor
    op.freeze(x.axes[-2:], "a triangle of a matrix")
    return Labels(list(x.axes))


@rule("_cdist_forward", "_euclidean_dist", "cdist")
def distances(op: Operation) -> Labels:
    """Distances between rows do not depend on the order of the columns."""
    left, right = (op.args[name] for name in ("x1", "x2"))
    unify(left.axes[-1], right.axes[-1])
    for one, other in zip(left.axes[:-2], right.axes[:-2], strict=False):
        unify(one, other)
    return Labels([*left.axes[:-1], right.axes[-2]])


@rule("view_as_complex", "view_as_real")
def complex_pairs(op: Operation) -> Labels:
    """Real and imaginary part are the last axis."""
    x = op.tensor
    if op.name == "view_as_complex":
        op.freeze(x.axes[-1:], "real and imaginary part")
        return Labels(list(x.axes[:-1]))
    return Labels([*x.axes, *op.fixed([2], "real and imaginary part")])
