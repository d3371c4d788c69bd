"""Carry one model onto another of the same family and any width, layer by layer (Eq. 3 to 5)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from subflot.channels.flow import Origin
from subflot.channels.rows import rows, split
from subflot.channels.space import ChannelMap, Segment, Segments
from subflot.errors import ChannelError, SubflotError
from subflot.transport.distance import distances
from subflot.transport.plan import Plan, average
from subflot.transport.solve import Kind, solve
from subflot.weights import Weights

Residual = Literal["average", "joint"]
InputMap = Literal["mean", "sum"]


@dataclass(frozen=True)
class Alignment:
    """A source model in the shapes of a target model, and the plans that carried it.

    Tensors that did not move are the source's own.
    """

    weights: dict[str, Tensor]
    plans: Mapping[str, Mapping[Origin, Plan]]
    """Space -> the layers that make it -> the plan of each, shape (source, target).

    A space inside a product of two parameters is made by no layer; there all that share it stand.
    """


@torch.no_grad()
def align(
    source: Weights,
    target: Weights,
    channels: ChannelMap,
    *,
    plan: Kind = "balanced",
    residual: Residual = "average",
    input_map: InputMap = "mean",
    entropy: float = 0.0,
) -> Alignment:
    """Carry the channels of `source` to those of `target` that they match best.

    The layers are walked from input to output. Each one's weights are first carried along their
    inputs, by the plans of the layers before; then its channels are matched by the distance of
    what is left.

    Args:
        source: weights of one model of the family.
        target: weights of another, of any width.
        channels: the map of the family.
        plan: `balanced` sends every channel somewhere; `partial` matches one to one and leaves the
            wider side's other channels out.
        residual: behind a sum of branches, `average` goes on with the mean of their plans (the
            paper); `joint` matches all layers that make a space with one plan.
        input_map: on the input side `mean` averages the merged channels (Eq. 3); `sum` adds them,
            which keeps the function when they are copies of each other.
        entropy: positive for blurred plans; see `solve`.
    """
    for setting, value, known in (
        ("residual", residual, ("average", "joint")),
        ("input_map", input_map, ("mean", "sum")),
    ):
        if value not in known:
            raise SubflotError(f"unknown {setting} {value!r}", hint=" or ".join(known))
    return _Walk(source, target, channels, plan, residual, input_map, entropy).run()


class _Walk:
    """The walk over one pair of models: what is fixed, and the plans found so far."""

    def __init__(
        self,
        source: Weights,
        target: Weights,
        channels: ChannelMap,
        kind: Kind,
        residual: Residual,
        input_map: InputMap,
        entropy: float,
    ) -> None:
        self.source, self.target, self.channels = source, target, channels
        self.kind, self.residual, self.entropy = kind, residual, entropy
        self.sizes = channels.sizes_of(source)
        self.target_sizes = channels.sizes_of(target)
        self.plans: dict[str, dict[Origin, Plan]] = {}
        self.free = set(channels.prunable)
        self.unmade = {
            space: channels.members(space)
            for space in channels.prunable
            if space not in channels.producers
        }
        # Of the tensors that share a space that no layer makes, the first counts as its maker.
        makers = {members[0] for members in self.unmade.values()}
        adds_inputs = input_map == "sum" and kind == "balanced"
        self.added = channels.inputs - makers if adds_inputs else frozenset()
        self._averages: dict[object, Plan] = {}
        self._done: dict[str, Tensor] = {}
        self._entered: dict[str, Tensor] = {}

    def run(self) -> Alignment:
        producers = self.channels.producers
        makers = {o for space in self.free for o in producers.get(space, ())}
        for origin in [o for o in self.channels.shares if o in makers]:
            self._match_unmade([s for s, met in self.unmade.items() if origin[0] in dict(met)])
            for space in self._spaces(self._segments(origin)):
                if origin in producers.get(space, ()):
                    self._match(origin, space)
            self._finish(origin)
        self._match_unmade(self.unmade)
        self._carry_vectors()
        for name in self.source:
            if name not in self._done:
                self._done[name] = self._carried(name)
        return Alignment({name: self._done[name] for name in self.source}, self.plans)

    def _finish(self, origin: Origin) -> None:
        """Carry the outputs of a layer whose inputs were carried to match it."""
        entered = self._entered.pop(origin[0], None)
        if entered is not None:
            self._done[origin[0]] = self._carry(entered, origin)

    def _segments(self, origin: Origin) -> Segments:
        return self.channels.axes[origin[0]][origin[1]] or ()

    def _spaces(self, segments: Segments | None) -> list[str]:
        """The spaces along an axis that may change, each once."""
        found = [s.space for s in segments or () if s.space is not None and s.space in self.free]
        return found if len(found) < 2 else list(dict.fromkeys(found))

    def _match_unmade(self, spaces: Iterable[str]) -> None:
        """Match spaces that no layer makes, such as the one inside a product of two parameters."""
        for space in spaces:
            self._match(self.unmade[space][0], space)

    def _match(self, origin: Origin, space: str) -> None:
        """Find the plan of the channels of a space that a layer makes."""
        found = self.plans.setdefault(space, {})
        if origin in found:
            return
        together: Sequence[Origin] = (origin,)
        if self._is_joint(space):
            together = self.unmade.get(space) or self.channels.producers[space]
        costs = (_cost(*self._rows(maker, space), name=maker[0]) for maker in together)
        plan = solve(reduce(torch.add, costs), plan=self.kind, entropy=self.entropy, name=origin[0])
        found.update(dict.fromkeys(together, plan))

    def _is_joint(self, space: str) -> bool:
        """Whether one plan is to serve all tensors that make a space."""
        return self.residual == "joint" or space in self.unmade

    def _rows(self, origin: Origin, space: str) -> tuple[Tensor, Tensor]:
        """What tells the channels of a space apart in one layer, in source and target."""
        name, own = origin
        source, target = self._entered.get(name, self.source[name]), self.target[name]
        is_new, is_whole = name not in self._entered, True
        for axis in self.channels.moving[name]:
            if axis == own:
                continue
            spaces = self._spaces(self._segments((name, axis)))
            if all(self._plan((name, axis), other) for other in spaces):
                source = self._carry(source, (name, axis)) if is_new else source
            else:  # Not matched yet, as in a loop: only what no order changes can be compared.
                source, target = _moments(source, axis), _moments(target, axis)
                is_whole = False
        if is_whole and not self._is_joint(space):
            self._entered[name] = source
        sides = ((source, self.sizes), (target, self.target_sizes))
        mine, others = (
            rows(side, own, self._segments(origin), space, sizes) for side, sizes in sides
        )
        return mine, others

    def _plan(self, origin: Origin, space: str) -> Plan | None:
        """The plan of a space as it is met on an axis of a tensor."""
        found = self.plans.get(space)
        if not found:
            return None
        if len(found) == 1:
            return next(iter(found.values()))
        if origin in found:
            return found[origin]
        met = self.channels.shares.get(origin, {}).get(space, {})
        shares = {maker: share for maker, share in met.items() if maker in found}
        shares = shares or dict.fromkeys(found, 1.0)
        plans = {id(found[maker]): found[maker] for maker in shares}
        if len(plans) == 1:
            return next(iter(plans.values()))
        key = (space, frozenset(shares.items()))
        if key not in self._averages:
            total = sum(shares.values())
            parts = [share / total for share in shares.values()]
            self._averages[key] = average([found[maker] for maker in shares], parts)
        return self._averages[key]

    def _carry_vectors(self) -> None:
        """Carry tensors of one number per channel, as norms have them, all of a plan at once."""
        for space, names in self.channels.vectors:
            plan = self._plan((names[0], 0), space)
            together: dict[torch.dtype, list[str]] = {}
            for name in names:
                dtype = self.source[name].dtype
                if (
                    dtype.is_floating_point
                    and name not in self._done
                    and (name, 0) not in self.added
                ):
                    together.setdefault(dtype, []).append(name)
            for some in together.values():
                if plan is not None:
                    moved = plan.carry(torch.stack([self.source[name] for name in some]), 1)
                    self._done.update(zip(some, (vector.clone() for vector in moved), strict=True))

    def _carried(self, name: str) -> Tensor:
        tensor = self.source[name]
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            return tensor
        if name not in self.channels.axes:
            raise ChannelError(f"tensor `{name}` is not in the channel map")
        for axis in self.channels.moving[name]:
            tensor = self._carry(tensor, (name, axis))
        return tensor

    def _carry(self, tensor: Tensor, origin: Origin) -> Tensor:
        """Carry a tensor along one of its axes, stretch by stretch."""
        axis, segments, adds = origin[1], self._segments(origin), origin in self.added
        plans = [s.space and s.space in self.free and self._plan(origin, s.space) for s in segments]
        if not any(plans):
            return tensor
        pieces = split(tensor, axis, segments, self.sizes)
        moved = [
            _moved(piece, axis, segment, plan, adds=adds) if plan else piece
            for piece, segment, plan in zip(pieces, segments, plans, strict=True)
        ]
        return torch.cat(moved, axis) if len(moved) > 1 else moved[0]


def _cost(source: Tensor, target: Tensor, name: str) -> Tensor:
    """Distances, with the wider side's channels one by one in memory, as the solver wants them."""
    if len(source) >= len(target):
        return distances(source, target, name=name)
    return distances(target, source, name=name).T


def _moved(piece: Tensor, axis: int, segment: Segment, plan: Plan, *, adds: bool) -> Tensor:
    """Carry one stretch of an axis, which holds copies of channels of several entries."""
    if segment.copies == segment.repeat == 1:
        result = plan.carry(piece, axis)
    else:
        parts = piece.unflatten(axis, (segment.copies, plan.shape[0], segment.repeat))
        result = plan.carry(parts, axis + 1).flatten(axis, axis + 2)
    return result.mul_(plan.shape[0] / plan.shape[1]) if adds else result


def _moments(tensor: Tensor, axis: int) -> Tensor:
    """Mean and spread along an axis, which no permutation changes."""
    spread, mean = torch.std_mean(tensor, axis, correction=0, keepdim=True)
    return torch.cat([mean, spread], axis)
