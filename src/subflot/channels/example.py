"""What a model is called with and what it returns, however it is wrapped."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from subflot.errors import ChannelError

Example = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one tensor, positional arguments, or named ones."""


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with an example."""
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, list | tuple):
        return tuple(example), {}
    raise ChannelError(
        f"the example is a {type(example).__name__}",
        hint="give a tensor, a tuple of arguments or a dict of named ones",
    )


def moved(example: Example, device: str | None = None, dtype: torch.dtype | None = None) -> Example:
    """A copy of an example, on another device or in another precision if asked."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        wanted = dtype if leaf.is_floating_point() else None
        return leaf.detach().to(device, wanted, copy=True)

    result: Example = tree_map(move, example)
    return result


def tensors_in(tree: object, seen: set[int] | None = None) -> list[Tensor]:
    """All tensors in what a model is given or returns, however they are wrapped."""
    seen = set() if seen is None else seen
    if isinstance(tree, Tensor):
        return [tree]
    if id(tree) in seen or isinstance(tree, str | bytes | int | float | type | nn.Module):
        return []
    seen.add(id(tree))
    inside: list[object] = []
    if isinstance(tree, Mapping):
        inside += tree.values()
    elif isinstance(tree, Iterable):
        inside += tree
    slots = [name for kind in type(tree).__mro__ for name in getattr(kind, "__slots__", ())]
    inside += [getattr(tree, name, None) for name in [*slots, *getattr(tree, "__dict__", ())]]
    return [tensor for value in inside for tensor in tensors_in(value, seen)]
