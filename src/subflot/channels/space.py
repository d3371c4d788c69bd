"""The channel map of a model: which axes of which tensors share channels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from subflot.channels.axes import Reason
from subflot.channels.flow import Origin, Shares
from subflot.errors import ChannelError
from subflot.weights import Weights

Channels = Mapping[str, Tensor]
"""Space -> indices of the channels that are kept, in order."""


@dataclass(frozen=True)
class Segment:
    """A stretch of one axis: `copies` times the whole space, each channel `repeat` entries long.

    A flatten of 64 channels of 7 x 7 is `Segment("conv", repeat=49)`, the four gates of an LSTM
    are `Segment("lstm", copies=4)`. Without a space it is `repeat` entries that never change.
    """

    space: str | None
    repeat: int = 1
    copies: int = 1

    def size(self, sizes: Mapping[str, int]) -> int:
        """Count its entries when the spaces have these sizes."""
        channels = 1 if self.space is None else sizes[self.space]
        return self.copies * channels * self.repeat

    def __str__(self) -> str:
        parts = [self.space or "", *(f"{n}" for n in (self.repeat,) if n > 1 or not self.space)]
        shown = " x ".join(part for part in parts if part)
        return f"{self.copies} x {shown}" if self.copies > 1 else shown


Segments = tuple[Segment, ...]
Shapes = tuple[tuple[int, ...], ...]

MAX_WIDTHS = 256
"""Models of different widths whose sizes a map remembers."""


@dataclass(frozen=True)
class ChannelMap:
    """Which space each axis of each tensor lies in, and what is known of the spaces."""

    axes: Mapping[str, tuple[Segments | None, ...]]
    """Tensor -> its axes; None: positions, or an axis of length one, which never change."""
    sizes: Mapping[str, int]
    """Space -> channels, in the order in which the forward pass makes them."""
    frozen: Mapping[str, Reason] = field(default_factory=dict)
    """Spaces that must stay as they are, and why."""
    coupled: Sequence[tuple[str, ...]] = ()
    """Spaces that the forward pass needs in a fixed proportion, such as all heads together."""
    least: Mapping[str, int] = field(default_factory=dict)
    """Spaces with which the forward pass does not run below some number of channels."""
    producers: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    """Space -> the (tensor, axis) whose layers make its channels."""
    inputs: frozenset[Origin] = frozenset()
    """The (tensor, axis) that face what goes into a layer."""
    scaled: frozenset[Origin] = frozenset()
    """Those of them along which a cut weakens what the layer computes: they can lose channels, and
    no normalisation behind the layer makes up for it."""
    shares: Mapping[Origin, Mapping[str, Shares]] = field(default_factory=dict)
    """(Tensor, axis) -> space -> the producers whose channels meet it, with their shares."""
    attributes: Mapping[str, tuple[Segments | None, ...]] = field(default_factory=dict)
    """Settings of modules that count channels: `module.attribute` -> what it counts."""

    @property
    def prunable(self) -> list[str]:
        """The spaces that may be cut."""
        return [space for space in self.sizes if space not in self.frozen]

    @cached_property
    def moving(self) -> dict[str, tuple[int, ...]]:
        """The axes of each tensor that change when the prunable spaces do."""
        free = set(self.prunable)
        return {
            name: tuple(
                axis
                for axis, segments in enumerate(axes)
                if any(segment.space in free for segment in segments or ())
            )
            for name, axes in self.axes.items()
        }

    @cached_property
    def vectors(self) -> list[tuple[str, tuple[str, ...]]]:
        """Prunable spaces, and tensors of one number per channel that meet the same makers."""
        found: dict[object, tuple[str, list[str]]] = {}
        for name, axes in self.axes.items():
            if len(axes) != 1 or axes[0] is None or self.moving[name] != (0,):
                continue
            segment, *more = axes[0]
            space = segment.space
            if more or segment.copies * segment.repeat > 1 or space is None:
                continue
            is_maker = (name, 0) in self.producers.get(space, ())
            makers = self.shares.get((name, 0), {}).get(space, {})
            key = name if is_maker else (space, frozenset(makers.items()))
            found.setdefault(key, (space, []))[1].append(name)
        return [(space, tuple(names)) for space, names in found.values()]

    def members(self, space: str) -> list[tuple[str, int]]:
        """List every (tensor, axis) that a space cuts."""
        return [
            (name, axis)
            for name, axes in self.axes.items()
            for axis, segments in enumerate(axes)
            if any(segment.space == space for segment in segments or ())
        ]

    def kept_sizes(self, pruning_rate: float) -> dict[str, int]:
        """Channels left in every prunable space when the share `pruning_rate` is removed.

        Of n channels max(1, ceil((1 - pruning_rate) n)) stay; coupled spaces stay in proportion.

        Example:
            >>> axes = {"0.weight": ((Segment("hidden"),), None)}
            >>> ChannelMap(axes, {"hidden": 10}).kept_sizes(0.75)
            {'hidden': 3}
        """
        if not 0 <= pruning_rate < 1:
            raise ChannelError(
                f"pruning_rate is {pruning_rate}",
                hint="it is the share of channels removed and lies in [0, 1)",
            )
        kept = {}
        for group in self.groups():
            unit = math.gcd(*(self.sizes[space] for space in group))
            # Rounded first: (1 - 0.7) * 10 is a little more than 3 in floating point.
            left = max(1, math.ceil(round((1 - pruning_rate) * unit, 9)))
            while any(self.sizes[s] // unit * left < self.least.get(s, 1) for s in group):
                left += 1
            kept.update({space: self.sizes[space] // unit * left for space in group})
        return {space: kept[space] for space in self.prunable}

    def resized(self, sizes: Mapping[str, int]) -> "ChannelMap":
        """Make the map of a model of the same family with other sizes."""
        return replace(self, sizes={**self.sizes, **sizes})

    def groups(self) -> list[tuple[str, ...]]:
        """Partition the prunable spaces into those that are cut together and those alone."""
        taken = {space for group in self.coupled for space in group}
        alone = [(space,) for space in self.prunable if space not in taken]
        return [*self.coupled, *alone]

    def unreadable(self) -> set[str]:
        """Find the spaces whose sizes no shapes of weights can tell, such as two always joined."""
        group_of = {space: group for group in self.groups() for space in group}
        axes = [segments for tensor in self.axes.values() for segments in tensor if segments]
        unknown = set(self.groups())
        while True:
            told = set()
            for segments in axes:
                left = {group_of[s.space] for s in segments if s.space in group_of} & unknown
                told |= left if len(left) == 1 else set()
            if not told:
                return {space for group in unknown for space in group}
            unknown -= told

    def sizes_of(self, weights: Weights) -> dict[str, int]:
        """Read the size of every space off the shapes of a (narrower) model's weights."""
        for name in self.axes:
            if name not in weights:
                raise ChannelError(f"tensor `{name}` is missing from the weights")
        shapes = tuple(weights[name].shape for name in self.axes)
        if shapes not in self._sizes_by_shapes:
            if len(self._sizes_by_shapes) == MAX_WIDTHS:
                self._sizes_by_shapes.clear()
            self._sizes_by_shapes[shapes] = self._read(shapes)
        return dict(self._sizes_by_shapes[shapes])

    @cached_property
    def _sizes_by_shapes(self) -> dict[Shapes, dict[str, int]]:
        """The models met so far: a federation has many of few widths."""
        return {}

    def _read(self, shapes: Shapes) -> dict[str, int]:
        """Read the sizes off the shapes of all tensors, in the order of `axes`."""
        sizes = {space: self.sizes[space] for space in self.frozen}
        open_axes = []
        for (name, axes), shape in zip(self.axes.items(), map(tuple, shapes), strict=True):
            if len(shape) != len(axes):
                raise ChannelError(f"tensor `{name}` has shape {shape}, expected {len(axes)} axes")
            open_axes += [
                (name, segments, length)
                for segments, length in zip(axes, shape, strict=True)
                if segments is not None
            ]
        while open_axes:
            left = [axis for axis in open_axes if not self._settle(*axis, sizes)]
            if len(left) == len(open_axes):
                names = ", ".join(sorted({f"`{name}`" for name, _, _ in left}))
                raise ChannelError(f"the widths cannot be read off the shapes of {names}")
            open_axes = left
        return sizes

    def _settle(self, name: str, segments: Segments, length: int, sizes: dict[str, int]) -> bool:
        """Solve one axis for its only unknown, or check it; False if too much is unknown."""
        unknown = [s for s in segments if s.space is not None and s.space not in sizes]
        known = sum(s.size(sizes) for s in segments if s not in unknown)
        group = next((g for g in self.groups() if unknown and unknown[0].space in g), ())
        if any(segment.space not in group for segment in unknown):
            return False
        unit = math.gcd(*(self.sizes[space] for space in group))
        each = sum(segment.size(self.sizes) // unit for segment in unknown)
        scale, rest = divmod(length - known, each) if unknown else (1, length - known)
        if rest or scale < 1:
            raise ChannelError(
                f"tensor `{name}` has an axis of {length} entries, which fits no width of "
                + " + ".join(map(str, segments))
            )
        sizes.update({space: self.sizes[space] // unit * scale for space in group})
        return True
