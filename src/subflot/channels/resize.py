"""Cut channels out of weights, put them back, and build a module of the width of its weights."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping

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
        for axis, index in _indices(name, channels, kept, tensor.device):
            if tensor.shape[axis] != len(index):
                raise ChannelError(
                    f"tensor `{name}` has {tensor.shape[axis]} entries on axis {axis}, but the "
                    f"kept channels take {len(index)}"
                )
            wider = (*tensor.shape[:axis], full[axis], *tensor.shape[axis + 1 :])
            tensor = tensor.new_zeros(wider).index_copy_(axis, index, tensor)
            along = torch.zeros(full[axis], dtype=torch.bool, device=tensor.device)
            along[index] = True
            mine = mine & along.view(-1, *(1,) * (len(full) - axis - 1))
        values[name] = tensor
        owned[name] = mine
    return values, owned


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
