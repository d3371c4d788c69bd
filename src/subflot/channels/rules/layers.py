"""Layers with weights: convolution, products, embeddings, normalisation, attention."""

from subflot.channels.axes import POSITIONS, Axis, fresh, length, multiply, unify
from subflot.channels.operation import Labels, Operation, Result, opaque, rule, unused, with_unused


@rule("convolution", "_convolution")
def convolution(op: Operation) -> Labels:
    """Channels in and out, each laid out as groups times channels of the group."""
    x, weight, bias = op.args["input"], op.args["weight"], op.get("bias")
    groups, transposed = op.args["groups"], op.args["transposed"]
    op.freeze(weight.axes[2:], POSITIONS)
    places = x.axes[2:]
    if not _is_pointwise(op):
        op.freeze(places, POSITIONS)
        places = op.fixed(op.shape[2:], POSITIONS)
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
    op.setting("groups", group, weight=weight)
    op.setting("in_channels", x.axes[1], weight=weight)
    op.setting("out_channels", out, weight=weight)
    return Labels([x.axes[0], out, *places])


def _is_pointwise(op: Operation) -> bool:
    """Whether each place is computed from itself alone, and none is left out."""
    kernel = op.args["weight"].shape[2:]
    strides, pads = list(op.args["stride"]), list(op.args["padding"])
    return all(size == 1 for size in (*kernel, *strides)) and not any(pads)


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
    return [first, *(unused(shape, op) for shape in op.shapes[1:])]


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
    op.setting("num_features", x.axes[1], weight=op.get("weight"))
    return with_unused(Labels(list(x.axes)), op)


@rule("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(op: Operation) -> Result:
    """Statistics over the last axes do not depend on their order."""
    x, rank = op.args["input"], len(op.args["normalized_shape"])
    for name in ("weight", "bias"):
        own = op.get(name)
        if own is not None:
            for axis, outer in zip(own.axes, x.axes[-rank:], strict=True):
                unify(axis, outer)
    op.setting("normalized_shape", *x.axes[-rank:], weight=op.get("weight"))
    return with_unused(Labels(list(x.axes)), op)


@rule("native_group_norm", "group_norm")
def group_norm(op: Operation) -> Result:
    """Channels are groups times channels of the group."""
    x = op.args["input"]
    groups: int = op.args["group"] if "group" in op.args else op.args["num_groups"]
    group = fresh(groups)
    unify(x.axes[1], multiply([group, fresh(x.shape[1] // groups)]))
    for name in ("weight", "bias"):
        own = op.get(name)
        if own is not None:
            unify(own.axes[0], x.axes[1])
    op.setting("num_groups", group, weight=op.get("weight"))
    op.setting("num_channels", x.axes[1], weight=op.get("weight"))
    return with_unused(Labels(list(x.axes)), op)


@rule("_weight_norm_interface")
def weight_norm(op: Operation) -> Result:
    """A weight given as direction and length."""
    direction, size = op.args["v"], op.args["g"]
    for one, other in zip(direction.axes, size.axes, strict=True):
        if length(other) > 1:
            unify(one, other)
    return [Labels(list(direction.axes), direction.origins), Labels(list(size.axes))]


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
    return with_unused(Labels([*query.axes[:-1], value.axes[-1]]), op)
