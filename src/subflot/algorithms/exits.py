"""Models with early exits, of which a client may hold the first blocks alone.

A cut is a place where a model can end (`channels/blocks.py`). An exit is a cut with a head, a
classifier of its own (`heads.py`). The model with its exits is a task of its own, whose `build`
makes a shorter module from weights that lack the later tensors.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from subflot.algorithms.heads import Exit
from subflot.channels import ChannelMap, Channels, build, take, trace
from subflot.channels.blocks import Cut, find_cuts
from subflot.channels.keep import prefix
from subflot.channels.resize import copied, state_of
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.weights import Weights

WIDTHS = 32
"""Widths that are tried, from 1 down in equal steps, until a model fits a budget."""


class _Left(Exception):  # noqa: N818 - no error: the model ends here
    """The last exit was taken."""


class ExitNetwork(nn.Module):
    """A model with heads behind some of its modules; it ends with its own classifier.

    Without what comes after the last head (`is_whole` is false) it ends there.
    """

    def __init__(
        self, body: nn.Module, exits: Sequence[Exit], num_classes: int, *, takes_mean: bool
    ) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleList(one.head(num_classes) for one in exits)
        self.places = tuple(one.cut.module for one in exits)
        self.takes_mean = takes_mean
        self.is_whole = True

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, shape (batch, classes): of the deepest exit, or the mean of all."""
        logits = self.exits(inputs)
        return torch.stack(logits).mean(dim=0) if self.takes_mean else logits[-1]

    def exits(self, inputs: Tensor) -> list[Tensor]:
        """Return the logits of every exit, the deepest last."""
        logits: list[Tensor] = []

        def leave(head: nn.Module) -> Any:
            def take_exit(module: nn.Module, args: Any, features: Tensor) -> None:
                # At once: what follows may change the features in place.
                logits.append(head(features))
                if not self.is_whole and len(logits) == len(self.heads):
                    raise _Left

            return take_exit

        hooks = [
            self.body.get_submodule(place).register_forward_hook(leave(head))
            for place, head in zip(self.places, self.heads, strict=True)
        ]
        try:
            logits.append(self.body(inputs))
        except _Left:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return logits


def exits_of(model: nn.Module, inputs: Tensor) -> list[Tensor]:
    """Return the logits of every exit of a model, the deepest last."""
    return model.exits(inputs) if isinstance(model, ExitNetwork) else [model(inputs)]


@dataclass(frozen=True)
class Part:
    """The network up to one of its exits, with its map."""

    template: nn.Module
    channels: ChannelMap


@dataclass(frozen=True, eq=False)
class ExitTask(Task):
    """A task whose model has exits; depth d is the part up to exit d, the last is the whole."""

    plain: Task | None = None
    """The task without exits, whose widths are the budgets."""
    parts: Mapping[frozenset[str], Part] = field(default_factory=dict)
    """Names of the tensors of each depth but the last -> what is built of them; in order."""

    @property
    def num_exits(self) -> int:
        """How many depths there are."""
        return len(self.parts) + 1

    def names(self, depth: int) -> frozenset[str]:
        """Name the tensors of the part of a depth, which counts from 1."""
        return [*self.parts, frozenset(self.channels.axes)][depth - 1]

    def part(self, weights: Weights, depth: int, pruning_rate: float) -> tuple[Weights, Channels]:
        """Cut a part out of the whole, with the first channels of its spaces, and say which.

        None named means all.
        """
        kept = prefix(self.channels, pruning_rate) if pruning_rate else {}
        names = self.names(depth)
        held = {name: tensor for name, tensor in weights.items() if name in names}
        return take(held, self.channels, kept), kept

    def build(self, weights: Weights) -> nn.Module:
        """Make a module of the depth and the width of its weights, on the task's device."""
        part = self.parts.get(frozenset(weights))
        if part is None:
            return super().build(weights)
        return build(part.template, part.channels, weights).to(self.device)

    def budget(self, pruning_rate: float) -> int:
        """Count the parameters of the model without exits at the width of a pruning rate."""
        assert self.plain is not None
        return num_parameters(self.plain, frozenset(self.plain.channels.axes), pruning_rate)

    def width_within(self, depth: int, budget: int) -> float | None:
        """Return the least pruning rate at which a part fits a budget; None if none does."""
        rates = (step / WIDTHS for step in range(WIDTHS))
        fitting = (r for r in rates if num_parameters(self, self.names(depth), r) <= budget)
        return next(fitting, None)


def with_exits(task: Task) -> ExitTask:
    """Tell that a task was prepared with exits."""
    if isinstance(task, ExitTask):
        return task
    raise SubflotError(
        "the model has no exits", hint="give the method the task that its `prepare` returns"
    )


def num_parameters(task: Task, names: frozenset[str], pruning_rate: float) -> int:
    """Count the parameters among some tensors when the share `pruning_rate` is removed."""
    sizes = {**task.channels.sizes, **task.channels.kept_sizes(pruning_rate)}
    total = 0
    for name, parameter in task.template.named_parameters():
        if name in names:
            entries = 1
            for length, segments in zip(parameter.shape, task.channels.axes[name], strict=True):
                entries *= length if segments is None else sum(s.size(sizes) for s in segments)
            total += entries
    return total


