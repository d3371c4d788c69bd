"""Try a map out: resize the model, watch it run again, and see whether its map has only grown.

The rules say which channels move together. They cannot say whether the forward pass stands another
number of them: it may hold a constant, or a setting of the module, or need two spaces in
proportion. So the model is built with other sizes and observed again. What it then shows must be
the same layout with the new sizes; otherwise settings are found that count channels, spaces are
coupled, and what still fails is frozen with what was seen.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice

import torch
from torch import nn

from subflot.channels.axes import Reason
from subflot.channels.draft import Draft
from subflot.channels.record import Example, Unrunnable, observe
from subflot.channels.resize import build, state_of, take
from subflot.channels.space import ChannelMap, Segments
from subflot.errors import ChannelError

Attributes = dict[str, tuple[Segments | None, ...]]

MAX_TRIALS = 100
"""How often a model is resized to find the settings behind one failure."""


@dataclass(frozen=True)
class Failure:
    """How a resized model failed: after how many operations, in which modules, and what it said."""

    step: float
    modules: tuple[str, ...]
    reason: Reason


class Trial:
    """A drafted map under test, with what the tests have found so far."""

    def __init__(
        self, template: nn.Module, example: Example, device: str | None, draft: Draft
    ) -> None:
        self.template, self.example, self.device, self.draft = template, example, device, draft
        self.rejected: dict[str, Reason] = {}
        self.attributes: Attributes = {}
        self.coupled: list[tuple[str, ...]] = []

    def settle(self) -> ChannelMap:
        """Find the largest part of the map that survives a change of size."""
        while True:
            self.coupled = []
            spaces = self.map().prunable
            failure = self.resize(grown(self.map(), spaces))
            if failure is not None:
                failure = self.find_attributes(failure, grown(self.map(), spaces))
            if failure is None:
                return self.map()
            suspects = self.suspects(spaces, failure)
            failure = self.couple(list(suspects))
            if failure is None:
                return self.map()
            self.reject(suspects)

    def map(self) -> ChannelMap:
        """The map as it stands."""
        return self.draft.map(self.rejected, self.coupled, self.attributes)

    def resize(
        self,
        sizes: Mapping[str, int],
        coupled: Iterable[tuple[str, ...]] = (),
        attributes: Attributes | None = None,
    ) -> Failure | None:
        """Build the model with other sizes and compare what it shows with what is expected."""
        found = {**self.attributes, **(attributes or {})}
        channels = self.draft.map(self.rejected, coupled, found)
        kept = {space: torch.arange(size) % channels.sizes[space] for space, size in sizes.items()}
        try:
            weights = take(state_of(self.template), channels, kept)
            model = build(self.template, channels, weights, share=True)
            seen = Draft(model, observe(model, self.example, self.device))
        except ChannelError as error:
            return Failure(0, (), Reason(str(error)))
        except Unrunnable as error:
            cause = str(error.cause).strip().splitlines()
            said = cause[0] if cause else type(error.cause).__name__
            text = f"the forward pass does not run with another number of channels ({said})"
            where = error.modules[-1] if error.modules else ""
            return Failure(error.step, tuple(error.modules), Reason(text, module=where))
        if seen.signature({}) == self.draft.signature(sizes):
            return None
        text = "with another number of channels the forward pass puts them in other places"
        return Failure(math.inf, (), Reason(text))

    def find_attributes(
        self,
        failure: Failure,
        sizes: Mapping[str, int],
        coupled: Iterable[tuple[str, ...]] = (),
    ) -> Failure | None:
        """Find settings of modules that must change with the sizes for the forward pass to run."""
        while True:
            best, found = failure, None
            for attributes in islice(self.combinations(failure), MAX_TRIALS):
                if found is not None and len(attributes) > len(found):
                    break  # Fewer settings have brought it further already.
                after = self.resize(sizes, coupled, attributes)
                if after is None:
                    self.attributes |= attributes
                    return None
                if after.step > best.step:
                    best, found = after, attributes
            if found is None:
                return failure
            failure = best
            self.attributes |= found

    def combinations(self, failure: Failure) -> Iterator[Attributes]:
        """One, two or three settings that might have to change, the fewest first."""
        candidates = list(self.candidates(failure))
        for count in (1, 2, 3):
            for chosen in combinations(candidates, count):
                together = {name: counted for one in chosen for name, counted in one.items()}
                if len(together) == count:
                    yield together

    def candidates(self, failure: Failure) -> Iterator[Attributes]:
        """Settings of the modules that failed whose value is the length of some known axis."""
        channels = self.map()
        counted: dict[int, list[Segments]] = {}
        for segments in _countable(channels):
            known = counted.setdefault(sum(s.size(channels.sizes) for s in segments), [])
            if segments not in known:
                known.append(segments)
        modules = dict(self.template.named_modules())
        ran = [modules[name] for name in reversed(failure.modules) if name in modules]
        own = [module for module in modules.values() if not _is_torch(module)]
        names = {id(module): name for name, module in modules.items()}
        for module in dict.fromkeys(ran or own):
            for attribute, value in vars(module).items():
                name = f"{names[id(module)]}.{attribute}".lstrip(".")
                entries = list(value) if isinstance(value, tuple | list) else [value]
                known_entries = channels.attributes.get(name, (None,) * len(entries))
                for place, entry in enumerate(entries):
                    if type(entry) is not int or known_entries[place] is not None:
                        continue
                    for segments in counted.get(entry, ()):
                        changed = list(known_entries)
                        changed[place] = segments
                        yield {name: tuple(changed)}

    def suspects(self, spaces: Iterable[str], failure: Failure) -> dict[str, Reason]:
        """The spaces that cannot change alone, with what was seen; all of them if each can."""
        alone = {space: self.resize(grown(self.map(), [space])) for space in spaces}
        failed = {space: seen.reason for space, seen in alone.items() if seen is not None}
        return failed or dict.fromkeys(spaces, failure.reason)

    def couple(self, suspects: list[str]) -> Failure | None:
        """Let spaces that cannot change alone change in proportion, in the smallest groups."""
        together = [tuple(suspects)]
        sizes = scaled(self.map(), together)
        failure = self.resize(sizes, together)
        if failure is not None:
            failure = self.find_attributes(failure, sizes, together)
        if failure is not None:
            return failure
        groups, left = [], suspects
        while left:
            group = tuple(left)
            for space in left[1:]:
                smaller = tuple(other for other in group if other != space)
                if self.resize(scaled(self.map(), [smaller]), [smaller]) is None:
                    group = smaller
            groups.append(group)
            left = [space for space in left if space not in group]
        alone = [space for space in self.map().prunable if space not in suspects]
        failure = self.resize(scaled(self.map(), groups) | grown(self.map(), alone), groups)
        if failure is None:
            self.coupled = [group for group in groups if len(group) > 1]
        return failure

    def reject(self, suspects: Mapping[str, Reason]) -> None:
        """Freeze as few of the suspects as the tests allow."""
        names = {name: atom for atom, name in self.draft.names.items()}
        rivals = {space for space in suspects if self.draft.rivals.get(names[space])}
        if rivals:  # Another factor of the same axis may do.
            self.rejected |= {space: suspects[space] for space in rivals}
            return
        for space in suspects:
            rest = tuple(other for other in suspects if other != space)
            if rest and self.resize(scaled(self.map(), [rest]), [rest]) is None:
                self.rejected[space] = suspects[space]
                return
        self.rejected |= suspects


def grown(channels: ChannelMap, spaces: Iterable[str]) -> dict[str, int]:
    """Sizes larger than the map's, by different amounts, so that none is mistaken."""
    return {s: channels.sizes[s] + _growth(place) for place, s in enumerate(spaces)}


def _growth(place: int) -> int:
    """Never one: a chunk into uneven halves would hide it."""
    return 3 + 2 * (place % 7)


def scaled(channels: ChannelMap, groups: Iterable[Iterable[str]]) -> dict[str, int]:
    """Sizes in which each group has grown in proportion."""
    sizes: dict[str, int] = {}
    for place, group in enumerate(groups):
        members = list(group)
        unit = math.gcd(*(channels.sizes[space] for space in members))
        sizes |= {s: channels.sizes[s] // unit * (unit + _growth(place)) for s in members}
    return sizes


def _countable(channels: ChannelMap) -> Iterator[Segments]:
    """What a setting may count: an axis, a stretch of one, or the channels of a space."""
    free = set(channels.prunable)
    for axes in channels.axes.values():
        for segments in axes:
            if segments and any(segment.space in free for segment in segments):
                yield segments
                for segment in segments:
                    if segment.space in free:
                        yield (segment,)
                        yield (type(segment)(segment.space),)


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.") and not isinstance(module, nn.Unflatten)
