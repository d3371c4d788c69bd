"""Where a model can end early: behind modules that everything so far flows through."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from subflot.channels.resize import copied, state_of
from subflot.errors import SubflotError

CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that only hold others; all other modules are blocks, and no place inside them is a cut
unless there is none between them."""


@dataclass(frozen=True)
class Cut:
    """A place where a model can end, and what is left of it then."""

    module: str
    """The last module that runs."""
    tensors: frozenset[str]
    """Names in the state dict of all that was used up to there."""
    num_channels: int
    axis: int
    """Which axis of the module's output holds the channels."""
    positions: tuple[int, ...]
    """Lengths of the other axes, without that of the batch."""


@dataclass(frozen=True)
class _Call:
    """A module that ran, and what was known when it finished."""

    module: str
    output: Tensor
    node: Node
    """What made the output; kept, for the tensor may be changed in place later."""
    num_started: int


def find_cuts(model: nn.Module, example: Tensor) -> list[Cut]:
    """Find where a model can end early, in the order in which it runs.

    There is at most one cut behind each layer or block, the last before the next begins, and at
    least two layers follow it: behind the last but one a model would only get a second classifier.
    A model that names its blocks in an attribute `blocks`, a tuple of module paths, is cut behind
    those alone.

    Args:
        model: called with the example it returns one tensor; it is not changed.
        example: a batch of inputs.
    """
    run = _Run(model, example)
    named = getattr(model, "blocks", None)
    if isinstance(named, tuple) and all(isinstance(path, str) for path in named):
        for path in named:
            if path not in run.modules:
                raise SubflotError(
                    f"{type(model).__name__} names the block `{path}`, which it does not have"
                )
        return run.cuts(set(named))
    paths = {path for path in run.modules if run.is_between_blocks(path)}
    return run.cuts(paths) or run.cuts(set(run.modules))


class _Run:
    """One pass through a copy of a model, with the graph that it left."""

    def __init__(self, model: nn.Module, example: Tensor) -> None:
        tensors = {name: tensor.detach() for name, tensor in state_of(model).items()}
        self.model = copied(model, tensors, lambda loose: loose.detach().clone()).eval()
        self.modules = {path: module for path, module in self.model.named_modules() if path}
        self.started: list[str] = []
        self.calls: list[_Call] = []
        self.output = self._watch(example)
        names: dict[int, list[str]] = {}
        for name, tensor in state_of(self.model).items():
            names.setdefault(id(tensor), []).append(name)
        self.names = names

    def _watch(self, example: Tensor) -> Tensor:
        def start(path: str) -> Any:
            return lambda module, inputs: self.started.append(path)

        def finish(path: str) -> Any:
            def note(module: nn.Module, inputs: Any, output: Any) -> None:
                if isinstance(output, Tensor) and output.grad_fn is not None:
                    self.calls.append(_Call(path, output, output.grad_fn, len(self.started)))

            return note

        for path, module in self.model.named_modules():
            module.register_forward_pre_hook(start(path))
            if path:
                module.register_forward_hook(finish(path))
        with torch.enable_grad():
            output = self.model(example)
        if not isinstance(output, Tensor) or output.grad_fn is None:
            raise SubflotError(
                f"{type(self.model).__name__} returns a {type(output).__name__}",
                hint="exits need a model that returns one tensor and has parameters to train",
            )
        return output

    def is_between_blocks(self, path: str) -> bool:
        """Tell whether a module lies in containers alone."""
        above = path.rpartition(".")[0]
        return not above or (
            isinstance(self.modules[above], CONTAINERS) and self.is_between_blocks(above)
        )

    def cuts(self, paths: set[str]) -> list[Cut]:
        """Return the last cut behind each layer, of those behind the given modules."""
        assert self.output.grad_fn is not None
        matrices = _matrices(_leaves(_reached(self.output.grad_fn)))
        found: dict[frozenset[int], _Call] = {}
        for call in self.calls:
            if call.module in paths and self._is_cut(call):
                found[_matrices(_leaves(_reached(call.node)))] = call
        return [
            self._cut(call)
            for used, call in sorted(found.items(), key=lambda item: item[1].num_started)
            if used and len(matrices - used) > 1
        ]

    def _is_cut(self, call: _Call) -> bool:
        """Whether all that came before reaches the end through this output alone."""
        if self.started.count(call.module) != 1 or call.output.dim() < 2:
            return False
        assert self.output.grad_fn is not None
        later = set(_reached(self.output.grad_fn, but=call.node))
        return call.node in later and not (set(_reached(call.node)) - {call.node}) & later

    def _cut(self, call: _Call) -> Cut:
        leaves = _leaves(_reached(call.node))
        used = {name for leaf in leaves for name in self.names.get(id(leaf), ())}
        before = dict.fromkeys(self.started[: call.num_started])
        for name, tensor in state_of(self.model).items():
            # What training does not change leaves no trace in the graph.
            if not tensor.requires_grad and name.rpartition(".")[0] in before:
                used.add(name)
        kernels = [
            parameter.dim()
            for path in before
            for parameter in self.model.get_submodule(path).parameters(recurse=False)
            if parameter.dim() > 1
        ]
        # Kernels have positions, and so have their outputs behind the channels.
        axis = 1 if call.output.dim() == 2 or kernels[-1] > 2 else call.output.dim() - 1
        _, *lengths = call.output.shape
        num_channels = lengths.pop(axis - 1)
        return Cut(call.module, frozenset(used), num_channels, axis, tuple(lengths))


def _reached(end: Node, but: Node | None = None) -> Iterator[Node]:
    """Walk back through a graph from its end; what lies behind `but` only is left out."""
    seen, ahead = {end}, [end]
    while ahead:
        node = ahead.pop()
        yield node
        if node is not but:
            new = [before for before, _ in node.next_functions if before is not None]
            ahead += (before for before in new if before not in seen)
            seen.update(new)


def _leaves(nodes: Iterator[Node]) -> list[Tensor]:
    return [node.variable for node in nodes if hasattr(node, "variable")]


def _matrices(leaves: list[Tensor]) -> frozenset[int]:
    """What tells layers apart; norms and biases belong to the layer before them."""
    return frozenset(id(leaf) for leaf in leaves if leaf.dim() > 1)
