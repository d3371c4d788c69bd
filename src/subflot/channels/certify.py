"""Certify a map on the real model: permuting any free channels must not change what it computes."""

import contextlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from subflot.channels.axes import Reason
from subflot.channels.record import Example, arguments, moved, outputs
from subflot.channels.resize import build, state_of, take
from subflot.channels.space import ChannelMap
from subflot.errors import ChannelError

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Largest change of an output, relative to the largest output, that rounding can explain."""


def wrong_spaces(model: nn.Module, example: Example, channels: ChannelMap) -> dict[str, Reason]:
    """Find the spaces whose permutation changes the output; none if the map holds."""
    weights = shaken(model)
    for dtype in TOLERANCE:  # A model with its own ideas of precision may not run in double.
        with contextlib.suppress(RuntimeError, TypeError):
            before = computed(build(model, channels, weights, share=True), example, dtype)
            break
    else:
        raise ChannelError("the model does not run on the example with shaken weights")
    if not all(torch.isfinite(out).all() for out in before if out.is_floating_point()):
        raise ChannelError(
            "the output for the example is not finite, so the channel map cannot be certified",
            hint="give an example for which the model computes finite numbers",
        )

    def holds(spaces: Iterable[str]) -> bool:
        generator = torch.Generator().manual_seed(0)
        order = {s: torch.randperm(channels.sizes[s], generator=generator) for s in spaces}
        permuted = build(model, channels, take(weights, channels, order), share=True)
        return alike(before, computed(permuted, example, dtype), TOLERANCE[dtype])

    if holds(channels.prunable):
        return {}
    reason = Reason("permuting its channels changes the output, and no operation shows why")
    wrong = [space for space in channels.prunable if not holds([space])]
    return dict.fromkeys(wrong or channels.prunable, reason)


def shaken(model: nn.Module) -> dict[str, Tensor]:
    """Weights near the model's own with no two channels alike, so that no mistake stays hidden."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, tensor in state_of(model).items():
        value = tensor.detach()
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=generator).to(value.device)
            size = float(torch.linalg.vector_norm(value.float(), 1)) / max(1, value.numel())
            # Buffers may have to stay positive (variances) or infinite (masks): only scale them.
            shift = 0.1 * (size or 1.0) if isinstance(tensor, nn.Parameter) or not size else 0.0
            value = value.to(torch.float64, copy=True)
            value = value.addcmul_(value, noise, value=0.2).add_(noise, alpha=shift)
        else:
            value = value.clone()
        weights[name] = value
    return weights


def computed(model: nn.Module, example: Example, dtype: torch.dtype) -> list[Tensor]:
    """What a model returns for an example, in evaluation mode and in the given precision."""
    model = model.to(dtype).eval()
    args, kwargs = arguments(moved(example, dtype=dtype))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return outputs(model(*args, **kwargs))


def alike(before: list[Tensor], after: list[Tensor], tolerance: float) -> bool:
    """Whether outputs agree up to rounding."""
    return all(
        one.shape == other.shape
        and float((one.double() - other.double()).abs().max()) <= tolerance * float(one.abs().max())
        for one, other in zip(before, after, strict=True)
        if one.numel()
    )
