"""Try a map out: resize the model, watch it run again, and see whether only its sizes changed.

The rules say which channels move together. They cannot say whether the forward pass stands another
number of them: it may hold a constant, or a setting of the module, or need two spaces in
proportion. So the model is built with other sizes, larger and smaller, and observed again. What it
then shows must be the same layout with the new sizes; otherwise settings are found that count
channels, spaces are coupled, and what still fails is frozen with what was seen.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn

from subflot.channels.axes import Reason
from subflot.channels.draft import Draft
from subflot.channels.record import Mode, Subject, Unrunnable, observe
from subflot.channels.resize import resized, state_of, take
from subflot.channels.settings import (
    MAX_TRIALS,
    Attributes,
    alike_settings,
    noting_reads,
    stages,
)
from subflot.channels.space import ChannelMap
from subflot.errors import ChannelError

Group = tuple[str, ...]
"""Spaces that change in proportion; often just one."""


@dataclass(frozen=True)
class Failure:
    """How a resized model failed: after how many operations, in which modules, and what it said."""

    step: float
    modules: tuple[str, ...]
    reason: Reason


class Trial:
    """A drafted map under test, with what the tests have found so far."""

    def __init__(self, subject: Subject, draft: Draft) -> None:
        self.subject, self.draft = subject, draft
        self.sizes = {name: atom.size for atom, name in draft.names.items()}
        self.rejected: dict[str, Reason] = {}
        self.attributes: Attributes = {}
        self.coupled: list[Group] = []
        self.least: dict[str, int] = {}
        shows_all = draft.observation.first_mode_shows_all
        self.modes = subject.modes[:1] if shows_all else subject.modes

    def settle(self) -> ChannelMap:
        """Find the largest part of the map that survives changes of size."""
        while True:
            self.coupled, self.least = [], {}
            bad = self._grow() or self._read()
            if bad:
                self._reject(bad)
                continue
            bad = self._shrink()
            if not bad:
                return self.map()
            self.rejected |= bad

    def map(self) -> ChannelMap:
        """The map as it stands."""
        return self.draft.map(self.rejected, self.coupled, self.least, self.attributes)

    def _grow(self) -> dict[str, Reason]:
        """Try larger sizes; find settings and proportions. Return what cannot be saved."""
        groups = self.map().groups()
        failure = self.resize(self.grown(groups), modes=self.subject.modes)
        is_reduced = self.modes != self.subject.modes
        if failure is not None and is_reduced and self.resize(self.grown(groups)) is None:
            self.modes = self.subject.modes  # Training alone minds the sizes.
        if failure is not None:
            failure = self._find_attributes(failure, self.grown(groups))
        if failure is None:
            return {}
        suspects = self._suspects(groups, failure)
        return suspects if self._couple(list(suspects)) is not None else {}

    def _read(self) -> dict[str, Reason]:
        """Find spaces whose sizes cannot be read off the weights again."""
        reason = Reason("its size cannot be told from the shapes of the weights")
        return dict.fromkeys(sorted(self.map().unreadable()), reason)

    def _shrink(self) -> dict[str, Reason]:
        """Try small sizes, equal to each other and to those that cannot change; find the least.

        A forward pass may do something else where sizes happen to be equal. Return what cannot be
        saved.
        """
        groups = self.map().groups()
        units = [self.unit(group) for group in groups]
        others = sorted({self.sizes[space] for space in self.map().frozen} - {1})
        half = max(2, (min(units, default=1) + 1) // 2)
        for size in [half, *(other for other in others if other < max(units, default=1))][:4]:
            bad = self._culprits(groups, size)
            if bad:
                return bad
        while bad := self._culprits(groups, 1):
            self.with_least(bad)
            groups = [group for group in groups if not set(group) & set(bad)]
        return {}

    def with_least(self, lonely: Iterable[str]) -> ChannelMap:
        """The map, in which these spaces, and those coupled to them, keep two units at least."""
        for group in self.map().groups():
            if set(lonely) & set(group):
                unit = self.unit(group)
                self.least |= {space: 2 * self.sizes[space] // unit for space in group}
        return self.map()

    def _culprits(self, groups: Sequence[Group], unit: int) -> dict[str, Reason]:
        """A smallest set of groups that fails at this size, each with what was seen."""
        failure = self.resize(self.sized(groups, unit))
        if failure is None:
            return {}
        failing = list(groups)
        for group in groups:
            rest = [other for other in failing if other != group]
            seen = self.resize(self.sized(rest, unit)) if rest else None
            if seen is not None:
                failing, failure = rest, seen
        return {space: failure.reason for group in failing for space in group}

    # --- sizes ----------------------------------------------------------------------------------

    def unit(self, group: Group) -> int:
        """What all sizes of a group are multiples of."""
        return math.gcd(*(self.sizes[space] for space in group))

    def sized(self, groups: Iterable[Group], unit: int) -> dict[str, int]:
        """Sizes with all groups shrunk to the same number of units, none grown."""
        return {
            space: self.sizes[space] // self.unit(group) * min(unit, self.unit(group))
            for group in groups
            for space in group
        }

    def grown(self, groups: Iterable[Group]) -> dict[str, int]:
        """Sizes larger by different amounts, so that none is mistaken for another."""
        return {
            space: self.sizes[space] // self.unit(group) * (self.unit(group) + 3 + 2 * (place % 7))
            for place, group in enumerate(groups)
            for space in group
        }

    def holds(self, groups: Sequence[Group]) -> Failure | None:
        """Try groups, and nothing else, both larger and smaller."""
        failure = self.resize(self.grown(groups))
        if failure is not None:
            return failure
        return self.resize(self.sized(groups, max(2, min(map(self.unit, groups)) // 2)))

    def resize(
        self,
        sizes: Mapping[str, int],
        attributes: Attributes | None = None,
        modes: Sequence[Mode] = (),
    ) -> Failure | None:
        """Build the model with other sizes and compare what it shows with what is expected."""
        try:
            model = self._resized(sizes, attributes or {})
            seen = Draft(model, observe(model, self.subject, modes or self.modes))
        except ChannelError as error:
            return Failure(0, (), Reason(str(error)))
        except Unrunnable as error:
            text = f"the forward pass does not run with another number of channels ({error.said})"
            where = error.modules[-1] if error.modules else ""
            return Failure(error.step, tuple(error.modules), Reason(text, module=where))
        if seen.signature({}) == self.draft.signature(sizes):
            return None
        text = "with another number of channels the forward pass puts them in other places"
        return Failure(math.inf, (), Reason(text))

    def _resized(self, sizes: Mapping[str, int], attributes: Attributes) -> nn.Module:
        """The template with other sizes, and with settings changed to them."""
        found = {**self.attributes, **attributes}
        channels = self.draft.map(self.rejected, attributes=found)
        kept = {space: torch.arange(size) % self.sizes[space] for space, size in sizes.items()}
        template = self.subject.template
        weights = take(state_of(template), channels, kept)
        return resized(template, channels, weights, {**self.sizes, **sizes})

    # --- settings and proportions ---------------------------------------------------------------

    def _find_attributes(self, failure: Failure, sizes: Mapping[str, int]) -> Failure | None:
        """Find settings of modules that must change with the sizes for the forward pass to run."""
        alike: Attributes = {}
        while True:
            after, found = self._best_settings(failure, sizes)
            if not found:
                return failure
            if after is not None:
                alike = {**alike, **alike_settings(self.map(), self.subject.template, found)}
                together = {**alike, **found}
                further = self.resize(sizes, together) if len(together) > len(found) else after
                if further is None or further.step > after.step:
                    after, found, alike = further, together, {}
            self.attributes |= found
            if after is None:
                return None
            failure = after

    def _best_settings(
        self, failure: Failure, sizes: Mapping[str, int]
    ) -> tuple[Failure | None, Attributes]:
        """The fewest settings with which the forward pass comes furthest, and how it fails then."""
        best, found = failure, Attributes()
        left = MAX_TRIALS
        read, template = self._settings_read(sizes), self.subject.template
        for stage in stages(self.map(), template, failure.modules, read):
            for attributes in islice(stage, left):
                left -= 1
                after = self.resize(sizes, attributes)
                if after is None:
                    return None, attributes
                if after.step > best.step:
                    best, found = after, attributes
            if found:
                break  # Nearer or fewer settings have brought it further already.
        return best, found

    def _settings_read(self, sizes: Mapping[str, int]) -> set[tuple[str, str]]:
        """The settings that a resized model reads before it fails: no others can mend it."""
        with contextlib.suppress(ChannelError, Unrunnable):
            model = self._resized(sizes, {})
            with noting_reads(model) as read, contextlib.suppress(ChannelError, Unrunnable):
                observe(model, self.subject, self.modes)
            return read
        return set()

    def _suspects(self, groups: Sequence[Group], failure: Failure) -> dict[str, Reason]:
        """The spaces that cannot change alone, with what was seen; all of them if each can."""
        failed = {space: seen.reason for (space,), seen in self._failing(groups)}
        return failed or {space: failure.reason for group in groups for space in group}

    def _failing(self, groups: Sequence[Group]) -> Iterator[tuple[Group, Failure]]:
        """Find the groups that fail, by halves: those that hold together hold alone."""
        failure = self.holds(groups)
        if failure is None:
            return
        if len(groups) == 1:
            yield groups[0], failure
            return
        middle = len(groups) // 2
        yield from self._failing(groups[:middle])
        yield from self._failing(groups[middle:])

    def _couple(self, suspects: list[str]) -> Failure | None:
        """Let spaces that cannot change alone change in proportion, in the smallest groups."""
        together = [tuple(suspects)]
        failure = self.holds(together)
        if failure is not None:
            failure = self._find_attributes(failure, self.grown(together))
        if failure is not None:
            return failure
        groups, left = [], suspects
        while left:
            group = self._smallest(left)
            groups.append(group)
            left = [space for space in left if space not in group]
        self.coupled = [group for group in groups if len(group) > 1]
        return self.resize(self.grown(self.map().groups()), modes=self.subject.modes)

    def _smallest(self, spaces: list[str]) -> Group:
        """The fewest spaces around the first one that hold together, dropped by halves."""
        group, chunk = spaces, (len(spaces) + 1) // 2
        while chunk:
            for start in range(1, len(spaces), chunk):
                dropped = set(spaces[start : start + chunk])
                smaller = [space for space in group if space not in dropped]
                if len(smaller) < len(group) and self.holds([tuple(smaller)]) is None:
                    group = smaller
            chunk //= 2
        return tuple(group)

    def _reject(self, suspects: Mapping[str, Reason]) -> None:
        """Freeze as few of the suspects as the tests allow."""
        self.coupled, self.least = [], {}
        names = {name: atom for atom, name in self.draft.names.items()}
        rivals = {space for space in suspects if self.draft.rivals.get(names[space])}
        if rivals:  # Another factor of the same axis may do.
            self.rejected |= {space: suspects[space] for space in rivals}
            return
        for space in suspects:
            rest = tuple(other for other in suspects if other != space)
            if rest and self.holds([rest]) is None:
                self.rejected[space] = suspects[space]
                return
        self.rejected |= suspects
