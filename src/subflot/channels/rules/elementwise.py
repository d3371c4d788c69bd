"""Operations that treat every entry alike, and constants."""

from collections.abc import Sequence

from subflot.channels.axes import cut, fresh, length, unify
from subflot.channels.flow import Origin
from subflot.channels.operation import (
    Labels,
    Operation,
    Result,
    family,
    opaque,
    rule,
    unused,
)


@family(lambda op: op.is_pointwise)
@rule(
    *("copy", "hardswish", "hardsigmoid", "_prelu_kernel", "masked_fill", "where", "addcmul"),
    *("fill", "zero", "rrelu_with_noise"),
)
def pointwise(op: Operation) -> Labels:
    """Tie axes of equal length, counted from the back; a length of one is spread."""
    result = Labels([fresh(size) for size in op.shape])
    used = op.inputs()
    for label in used:
        for back, axis in enumerate(reversed(label.axes), start=1):
            if length(axis) > 1:
                unify(axis, result.axes[-back])
    if used and all(label.origins is not None for label in used):
        result.origins = [
            next((o for label in used if (o := _from_back(label, op.shape, axis))), None)
            for axis in range(len(op.shape))
        ]
    return result


def _from_back(label: Labels, shape: Sequence[int], axis: int) -> Origin | None:
    own = axis - len(shape) + len(label)
    return label.origin(own) if own >= 0 and label.shape[own] == shape[axis] else None


@rule(
    *("clone", "contiguous", "detach", "alias", "_to_copy", "lift_fresh", "lift_fresh_copy"),
    *("_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "native_dropout"),
    *("dropout", "log_sigmoid_forward", "embedding_renorm", "_conj", "conj", "positive"),
)
def same(op: Operation) -> Result:
    """Every output has the axes of the input."""
    x = op.tensor
    return [
        Labels(list(x.axes), x.origins, x.is_boolean) if shape == x.shape else unused(shape, op)
        for shape in op.shapes
    ]


@rule("glu")
def glu(op: Operation) -> Labels:
    """One half gates the other."""
    x, dim = op.tensor, op.dim(default=-1)
    half = op.shape[dim]
    value, gate = cut(x.axes[dim], [half, half])
    unify(value, gate)
    return Labels([*x.axes[:dim], value, *x.axes[dim + 1 :]])


@rule(
    *("zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like"),
    *("new_zeros", "new_ones", "new_full", "new_empty", "scalar_tensor", "empty_strided"),
    *("new_empty_strided",),
)
def constant(op: Operation) -> Labels:
    """The same value everywhere: any order will do."""
    return Labels([fresh(size) for size in op.shape])


@rule("arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices", "randperm")
def numbered(op: Operation) -> Labels:
    """A value of its own for each position."""
    return Labels(op.fixed(op.shape, "each entry has a number of its own"))


@rule("mse_loss", "smooth_l1_loss", "huber_loss")
def loss(op: Operation) -> Labels:
    """A distance, entry by entry, summed up or not."""
    x, target = op.args["self"], op.args["target"]
    for one, other in zip(x.axes, target.axes, strict=True):
        unify(one, other)
    return Labels(list(x.axes) if op.shape else [])


@family(lambda op: op.is_random)
def random(op: Operation) -> Result:
    """Noise: in training any order is as good, in evaluation each position has its own number."""
    if op.is_training:
        return [Labels([fresh(size) for size in shape]) for shape in op.shapes]
    return opaque(op, "random numbers differ from position to position")
