"""Cut channels out of weights, put them back, and build a module of the width of its weights."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from subflot.channels.space import ChannelMap, Channels, Segments
from subflot.errors import ChannelError
from subflot.weights import Weights


def take(weights: Weights, channels: ChannelMap, kept: Channels) -> dict[str, Tensor]:
    """Cut out the kept channels; spaces that `kept` does not name stay whole.

    Example:
        >>> from subflot.channels.space import Segment
        >>> channels = ChannelMap({"w": (None, (Segment("h", repeat=2),))}, {"h": 3})
        >>> take({"w": torch.arange(6).view(1, 6)}, channels, {"h": torch.tensor([2, 0])})
        {'w': tensor([[4, 5, 0, 1]])}
    """
    check_kept(channels, kept)
    part = {}
    for name, tensor in weights.items():
        if isinstance(tensor, Tensor):  # A state dict may hold other things a module asked for.
            for axis, index in _indices(name, channels, kept, tensor.device):
                tensor = tensor.index_select(axis, index)
        part[name] = tensor
    return part


def put(
    part: Weights, like: Weights, channels: ChannelMap, kept: Channels
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Write a part back in place; return full-size values and who owns what.

    The values are zero where the part owns nothing; the second result is true where it does.
    """
    values, owned = spread(part, like, channels, kept)
    return values, {name: mine.expand(like[name].shape).clone() for name, mine in owned.items()}


