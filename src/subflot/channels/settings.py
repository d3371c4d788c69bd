"""Settings of modules that count channels: which may have to change for a model to run resized."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from subflot.channels.space import ChannelMap, Segment, Segments

Attributes = dict[str, tuple[Segments | None, ...]]

MAX_TRIALS = 100
"""How often a model is resized to find the settings behind one failure."""


def stages(
    channels: ChannelMap, template: nn.Module, failed: Sequence[str], read: set[tuple[str, str]]
) -> Iterator[Iterable[Attributes]]:
    """One, two or three settings that might have to change, in stages, the likeliest first.

    Args:
        channels: the map as it stands.
        template: the model whose settings they are.
        failed: the modules in which the forward pass broke off.
        read: what it had read by then, as (module, attribute); no other setting can mend it.
    """
    near = list(_candidates(channels, template, failed, read, is_near=True))
    yield near
    yield islice(_candidates(channels, template, failed, read, is_near=False), MAX_TRIALS // 2)
    for count in (2, 3):
        together = (
            {name: counted for one in chosen for name, counted in one.items()}
            for chosen in combinations(near, count)
        )
        yield (settings for settings in together if len(settings) == count)


def _candidates(
    channels: ChannelMap,
    template: nn.Module,
    failed: Sequence[str],
    read: set[tuple[str, str]],
    *,
    is_near: bool,
) -> Iterator[Attributes]:
    """Settings whose value is the length of an axis of the module, or of one elsewhere.

    The modules that failed come first, but the one that holds the setting may have run well
    and passed on what fails later.
    """
    modules = dict(template.named_modules())
    ran = [name for name in reversed(failed) if name in modules]
    own = [name for name, module in modules.items() if not _is_torch(module)]
    for name in dict.fromkeys([*ran, *own]):
        counted: dict[int, list[Segments]] | None = None
        for attribute, value in vars(modules[name]).items():
            if not {(name, attribute), (name, "__dict__")} & read:
                continue
            path = f"{name}.{attribute}".lstrip(".")
            entries = list(value) if isinstance(value, tuple | list) else [value]
            set_already = channels.attributes.get(path, (None,) * len(entries))
            for place, entry in enumerate(entries):
                if type(entry) is int and entry > 1 and set_already[place] is None:
                    counted = counted or _countable(channels, name, is_near=is_near)
                    for segments in counted.get(entry, ()):
                        changed = list(set_already)
                        changed[place] = segments
                        yield {path: tuple(changed)}


def alike_settings(channels: ChannelMap, template: nn.Module, found: Attributes) -> Attributes:
    """The same settings of all other modules of the same classes, each counting its own."""
    modules = dict(template.named_modules())
    alike: Attributes = {}
    for path, counted in found.items():
        owner, _, attribute = path.rpartition(".")
        value = getattr(modules[owner], attribute)
        entries = list(value) if isinstance(value, tuple | list) else [value]
        known = _countable(channels, owner, is_near=True)
        for name, module in modules.items():
            other = f"{name}.{attribute}".lstrip(".")
            if (
                type(module) is not type(modules[owner])
                or vars(module).get(attribute) != value
                or other in {**channels.attributes, **found}
            ):
                continue
            own = _countable(channels, name, is_near=True)
            segments = tuple(
                segments and _counterpart(segments, known[entry], own.get(entry, []))
                if entry in known
                else None
                for entry, segments in zip(entries, counted, strict=True)
            )
            if [s is None for s in segments] == [s is None for s in counted]:
                alike[other] = segments
    return alike


@contextlib.contextmanager
def noting_reads(model: nn.Module) -> Iterator[set[tuple[str, str]]]:
    """Collect which attributes of which modules are read, as (module, attribute)."""
    names = {id(module): name for name, module in model.named_modules()}
    read: set[tuple[str, str]] = set()

    def note(module: nn.Module, attribute: str) -> Any:
        # Torch itself looks into the dict of a module for its weights.
        if attribute != "__dict__" or sys._getframe(1).f_globals is not vars(torch_module):
            read.add((names.get(id(module), ""), attribute))
        return object.__getattribute__(module, attribute)

    nn.Module.__getattribute__ = note  # type: ignore[method-assign,assignment]
    try:
        yield read
    finally:
        del nn.Module.__getattribute__


def _countable(channels: ChannelMap, module: str, *, is_near: bool) -> dict[int, list[Segments]]:
    """What a setting of a module may count, by its value.

    It is an axis, a stretch of one, or the channels of a space, of the module's own tensors (of
    those around it if it has none); or else of all other tensors.
    """
    inside = f"{module}." if module else ""
    tensors = [axes for n, axes in channels.axes.items() if n.startswith(inside) == is_near]
    if not tensors and module:
        return _countable(channels, module.rpartition(".")[0], is_near=is_near)
    free = set(channels.prunable)
    found: dict[int, list[Segments]] = {}
    for segments in (axis for axes in tensors for axis in axes if axis):
        spaces = [segment for segment in segments if segment.space in free]
        ways = [segments, tuple(replace(s, repeat=1) for s in segments)] if spaces else []
        ways += [way for s in spaces for way in ((s,), (Segment(s.space),))]
        for way in ways:
            known = found.setdefault(sum(segment.size(channels.sizes) for segment in way), [])
            if way not in known:
                known.append(way)
    return found


def _counterpart(segments: Segments, known: list[Segments], own: list[Segments]) -> Segments | None:
    """What stands in the same place, of all that a like module's setting may count."""
    layouts = [[(s.repeat, s.copies) for s in way] for way in known]
    if segments not in known or layouts != [[(s.repeat, s.copies) for s in way] for way in own]:
        return None
    return own[known.index(segments)]


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.") and not isinstance(module, nn.Unflatten)
