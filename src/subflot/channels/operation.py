"""One operation of a forward pass, and the registry of what each does to axes.

A rule gets an `Operation` whose tensors are replaced by `Labels`, states which axes are equal or
must stay as they are, and returns the labels of what comes out. An operation without a rule
freezes everything it touches, so a missing rule costs freedom and never correctness.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from subflot.channels.axes import RUNNING, Axis, because, freeze, fresh, length
from subflot.channels.flow import Flow, Origin, merged


@dataclass
class Labels:
    """The axes of one tensor while the model runs."""

    axes: list[Axis]
    origins: list[Origin | None] | None = None
    """For what is computed from weights alone: where in the state dict each axis comes from."""
    is_boolean: bool = False
    strides: tuple[int, ...] = ()
    positions: list[Axis] = field(default_factory=list)
    """Axes whose order the values speak of (indices of a maximum): frozen once they are used."""
    is_used: bool = False
    flow: Flow | None = None
    """Where the channels of an activation come from."""

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
    flows: list[Flow]
    """Grows: all flows, in the order in which they arise."""
    flow_of: dict[Origin, Flow]
    """Grows: the flow that meets an axis of a weight."""
    makers: list[Origin] = field(default_factory=list)
    """Grows: axes of weights that face what comes out of this operation."""

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

    def freeze(self, axes: Iterable[Axis], text: str) -> None:
        """Forbid any change along these axes."""
        for axis in axes:
            freeze(axis, because(text))

    def fixed(self, shape: Iterable[int], text: str) -> list[Axis]:
        """Make new axes that cannot change."""
        return [fresh(size, because(text)) for size in shape]

    def role(self, weight: Labels, axis: int, role: str) -> None:
        """Note which way an axis of a weight faces; the first use decides."""
        origin = weight.origin(axis)
        if origin is not None:
            self.roles.setdefault(origin, role)
            self.makers += [origin] if role == "out" else []

    def setting(self, attribute: str, *axes: Axis, weight: Labels | None = None) -> None:
        """Note what a setting of the running module, or of the weight's own, counts."""
        self.attributes.setdefault((self.module, attribute), list(axes))
        origin = weight.origin(0) if weight is not None and len(weight) else None
        if origin is not None:
            owner = origin[0].rpartition(".")[0]
            self.attributes.setdefault((owner, attribute), list(axes))


Result = Labels | Sequence[Labels]
Rule = Callable[[Operation], Result]
RULES: dict[str, Rule] = {}
"""Rules of operations by name."""
FAMILIES: list[tuple[Callable[[Operation], bool], Rule]] = []
"""Rules of whole families, asked in order when no rule has the name."""


def labels_in(value: Any) -> list[Labels]:
    """All labels in the arguments of an operation, which are nested in lists at most."""
    if isinstance(value, Labels):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [label for inner in value for label in labels_in(inner)]


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operations by name; a trailing underscore (in place) needs no name."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def family(applies: Callable[[Operation], bool]) -> Callable[[Rule], Rule]:
    """Register a rule for all operations of a kind that have no rule by name."""

    def register(function: Rule) -> Rule:
        FAMILIES.append((applies, function))
        return function

    return register


def apply(operation: Operation, custom: str = "") -> list[Labels]:
    """Label what an operation returns, one entry per tensor.

    Args:
        operation: the call.
        custom: name of the user's autograd function that it is part of, if it is.
    """
    token = RUNNING.set((custom or operation.name, operation.module))
    try:
        text = "a custom autograd function"
        labels = opaque(operation, text) if custom else _apply(operation)
    finally:
        RUNNING.reset(token)
    _follow(operation, labels)
    return labels


def _follow(operation: Operation, results: Iterable[Labels]) -> None:
    """Note from where the channels come that the weights of an operation meet and pass on."""
    activations = [used for used in operation.inputs() if used.origins is None]
    entering = merged(used.flow for used in activations)
    leaving = entering
    if operation.makers:
        axes = [axis for used in activations for axis in used.axes]
        leaving = Flow(() if entering is None else (entering,), operation.makers, axes)
    operation.flows += [flow for flow in (entering, leaving) if flow is not None]
    met = [origin for used in operation.inputs() for origin in used.origins or () if origin]
    for flow, origins in ((leaving, operation.makers), (entering, met)):
        if flow is not None:
            for origin in origins:
                operation.flow_of.setdefault(origin, flow)
    for result in results:
        if result.origins is None:
            result.flow = leaving


def _apply(operation: Operation) -> list[Labels]:
    for used in operation.inputs():
        operation.freeze(used.positions, "the place of an extreme value is asked for")
    found = find_rule(operation)
    if found is None:
        return opaque(operation, "no rule for this operation")
    try:
        result = found(operation)
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return opaque(operation, f"called in a way that its rule does not know ({error!r})")
    labels = [result] if isinstance(result, Labels) else list(result)
    if [label.shape for label in labels] != operation.shapes:
        return opaque(operation, "its result has a shape that its rule does not expect")
    return labels


def find_rule(operation: Operation) -> Rule | None:
    """The rule of an operation: by its name, by its family, or by what torch says of it."""
    plain = operation.name.rstrip("_")
    if plain in RULES:
        return RULES[plain]
    return next((rule for applies, rule in FAMILIES if applies(operation)), None)


def opaque(operation: Operation, text: str) -> list[Labels]:
    """Freeze everything an operation touches."""
    for used in operation.inputs():
        operation.freeze(used.axes, text)
    return [Labels(operation.fixed(shape, text)) for shape in operation.shapes]


def unused(shape: Iterable[int], op: Operation) -> Labels:
    """Labels for an extra output that forward passes do not look at."""
    return Labels(op.fixed(shape, "an inner result is used"))


def with_unused(labels: Labels, op: Operation) -> Result:
    """Add labels for the outputs after the first."""
    return [labels, *(unused(shape, op) for shape in op.shapes[1:])]


def describe(function: torch._ops.OpOverload) -> tuple[str, bool, bool]:
    """Name of an operation, whether it works element by element, whether it draws numbers."""
    name: str = function.overloadpacket.__name__
    tags = function.tags
    return name, torch.Tag.pointwise in tags, torch.Tag.nondeterministic_seeded in tags