def spread(
    part: Weights, like: Weights, channels: ChannelMap, kept: Channels
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Do as `put`, with ownership of length one along axes that are owned whole or not cut."""
    check_kept(channels, kept)
    values, owned = {}, {}
    for name, tensor in part.items():
        if not isinstance(tensor, Tensor):
            values[name] = tensor
            continue
        full = like[name].shape
        mine = torch.ones((1,) * len(full), dtype=torch.bool, device=tensor.device)
        for axis, index in places(name, tensor, channels, kept):
            wider = tensor.new_zeros(_reshaped(tensor, axis, full[axis]))
            tensor = wider.index_copy_(axis, index, tensor)
            along = torch.zeros(full[axis], dtype=torch.bool, device=tensor.device)
            along[index] = True
            mine = mine & along.view(-1, *(1,) * (len(full) - axis - 1))
        values[name] = tensor
        owned[name] = mine
    return values, owned


Places = Sequence[tuple[int, Tensor]]
"""Axes, and which entries along each."""


def places(name: str, part: Tensor, channels: ChannelMap, kept: Channels) -> Places:
    """Say where the entries of a part lie in the whole tensor: along which axes, which entries.

    Axes along which it is whole, in the order of the whole, are left out.
    """
    found = []
    for axis, index in _indices(name, channels, kept, part.device) if kept else ():
        if part.shape[axis] != len(index):
            raise ChannelError(
                f"tensor `{name}` has {part.shape[axis]} entries on axis {axis}, but the "
                f"kept channels take {len(index)}"
            )
        segments = channels.axes[name][axis] or ()
        is_whole = len(index) == sum(segment.size(channels.sizes) for segment in segments)
        if not (is_whole and _is_run(index)):
            found.append((axis, index))
    return found


def add_at(total: Tensor, where: Places, part: Tensor, factor: float) -> None:
    """Add a multiple of a part to a tensor in place, at the places where it lies.

    Example:
        >>> total = torch.zeros(2, 3)
        >>> add_at(total, [(1, torch.tensor([2, 0]))], torch.tensor([[1.0, 2.0]]), 10)
        >>> total
        tensor([[20.,  0., 10.],
                [20.,  0., 10.]])

    Args:
        total: is changed.
        where: of each axis along which the part is not whole, its entries, each once.
        part: of length one where all entries along an axis are the same.
        factor: what it is multiplied by.
    """
    scattered = []
    for axis, index in where:
        if _is_run(index):  # A view of the tensor, which needs no copies.
            total = total.narrow(axis, int(index[0]), len(index))
        else:
            scattered.append((axis, index))
    if not scattered:
        total.add_(part, alpha=factor)
        return
    (axis, index), *others = scattered
    for other, entries in others:
        part = part.expand(_reshaped(part, other, len(entries)))
        wider = part.new_zeros(_reshaped(part, other, total.shape[other]))
        part = wider.index_copy_(other, entries, part)
    total.index_copy_(axis, index, total.index_select(axis, index).add_(part, alpha=factor))


def _is_run(index: Tensor) -> bool:
    """Whether entries follow each other."""
    start = int(index[0])
    return torch.equal(index, torch.arange(start, start + len(index), device=index.device))


def _reshaped(tensor: Tensor, axis: int, length: int) -> tuple[int, ...]:
    """The shape of a tensor with another length along one axis."""
    return (*tensor.shape[:axis], length, *tensor.shape[axis + 1 :])


def check_kept(channels: ChannelMap, kept: Channels) -> None:
    """Raise an error if the kept channels do not fit the map."""
    for space, index in kept.items():
        if space not in channels.sizes:
            raise ChannelError(
                f"there is no space `{space}`", hint=f"known: {', '.join(channels.sizes)}"
            )
        size = channels.sizes[space]
        if space in channels.frozen and not torch.equal(index.cpu(), torch.arange(size)):
            raise ChannelError(f"space `{space}` cannot be cut: {channels.frozen[space]}")
        if index.device.type != "meta" and (
            not len(index) or int(index.min()) < 0 or int(index.max()) >= size
        ):
            raise ChannelError(
                f"cannot keep {len(index)} channels of space `{space}`",
                hint=f"give at least one index, each from 0 to {size - 1}",
            )
        least = channels.least.get(space, 1)
        if len(index) < least:
            raise ChannelError(f"space `{space}` needs at least {least} channels to run")
    for group in channels.coupled:
        counts = {s: len(kept[s]) if s in kept else channels.sizes[s] for s in group}
        first = group[0]
        if any(
            counts[s] * channels.sizes[first] != counts[first] * channels.sizes[s] for s in group
        ):
            wanted = ", ".join(f"{counts[s]} of {channels.sizes[s]} in `{s}`" for s in group)
            raise ChannelError(
                f"the model needs these spaces in proportion: {wanted}",
                hint="ChannelMap.kept_sizes gives sizes that fit together",
            )


def _indices(
    name: str, channels: ChannelMap, kept: Channels, device: torch.device
) -> Iterable[tuple[int, Tensor]]:
    """The entries to take along each axis of a tensor that changes."""
    if name not in channels.axes:
        raise ChannelError(f"tensor `{name}` is not in the channel map")
    for axis, segments in enumerate(channels.axes[name]):
        if segments is not None and any(segment.space in kept for segment in segments):
            yield axis, _entries(segments, channels.sizes, kept).to(device)


def _entries(segments: Segments, sizes: Mapping[str, int], kept: Channels) -> Tensor:
    """The entries of one axis that belong to kept channels."""
    parts, start = [], 0
    for segment in segments:
        size = 1 if segment.space is None else sizes[segment.space]
        index = torch.arange(size)
        if segment.space is not None and segment.space in kept:
            index = kept[segment.space].cpu()
        copies = torch.arange(segment.copies).view(-1, 1, 1) * size
        inner = torch.arange(segment.repeat).view(1, 1, -1)
        parts.append(start + ((copies + index.view(1, -1, 1)) * segment.repeat + inner).flatten())
        start += segment.size(sizes)
    return torch.cat(parts)


def build(
    template: nn.Module, channels: ChannelMap, weights: Weights, *, share: bool = False
) -> nn.Module:
    """Build a module whose widths are those of `weights`: same class and forward, smaller layers.

    Args:
        template: the model that was traced; it is not changed.
        channels: its map.
        weights: a state dict of any width the map allows.
        share: use the given tensors themselves instead of copies, so that training changes them.
    """
    sizes = channels.sizes_of(weights)
    tensors = {
        name: tensor.detach() if share else tensor.detach().clone()
        for name, tensor in weights.items()
        if isinstance(tensor, Tensor)
    }
    return resized(template, channels, tensors, sizes)


def resized(
    template: nn.Module, channels: ChannelMap, tensors: Weights, sizes: Mapping[str, int]
) -> nn.Module:
    """Copy a module with other tensors, and its settings changed to sizes that are known."""
    model = copied(template, tensors, lambda loose: loose.detach().clone())
    for name, counted in channels.attributes.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        setattr(module, attribute, _resized(getattr(module, attribute), counted, sizes))
    return model


def _resized(
    value: object, counted: tuple[Segments | None, ...], sizes: Mapping[str, int]
) -> object:
    """A setting that counts channels, for other sizes; a tuple stays a tuple."""
    old = list(value) if isinstance(value, tuple | list) else [value]
    new = [
        entry if segments is None else sum(segment.size(sizes) for segment in segments)
        for entry, segments in zip(old, counted, strict=True)
    ]
    return type(value)(new) if isinstance(value, tuple | list) else new[0]


def copied(model: nn.Module, tensors: Weights, loosen: Callable[[Tensor], Tensor]) -> nn.Module:
    """Copy a module with other tensors in its state dict.

    Tensors that the state dict does not hold may carry a graph, which cannot be copied: `loosen`
    makes the copies of those.
    """
    memo: dict[int, object] = {}
    for name, old in state_of(model).items():
        if is_lazy(old):
            raise ChannelError(f"`{name}` has no shape yet", hint="run the lazy module once first")
        new: Tensor = tensors[name].detach()
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
        memo.setdefault(id(old), new)
    for module in model.modules():
        for loose in _loose_tensors(vars(module).values()):
            memo.setdefault(id(loose), loosen(loose))
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ChannelError(f"{type(model).__name__} cannot be copied: {error}") from error


def _loose_tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """Tensors in attributes of a module, also inside plain containers."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            yield from _loose_tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _loose_tensors(value)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a state dict themselves, so that shared ones can be told."""
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}