def num_classes_of(task: Task) -> int:
    """Count what a model tells apart."""
    with task.lend(task.initial) as model, torch.no_grad():
        return int(model.eval()(task.example.to(task.device)).shape[-1])


def cuts_of(task: Task) -> list[Cut]:
    """Find where a task's model can end; one without any such place is an error."""
    cuts = find_cuts(task.template, task.example)
    if not cuts:
        raise SubflotError(
            f"{type(task.template).__name__} has no place for an early exit",
            hint="it takes two layers before the classifier, called as modules one after the "
            "other; exits=1 goes without",
        )
    return cuts


def behind_shares(cuts: Sequence[Cut], shares: Sequence[float]) -> list[Cut]:
    """Choose the cuts that come nearest to shares of a model's blocks, each once."""
    num_blocks = len(cuts) + 1
    behind = {min(nearest(share * num_blocks), len(cuts)) for share in shares}
    return [cuts[block - 1] for block in sorted(behind)]


def nearest(depth: float) -> int:
    """Round to a depth, halves up, at least 1.

    Example:
        >>> [nearest(depth) for depth in (0.2, 1.4, 2.5)]
        [1, 1, 3]
    """
    return max(1, math.floor(depth + 0.5))


def add_exits(task: Task, exits: Sequence[Exit], *, takes_mean: bool) -> ExitTask:
    """Return the task with early exits; without any the model stays as it is.

    Args:
        task: what is prepared; it is not changed.
        exits: in the order in which the model runs.
        takes_mean: whether the model answers with the mean of its exits, not with the deepest.
    """
    given = {f.name: getattr(task, f.name) for f in fields(task)}
    given.update(plain=task, _idle={}, _costs={})
    if not exits:
        return ExitTask(**given)
    num_classes = num_classes_of(task)
    # Traced with the mean, which uses every head.
    whole = ExitNetwork(task.template, exits, num_classes, takes_mean=True)
    channels = trace(whole, task.example.repeat_interleave(2, 0))
    network = ExitNetwork(task.template, exits, num_classes, takes_mean=takes_mean)
    parts = {}
    of_heads: set[str] = set()
    for depth, one in enumerate(exits, start=1):
        of_heads |= {f"heads.{depth - 1}.{name}" for name in state_of(network.heads[depth - 1])}
        names = {f"body.{name}" for name in one.cut.tensors} | of_heads
        short = _shortened(network, depth, names)
        parts[frozenset(names)] = Part(short, _restricted(channels, names, short))
    return ExitTask(**{**given, "template": network, "channels": channels, "parts": parts})


def _shortened(network: ExitNetwork, depth: int, names: set[str]) -> ExitNetwork:
    """Copy a network up to one of its exits, without the modules behind it."""
    tensors = {name: tensor.detach() for name, tensor in state_of(network).items()}
    short = copied(network, tensors, lambda loose: loose.detach().clone())
    assert isinstance(short, ExitNetwork)
    short.heads = short.heads[:depth]
    short.places = short.places[:depth]
    short.is_whole = False
    _remove(short.body, "body", names)
    return short


def _remove(module: nn.Module, path: str, names: set[str]) -> None:
    """Remove tensors that are not named; a module without any of its own is left as a shell."""
    for tensors in (module._parameters, module._buffers):
        for name in tensors:
            if f"{path}.{name}" not in names:
                tensors[name] = None
    for name, child in module.named_children():
        inside = [f"{path}.{name}.{tensor}" for tensor in state_of(child)]
        if inside and not names.intersection(inside):
            setattr(module, name, nn.Identity())
        else:
            _remove(child, f"{path}.{name}", names)


def _restricted(channels: ChannelMap, names: set[str], short: nn.Module) -> ChannelMap:
    """Return what of a map is needed to build the part with the named tensors."""
    axes = {name: of for name, of in channels.axes.items() if name in names}
    spaces = {s.space for of in axes.values() for segments in of for s in segments or ()}
    groups = (tuple(space for space in group if space in spaces) for group in channels.coupled)
    return ChannelMap(
        axes,
        {space: size for space, size in channels.sizes.items() if space in spaces},
        {space: why for space, why in channels.frozen.items() if space in spaces},
        [group for group in groups if len(group) > 1],
        {space: least for space, least in channels.least.items() if space in spaces},
        attributes={
            name: counted
            for name, counted in channels.attributes.items()
            if _has(short, name)
            and all(s.space is None or s.space in spaces for part in counted for s in part or ())
        },
    )


def _has(model: nn.Module, name: str) -> bool:
    """Whether a module of that path is left, with that attribute."""
    path, _, attribute = name.rpartition(".")
    modules = dict(model.named_modules())
    return path in modules and hasattr(modules[path], attribute)
