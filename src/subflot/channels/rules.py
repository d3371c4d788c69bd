"""What each tensor operation does to the axes of its inputs: one small rule per ATen operation.

A rule gets an `Operation` whose tensors are replaced by `Labels`, states which axes are equal or
must stay as they are, and returns the labels of what comes out. An operation without a rule
freezes everything it touches, so a missing rule costs freedom and never correctness.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from subflot.channels.axes import (
    POSITIONS,
    Axis,
    Reason,
    cut,
    divide,
    freeze,
    fresh,
    length,
    multiply,
    unify,
)

Origin = tuple[str, int]
"""Name and axis of a tensor in the state dict."""


@dataclass
class Labels:
    """The axes of one tensor while the model runs."""

    axes: list[Axis]
    origins: list[Origin | None] | None = None
    """For what is computed from weights alone: where in the state dict each axis comes from."""
    is_boolean: bool = False
    positions: list[Axis] = field(default_factory=list)
    """Axes whose order the values speak of (indices of a maximum): frozen once they are used."""
    is_used: bool = False

    @property
    def shape(self) -> list[int]:
        """Length of every axis."""
        return [length(axis) for axis in self.axes]

    def __len__(self) -> int:
        return len(self.axes)

    def origin(self, axis: int) -> Origin | None:
        """Where an axis comes from, if this is a weight."""
        return None if self.origins is None else self.origins[axis]


@dataclass
class Operation:
    """One call of an ATen operation, with labels in the place of tensors."""

    name: str
    args: dict[str, Any]
    shapes: list[list[int]]
    """Shape of every tensor that comes out."""
    module: str
    is_training: bool
    is_pointwise: bool
    is_random: bool
    roles: dict[Origin, str]
    """Grows: whether an axis of a weight faces what goes in or what comes out."""
    attributes: dict[tuple[str, str], list[Axis]]
    """Grows: settings of modules that count channels, as (module, attribute)."""

    @property
    def shape(self) -> list[int]:
        """Shape of the first tensor that comes out."""
        return self.shapes[0]

    @property
    def tensor(self) -> Labels:
        """The main input."""
        found = self.args.get("self", self.args.get("input"))
        assert isinstance(found, Labels)
        return found

    def inputs(self) -> list[Labels]:
        """All tensors that go in."""
        return labels_in(self.args)

    def get(self, name: str) -> Labels | None:
        """A tensor argument that may be absent."""
        found = self.args.get(name)
        return found if isinstance(found, Labels) else None

    def dim(self, name: str = "dim", default: int = 0) -> int:
        """An argument that names an axis, counted from the front."""
        return int(self.args.get(name, default)) % max(1, len(self.tensor))

    def dims(self) -> set[int]:
        """The axes a reduction runs over: all of them if none is named."""
        rank = len(self.tensor)
        named = self.args.get("dim", self.args.get("dims"))
        if named is None or named == []:
            return set(range(rank))
        return {int(dim) % max(1, rank) for dim in ([named] if isinstance(named, int) else named)}

    def reason(self, text: str) -> Reason:
        """Say why an axis cannot change, with this operation and module."""
        return Reason(text, self.name, self.module)

    def freeze(self, axes: Iterable[Axis], text: str) -> None:
        """Forbid any change along these axes."""
        for axis in axes:
            freeze(axis, self.reason(text))

    def fixed(self, shape: Iterable[int], text: str) -> list[Axis]:
        """Make new axes that cannot change."""
        return [fresh(size, self.reason(text)) for size in shape]

    def role(self, weight: Labels, axis: int, role: str) -> None:
        """Note which way an axis of a weight faces; the first use decides."""
        origin = weight.origin(axis)
        if origin is not None:
            self.roles.setdefault(origin, role)

    def setting(self, attribute: str, *axes: Axis) -> None:
        """Note that a setting of the running module counts the entries of these axes."""
        self.attributes.setdefault((self.module, attribute), list(axes))


Result = Labels | Sequence[Labels]
Rule = Callable[[Operation], Result]
RULES: dict[str, Rule] = {}


def labels_in(tree: Any) -> list[Labels]:
    """All labels in nested arguments."""
    leaves = tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Labels))
    return [leaf for leaf in leaves if isinstance(leaf, Labels)]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations by name; a trailing underscore (in place) needs no name."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def apply(operation: Operation) -> list[Labels]:
    """Label what an operation returns, one entry per tensor."""
    for used in operation.inputs():
        operation.freeze(used.positions, "the place of an extreme value is asked for")
    found = find_rule(operation)
    if found is None:
        return opaque(operation, "no rule for this operation")
    result = found(operation)
    labels = [result] if isinstance(result, Labels) else list(result)
    if [label.shape for label in labels] != operation.shapes:
        return opaque(operation, "its result has a shape that its rule does not expect")
    return labels


def find_rule(operation: Operation) -> Rule | None:
    """The rule of an operation: by its name, by its family, or by what torch says of it."""
    plain = operation.name.rstrip("_")
    if plain in RULES:
        return RULES[plain]
    if SPATIAL.match(plain):
        return spatial
    if operation.is_pointwise:
        return pointwise
    if operation.is_random:
        return random
    return None


def opaque(operation: Operation, text: str) -> list[Labels]:
    """Freeze everything an operation touches."""
    for used in operation.inputs():
        operation.freeze(used.axes, text)
    return [Labels(operation.fixed(shape, text)) for shape in operation.shapes]


# --- element by element -------------------------------------------------------------------------


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
        Labels(list(x.axes), x.origins, x.is_boolean) if shape == x.shape else _unused(shape, op)
        for shape in op.shapes
    ]


def _unused(shape: Iterable[int], op: Operation) -> Labels:
    """Label an extra output that forward passes do not look at."""
    return Labels(op.fixed(shape, "an inner result is used"))


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


def random(op: Operation) -> Result:
    """Noise: in training any order is as good, in evaluation each position has its own number."""
    if op.is_training:
        return [Labels([fresh(size) for size in shape]) for shape in op.shapes]
    return opaque(op, "random numbers differ from position to position")


# --- layers with weights ------------------------------------------------------------------------


@rule("convolution", "_convolution")
def convolution(op: Operation) -> Labels:
    """Channels in and out, each laid out as groups times channels of the group."""
    x, weight, bias = op.args["input"], op.args["weight"], op.get("bias")
    groups, transposed = op.args["groups"], op.args["transposed"]
    op.freeze([*x.axes[2:], *weight.axes[2:]], POSITIONS)
    group = fresh(groups)
    if transposed:  # The weight is (groups x in, out of a group, ...).
        within = fresh(weight.shape[0] // groups)
        unify(weight.axes[0], multiply([group, within]))
        unify(x.axes[1], weight.axes[0])
        out = multiply([group, weight.axes[1]])
    else:  # The weight is (groups x out, in of a group, ...).
        unify(x.axes[1], multiply([group, weight.axes[1]]))
        unify(weight.axes[0], multiply([group, fresh(weight.shape[0] // groups)]))
        out = weight.axes[0]
    op.role(weight, 0, "in" if transposed else "out")
    op.role(weight, 1, "out" if transposed else "in")
    if bias is not None:
        unify(bias.axes[0], out)
        op.role(bias, 0, "out")
    op.setting("groups", group)
    op.setting("in_channels", x.axes[1])
    op.setting("out_channels", out)
    return Labels([x.axes[0], out, *op.fixed(op.shape[2:], POSITIONS)])


@rule("linear")
def linear(op: Operation) -> Labels:
    """The last axis goes in, the first axis of the weight comes out."""
    x, weight, bias = op.args["input"], op.args["weight"], op.get("bias")
    unify(x.axes[-1], weight.axes[1])
    op.role(weight, 0, "out")
    op.role(weight, 1, "in")
    if bias is not None:
        unify(bias.axes[0], weight.axes[0])
        op.role(bias, 0, "out")
    return Labels([*x.axes[:-1], weight.axes[0]])


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot", "addmm", "addmv", "baddbmm", "_addmm_activation")
def product(op: Operation) -> Labels:
    """Matrix product, with or without a term added to it."""
    left, right = _operands(op)
    unify(left.axes[-1], right.axes[-2] if len(right) > 1 else right.axes[0])
    op.role(left, -1, "in")
    op.role(right, -2 if len(right) > 1 else 0, "in")
    if len(left) > 1:
        op.role(left, -2, "out")
    if len(right) > 1:
        op.role(right, -1, "out")
    shape = op.shape
    kept = [axes[-2] if side == 0 else axes[-1] for side, axes in _outer(left, right)]
    result = Labels([*(fresh(size) for size in shape[: len(shape) - len(kept)]), *kept])
    for label in (left, right):  # Batches of matrices.
        for back, axis in enumerate(reversed(label.axes[:-2]), start=len(kept) + 1):
            if length(axis) > 1:
                unify(axis, result.axes[-back])
    added = op.get("self")
    if added is not None and added is not left:
        for back, axis in enumerate(reversed(added.axes), start=1):
            if length(axis) > 1:
                unify(axis, result.axes[-back])
        if len(added) == 1:
            op.role(added, 0, "out")
    return result


def _operands(op: Operation) -> tuple[Labels, Labels]:
    names = ("mat1", "mat2", "batch1", "batch2", "mat", "vec", "other", "tensor")
    found = [op.args[name] for name in names if isinstance(op.args.get(name), Labels)]
    left, right = found if len(found) == 2 else [op.args["self"], *found]
    return left, right


def _outer(left: Labels, right: Labels) -> list[tuple[int, list[Axis]]]:
    """The operands that keep an axis of their own beside the one that is summed over."""
    return [(side, label.axes) for side, label in enumerate((left, right)) if len(label) > 1]


@rule("_trilinear")
def trilinear(op: Operation) -> Labels:
    """nn.Bilinear: two inputs and a weight of (out, in, in)."""
    one, weight, other = op.args["i1"], op.args["i2"], op.args["i3"]
    if len(weight) != 3 or len(one) != 2 or len(other) != 2 or len(op.shape) != 2:
        return opaque(op, "only the product of nn.Bilinear is known")[0]
    unify(one.axes[1], weight.axes[1])
    unify(other.axes[1], weight.axes[2])
    for axis, role in enumerate(("out", "in", "in")):
        op.role(weight, axis, role)
    return Labels([one.axes[0], weight.axes[0]])


@rule("embedding")
def embedding(op: Operation) -> Labels:
    """Rows are looked up by number; the other axis is the channels."""
    weight = op.args["weight"]
    op.freeze([weight.axes[0]], "entries are looked up by number")
    op.role(weight, 1, "out")
    return Labels([*op.args["indices"].axes, weight.axes[1]])


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(op: Operation) -> Result:
    """As an embedding, with the rows of a bag merged."""
    weight = op.args["weight"]
    op.freeze([weight.axes[0]], "entries are looked up by number")
    op.role(weight, 1, "out")
    first = Labels([*op.fixed(op.shape[:1], "bags"), weight.axes[1]])
    return [first, *(_unused(shape, op) for shape in op.shapes[1:])]


# --- normalisation ------------------------------------------------------------------------------


def _first(labels: Labels, op: Operation) -> Result:
    return [labels, *(_unused(shape, op) for shape in op.shapes[1:])]


@rule(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
    *("_native_batch_norm_legit_functional", "_batch_norm_with_update", "cudnn_batch_norm"),
    *("batch_norm", "miopen_batch_norm", "_batch_norm_no_update"),
)
def batch_norm(op: Operation) -> Result:
    """Everything is per channel."""
    x = op.args["input"]
    for name in ("weight", "bias", "running_mean", "running_var"):
        own = op.get(name)
        if own is not None:
            unify(own.axes[0], x.axes[1])
    op.setting("num_features", x.axes[1])
    return _first(Labels(list(x.axes)), op)


@rule("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(op: Operation) -> Result:
    """Statistics over the last axes do not depend on their order."""
    x, rank = op.args["input"], len(op.args["normalized_shape"])
    for name in ("weight", "bias"):
        own = op.get(name)
        if own is not None:
            for axis, outer in zip(own.axes, x.axes[-rank:], strict=True):
                unify(axis, outer)
    op.setting("normalized_shape", *x.axes[-rank:])
    return _first(Labels(list(x.axes)), op)


@rule("native_group_norm", "group_norm")
def group_norm(op: Operation) -> Result:
    """Channels are groups times channels of the group."""
    x = op.args["input"]
    groups = op.args.get("group", op.args.get("num_groups"))
    group = fresh(groups)
    unify(x.axes[1], multiply([group, fresh(x.shape[1] // groups)]))
    for name in ("weight", "bias"):
        own = op.get(name)
        if own is not None:
            unify(own.axes[0], x.axes[1])
    op.setting("num_groups", group)
    op.setting("num_channels", x.axes[1])
    return _first(Labels(list(x.axes)), op)


@rule("_weight_norm_interface")
def weight_norm(op: Operation) -> Result:
    """A weight given as direction and length."""
    direction, size = op.args["v"], op.args["g"]
    for one, other in zip(direction.axes, size.axes, strict=True):
        if length(other) > 1:
            unify(one, other)
    return [Labels(list(direction.axes), direction.origins), Labels(list(size.axes))]


# --- attention ----------------------------------------------------------------------------------


@rule(
    *("scaled_dot_product_attention", "_scaled_dot_product_attention_math"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention"),
    *("_scaled_dot_product_flash_attention", "_scaled_dot_product_fused_attention_overrideable"),
    *("_scaled_dot_product_cudnn_attention",),
)
def attention(op: Operation) -> Result:
    """Queries meet keys over the head dimension; heads and batches go along."""
    query, key, value = op.args["query"], op.args["key"], op.args["value"]
    unify(query.axes[-1], key.axes[-1])
    unify(key.axes[-2], value.axes[-2])
    for left, right in ((query, key), (key, value)):
        for one, other in zip(left.axes[:-2], right.axes[:-2], strict=True):
            if length(one) > 1 and length(other) > 1:
                unify(one, other)
    mask = op.get("attn_mask") or op.get("attn_bias")
    if mask is not None:
        op.freeze(mask.axes, "an attention mask")
        op.freeze([*query.axes[:-1], key.axes[-2]], "an attention mask")
    return _first(Labels([*query.axes[:-1], value.axes[-1]]), op)


# --- positions ----------------------------------------------------------------------------------

SPATIAL = re.compile(
    r"_?(adaptive_)?(fractional_)?(max_pool|max_unpool|avg_pool|lp_pool|upsample\w*|"
    r"reflection_pad|replication_pad|grid_sampler)_?(?P<rank>[123])d(_\w+)?$"
)


def spatial(op: Operation) -> Result:
    """Pooling, resizing and the like: the last axes are positions, the others pass."""
    found = SPATIAL.match(op.name.rstrip("_"))
    assert found is not None
    x, rank = op.tensor, int(found["rank"])
    lead = len(x) - rank
    op.freeze(x.axes[lead:], POSITIONS)
    return [Labels([*x.axes[:lead], *op.fixed(shape[lead:], POSITIONS)]) for shape in op.shapes]


@rule("im2col")
def im2col(op: Operation) -> Labels:
    """Windows: channels times positions in the window."""
    x = op.tensor
    op.freeze(x.axes[-2:], POSITIONS)
    channels, window = x.axes[-3], op.shape[-2] // x.shape[-3]
    inside = fresh(window, op.reason(POSITIONS))
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
    grid = fresh(op.shape[-3] // x.shape[-3], op.reason(POSITIONS))
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


# --- shapes -------------------------------------------------------------------------------------


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
        own = x.axes[axis - lead] if axis >= lead else [()]
        copies = size // length(own)
        spread = fresh(copies, op.reason("copies") if length(own) > 1 else None)
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


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk")
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
    op.freeze([x.axes[dim]], "entries are taken by number")
    origins = None if x.origins is None else [*x.origins[:dim], *x.origins[dim + 1 :]]
    return [Labels([*x.axes[:dim], *x.axes[dim + 1 :]], origins) for _ in op.shapes]


@rule("index_select")
def index_select(op: Operation) -> Labels:
    """Entries by their numbers."""
    x, dim = op.tensor, op.dim()
    op.freeze([x.axes[dim]], "entries are taken by number")
    return _with_axis(x, dim, op.fixed([op.shape[dim]], "entries are taken by number")[0])


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
    op.freeze([x.axes[axis] for axis in taken], "entries are taken by number")
    op.freeze([axis for one in given for axis in indices[one].axes], "entries are taken by number")
    rest = [x.axes[axis] for axis in range(len(x)) if axis not in taken]
    adjacent = max(taken) - min(taken) + 1 == len(taken)
    lead = min(taken) if adjacent else 0
    new = len(op.shape) - len(rest)
    fixed = op.fixed(op.shape[lead : lead + new], "entries are taken by number")
    return Labels([*rest[:lead], *fixed, *rest[lead:]])


@rule("gather")
def gather(op: Operation) -> Labels:
    """Entries by their numbers, which differ along the other axes."""
    x, numbers, dim = op.tensor, op.args["index"], op.dim()
    op.freeze([x.axes[dim], numbers.axes[dim]], "entries are taken by number")
    for axis in range(len(x)):
        if axis != dim and length(numbers.axes[axis]) == length(x.axes[axis]):
            unify(x.axes[axis], numbers.axes[axis])
        elif axis != dim:
            op.freeze([x.axes[axis], numbers.axes[axis]], "only a part is gathered")
    return Labels(list(numbers.axes))


# --- along an axis ------------------------------------------------------------------------------


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
    axes = [[()] if axis in gone else own for axis, own in enumerate(x.axes)]
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
        axes = [
            fixed[place] if axis in dims else x.axes[axis] for place, axis in enumerate(kept)
        ]
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


def describe(function: torch._ops.OpOverload) -> tuple[str, bool, bool]:
    """Name of an operation, whether it works element by element, whether it draws numbers."""
    name: str = function.overloadpacket.__name__
    tags = function.tags
    return name, torch.Tag.pointwise in tags, torch.Tag.nondeterministic_seeded in tags
