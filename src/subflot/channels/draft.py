"""From what was observed to a channel map: names for atoms, and one free factor per axis."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from torch import nn

from subflot.channels.axes import POSITIONS, Atom, Axis, Product, Reason, resolve
from subflot.channels.flow import Origin, trace_shares
from subflot.channels.record import Observation
from subflot.channels.space import ChannelMap, Segment, Segments

SETTINGS: Mapping[type[nn.Module], Mapping[str, tuple[tuple[str, int], ...]]] = {
    nn.Linear: {"in_features": (("weight", 1),), "out_features": (("weight", 0),)},
    nn.Bilinear: {
        "in1_features": (("weight", 1),),
        "in2_features": (("weight", 2),),
        "out_features": (("weight", 0),),
    },
    nn.Embedding: {"embedding_dim": (("weight", 1),)},
    nn.EmbeddingBag: {"embedding_dim": (("weight", 1),)},
    nn.PReLU: {"num_parameters": (("weight", 0),)},
    nn.RMSNorm: {"normalized_shape": (("weight", 0),)},
    nn.RNNBase: {"input_size": (("weight_ih_l0", 1),), "hidden_size": (("weight_hh_l0", 1),)},
    nn.RNNCellBase: {"input_size": (("weight_ih", 1),), "hidden_size": (("weight_hh", 1),)},
    nn.MultiheadAttention: {
        "embed_dim": (("out_proj.weight", 0),),
        "kdim": (("in_proj_weight", 1),),
        "vdim": (("in_proj_weight", 1),),
    },
}
"""Settings of torch's layers that count entries of a tensor's axis. Those that count what no
tensor shows (groups, the shape of a normalisation without weights) come from the operations."""


class Draft:
    """What was observed, with names. `map` turns it into a channel map, as far as it is free."""

    def __init__(self, model: nn.Module, observation: Observation) -> None:
        self.model = model
        self.observation = observation
        self.axes = {n: [resolve(a) for a in axes] for n, axes in observation.axes.items()}
        self.names = self._name_atoms()
        self.rivals = self._find_rivals()

    def _name_atoms(self) -> dict[Atom, str]:
        """Name every atom after the layer that makes it, in the order of the forward pass."""
        made = [origin for origin, role in self.observation.roles.items() if role == "out"]
        rest = [(name, axis) for name, axes in self.axes.items() for axis in range(len(axes))]
        names: dict[Atom, str] = {}
        taken: dict[str, int] = {}
        for name, axis in [*made, *rest]:
            is_kernel = (name, axis) not in self.observation.roles
            for atom, is_alone in _atoms(self.axes[name][axis]):
                is_place = atom.reason is not None and atom.reason.text == POSITIONS
                if atom in names or (is_place and (is_kernel or not is_alone)):
                    continue
                base = name.removesuffix(".weight").removesuffix(".bias")
                if atom.reason is not None and atom.reason.text == "input":
                    base = "input"
                taken[base] = taken.get(base, 0) + 1
                names[atom] = base if taken[base] == 1 else f"{base}#{taken[base]}"
        return names

    def _find_rivals(self) -> dict[Atom, set[Atom]]:
        """Free atoms that multiply each other on some axis: only one of them can be cut."""
        rivals: dict[Atom, set[Atom]] = {}
        for product in self._products():
            free = [atom for atom in product if atom.reason is None]
            for place, atom in reversed(list(enumerate(free))):
                rivals.setdefault(atom, set()).update(free[:place] + free[place + 1 :])
        return rivals

    def _products(self) -> Iterator[Product]:
        for axes in self.axes.values():
            for axis in axes:
                yield from axis

    def map(
        self,
        rejected: Mapping[str, Reason],
        coupled: Iterable[tuple[str, ...]] = (),
        least: Mapping[str, int] | None = None,
        attributes: Mapping[str, tuple[Segments | None, ...]] | None = None,
    ) -> ChannelMap:
        """Make a map in which the rejected spaces are frozen too."""
        frozen = {self.names[a]: a.reason for a in self.names if a.reason is not None}
        frozen.update(rejected)
        chosen: set[Atom] = set()
        # The larger factor is cut, because it can be cut more finely; of equals the inner one.
        for atom in sorted(self.rivals, key=lambda atom: -atom.size):
            name = self.names[atom]
            winners = [rival for rival in self.rivals[atom] if rival in chosen or rival is atom]
            if name in frozen:
                continue
            if not winners:
                chosen.add(atom)
            elif winners[0] is atom:
                frozen[name] = Reason("it appears twice on one axis")
            else:
                other = self.names[winners[0]]
                frozen[name] = Reason(f"it shares an axis with `{other}`, which is cut instead")
        sizes = {name: atom.size for atom, name in self.names.items()}
        free = set(sizes) - set(frozen)
        axes = {
            name: tuple(self._segments(axis, free) for axis in tensor)
            for name, tensor in self.axes.items()
        }
        return ChannelMap(
            axes=axes,
            sizes=sizes,
            frozen={space: frozen[space] for space in sizes if space in frozen},
            coupled=tuple(coupled),
            least=dict(least or {}),
            producers=self._producers(axes),
            attributes={**self._attributes(axes, free), **(attributes or {})},
        )

    def _segments(self, axis: Axis, free: set[str]) -> Segments | None:
        segments = tuple(self._segment(product, free) for product in axis)
        return segments if any(segment.space is not None for segment in segments) else None

    def _segment(self, product: Product, free: set[str]) -> Segment:
        sizes = [atom.size for atom in product]
        for place, atom in enumerate(product):
            if self.names.get(atom) in free:
                repeat, copies = math.prod(sizes[place + 1 :]), math.prod(sizes[:place])
                return Segment(self.names[atom], repeat, copies)
        if len(product) == 1 and product[0] in self.names:
            return Segment(self.names[product[0]])
        return Segment(None, math.prod(sizes))

    def _producers(
        self, axes: Mapping[str, tuple[Segments | None, ...]]
    ) -> dict[str, tuple[Origin, ...]]:
        """The layers that face each space outwards, in the order in which they first run."""
        producers: dict[str, dict[Origin, None]] = {}
        for origin in self._makers(axes):
            for space in _spaces(axes[origin[0]][origin[1]]):
                producers.setdefault(space, {})[origin] = None
        return {space: tuple(found) for space, found in producers.items()}

    def _makers(self, axes: Mapping[str, tuple[Segments | None, ...]]) -> Iterator[Origin]:
        for (name, axis), role in self.observation.roles.items():
            if role == "out" and len(axes[name]) > 1:
                yield name, axis

    def with_shares(self, channels: ChannelMap) -> ChannelMap:
        """Add to a map how much of each layer every tensor sees.

        Producers are then only the layers that make a space anew: a depthwise convolution, or a
        recurrent weight, passes on what it is given.
        """
        free, axes = set(channels.prunable), channels.axes
        made = {(name, axis): _spaces(axes[name][axis]) for name, axis in self._makers(axes)}
        flows = dict.fromkeys(self.observation.flows)
        entering = {
            id(flow): {
                space
                for axis in flow.entering
                for space in _spaces(self._segments(resolve(axis), free))
            }
            for flow in flows
        }
        shares = trace_shares(flows, made, entering)
        seen = {
            (name, axis): {s: shares[f][s] for s in _spaces(axes[name][axis]) if s in shares[f]}
            for (name, axis), f in self.observation.flow_of.items()
        }
        makers = {maker for mixed in shares.values() for one in mixed.values() for maker in one}
        producers = {
            space: tuple(o for o in origins if o in makers) or origins
            for space, origins in channels.producers.items()
        }
        inputs = frozenset(o for o, role in self.observation.roles.items() if role == "in")
        return replace(channels, producers=producers, inputs=inputs, shares=seen)

    def _attributes(
        self, axes: Mapping[str, tuple[Segments | None, ...]], free: set[str]
    ) -> dict[str, tuple[Segments | None, ...]]:
        """Settings of modules that count channels of free spaces."""
        found: dict[tuple[str, str], tuple[Segments | None, ...]] = {}
        for name, module in self.model.named_modules():
            for kind, settings in SETTINGS.items():
                if isinstance(module, kind):
                    for attribute, places in settings.items():
                        tensors = [(f"{name}.{t}".lstrip("."), axis) for t, axis in places]
                        if all(t in axes for t, _ in tensors):
                            found[name, attribute] = tuple(axes[t][axis] for t, axis in tensors)
        for place, counted in self.observation.attributes.items():
            found[place] = tuple(self._segments(resolve(axis), free) for axis in counted)
        modules = dict(self.model.named_modules())
        sizes = {name: atom.size for atom, name in self.names.items()}
        return {
            f"{module}.{attribute}".lstrip("."): counted
            for (module, attribute), counted in found.items()
            if any(segment.space in free for segments in counted for segment in segments or ())
            and module in modules
            and matches(getattr(modules[module], attribute, None), counted, sizes)
        }

    def signature(self, sizes: Mapping[str, int]) -> object:
        """The layout of every tensor for given sizes: free atoms numbered as they appear."""
        numbers: dict[Atom, int] = {}
        return {
            name: [self._axis_signature(axis, sizes, numbers) for axis in axes]
            for name, axes in self.axes.items()
        }

    def _axis_signature(
        self, axis: Axis, sizes: Mapping[str, int], numbers: dict[Atom, int]
    ) -> list[object]:
        """One axis as terms; what cannot move is merged, for only its size matters."""
        terms: list[object] = []
        for product in axis:
            factors: list[object] = []
            for atom in product:
                size = sizes.get(self.names.get(atom, ""), atom.size)
                if atom.reason is not None and factors and isinstance(factors[-1], int):
                    factors[-1] *= size
                elif atom.reason is not None:
                    factors.append(size)
                elif size > 1:
                    factors.append((numbers.setdefault(atom, len(numbers)), size))
            fixed = [factor for factor in factors if isinstance(factor, int)]
            if len(fixed) < len(factors):
                terms.append(tuple(factors))
            elif terms and isinstance(terms[-1], int):
                terms[-1] += math.prod(fixed)
            else:
                terms.append(math.prod(fixed))
        return terms


def matches(value: object, counted: tuple[Segments | None, ...], sizes: Mapping[str, int]) -> bool:
    """Whether a setting has the value that it is said to count."""
    entries = list(value) if isinstance(value, tuple | list) else [value]
    return len(entries) == len(counted) and all(
        segments is None or (type(entry) is int and entry == sum(s.size(sizes) for s in segments))
        for entry, segments in zip(entries, counted, strict=True)
    )


def _spaces(segments: Segments | None) -> list[str]:
    """The spaces along an axis, each once."""
    return list(dict.fromkeys(s.space for s in segments or () if s.space is not None))


def _atoms(axis: Axis) -> Iterator[tuple[Atom, bool]]:
    """The atoms of an axis, and whether each is alone in its term."""
    for product in axis:
        for atom in product:
            yield atom, len(product) == 1
