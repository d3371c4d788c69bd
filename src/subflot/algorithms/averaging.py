"""Ways to merge uploads into a global model. All take them one by one and hold sums only."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from subflot.algorithms.base import Arrival
from subflot.channels import ChannelMap, Channels
from subflot.channels.resize import add_at, check_kept, places, spread
from subflot.weights import Weights

Restriction = Callable[[Arrival, str, Tensor], Tensor]
"""Upload, tensor and a true for every entry that it has -> which of them count."""


@torch.no_grad()
def owner_average(
    weights: Weights,
    channels: ChannelMap,
    arrivals: Iterable[Arrival],
    restrict: Restriction | None = None,
) -> dict[str, Tensor]:
    """Average each entry over the clients that trained it, by their examples; keep the rest.

    Counters, which hold no fractions, are those of the global model.
    """
    return owner_mean(weights, owner_sums(weights, channels, arrivals, restrict))


@torch.no_grad()
def owner_sums(
    weights: Weights,
    channels: ChannelMap,
    arrivals: Iterable[Arrival],
    restrict: Restriction | None = None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Add up uploads by their examples.

    Returns for each tensor the sum, and the examples of those who own each entry, of length one
    along axes without channels.
    """
    total: dict[str, Tensor] = {}
    # Examples behind each entry: of those who own a tensor whole, and of the others.
    everywhere: dict[str, float] = {}
    mass: dict[str, Tensor] = {}
    for arrival in arrivals:
        upload, share = arrival.upload, float(arrival.upload.num_examples)
        check_kept(channels, upload.kept)
        for name, value in upload.weights.items():
            if not value.is_floating_point():
                continue
            where = places(name, value, channels, upload.kept)
            counted = torch.ones((1,) * value.ndim, dtype=torch.bool, device=value.device)
            if restrict is not None:
                counted = restrict(arrival, name, counted)
                value = value * counted
            if name not in total:
                total[name] = value.new_zeros(weights[name].shape)
            add_at(total[name], where, value, share)
            if restrict is None and not where:
                everywhere[name] = everywhere.get(name, 0.0) + share
                continue
            if name not in mass:
                mass[name] = value.new_zeros(_lengths(name, weights, channels), dtype=torch.float64)
            add_at(mass[name], where, counted.to(torch.float64), share)
    sums = {}
    for name, summed in total.items():
        examples = mass.get(name, summed.new_zeros((), dtype=torch.float64))
        sums[name] = (summed, examples + everywhere.get(name, 0.0))
    return sums


@torch.no_grad()
def owner_mean(weights: Weights, sums: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Divide sums by the examples behind each entry; what nobody owns stays as it is."""
    merged = dict(weights)
    for name, (summed, examples) in sums.items():
        mean = summed / examples.clamp(min=1e-300).to(summed)
        merged[name] = torch.where(examples > 0, mean, weights[name])
    return merged


def _lengths(name: str, weights: Weights, channels: ChannelMap) -> list[int]:
    """The shape of a tensor, with one for axes without channels: who owns one place owns all."""
    axes = channels.axes[name]
    return [
        length if segments else 1
        for length, segments in zip(weights[name].shape, axes, strict=True)
    ]


@torch.no_grad()
def residual_recovery(
    weights: Weights, channels: ChannelMap, arrivals: Iterable[Arrival]
) -> dict[str, Tensor]:
    """Fill each upload up with the global model and average over all clients, by their examples.

    An entry that few clients trained moves little: against the owners' average its step is
    shortened to the share of the examples that its owners hold.
    """
    total: dict[str, Tensor] = {}
    touched: dict[str, Tensor] = {}
    examples = 0.0
    for arrival in arrivals:
        upload, share = arrival.upload, float(arrival.upload.num_examples)
        values, owned = placed(upload.weights, weights, channels, upload.kept)
        examples += share
        for name, old in weights.items():
            if not old.is_floating_point():
                continue
            mine = owned.get(name, torch.zeros((), dtype=torch.bool))
            filled = torch.where(mine, values.get(name, old), old)
            if name not in total:
                total[name] = filled * share
                touched[name] = mine
            else:
                total[name].add_(filled, alpha=share)
                touched[name] = touched[name] | mine
    return {
        # What nobody trained stays to the bit; its mean with itself would be rounded.
        name: torch.where(touched[name], total[name] / examples, old) if name in total else old
        for name, old in weights.items()
    }


def placed(
    part: Weights, weights: Weights, channels: ChannelMap, kept: Channels
) -> tuple[Weights, Weights]:
    """Full-size values, zero where the part owns nothing, and who owns what.

    Ownership has length one along axes that are not cut. A part that is the whole comes back as
    it is, and its ownership as one entry.
    """
    if all(tensor.shape == weights[name].shape for name, tensor in part.items()) and all(
        torch.equal(index, torch.arange(channels.sizes[space])) for space, index in kept.items()
    ):
        return part, {name: torch.ones((), dtype=torch.bool) for name in part}
    return spread(part, weights, channels, kept)
