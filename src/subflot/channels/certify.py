"""Certify a map on the real model: permuting any free channels must not change what it computes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from subflot.channels.axes import Reason
from subflot.channels.example import Example, arguments, moved, tensors_in
from subflot.channels.resize import build, state_of, take
from subflot.channels.space import ChannelMap
from subflot.errors import ChannelError
from subflot.weights import Weights

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 5e-2}
"""Largest change of an output, relative to the largest, that rounding explains, by the coarsest
precision that the forward pass uses anywhere."""


class Certificate:
    """The real model with shaken weights, and what it computes: what resized ones must match."""

    def __init__(self, model: nn.Module, example: Example, channels: ChannelMap) -> None:
        self.model, self.example, self.channels = model, example, channels
        self.weights = shaken(model)
        floating = (t.dtype for t in state_of(model).values() if t.is_floating_point())
        dtypes = dict.fromkeys((torch.float64, torch.float32, next(floating, torch.float32)))
        for dtype in dtypes:  # A model with its own ideas of precision may not run in double.
            coarsest = _Coarsest()  # type: ignore[no-untyped-call]
            self.dtype = dtype
            try:
                with coarsest:
                    self.before = self._computed(self.weights)
                break
            except (RuntimeError, TypeError) as error:
                failure = error
        else:
            raise ChannelError(f"the model does not run with slightly changed weights: {failure}")
        self.tolerance = max(TOLERANCE[self.dtype], coarsest.tolerance)
        if not any(bool(torch.isfinite(out).any()) for out in self.before):
            raise ChannelError(
                "the output for the example is not finite, so the channel map cannot be certified",
                hint="give an example for which the model computes finite numbers",
            )

    def wrong_spaces(self) -> dict[str, Reason]:
        """Find the spaces whose permutation changes the output; none if the map holds."""
        spaces = self.channels.prunable
        if self._is_invariant(spaces):
            return {}
        reason = Reason("permuting its channels changes the output, and no operation shows why")
        wrong = [space for space in spaces if not self._is_invariant([space])]
        return dict.fromkeys(wrong or spaces, reason)

    def lonely_spaces(self) -> set[str]:
        """Find the spaces with which the output is not finite once one channel of them is left."""
        groups = self.channels.groups()
        if self._is_finite(groups):
            return set()
        return {space for group in groups if not self._is_finite([group]) for space in group}

    def _is_invariant(self, spaces: Iterable[str]) -> bool:
        sizes = self.channels.sizes
        generator = torch.Generator().manual_seed(0)
        order = {space: torch.randperm(sizes[space], generator=generator) for space in spaces}
        after = self._computed(take(self.weights, self.channels, order))
        return alike(self.before, after, self.tolerance)

    def _is_finite(self, groups: Iterable[tuple[str, ...]]) -> bool:
        least = self.channels.kept_sizes(1 - 1e-9)
        kept = {space: torch.arange(least[space]) for group in groups for space in group}
        after = self._computed(take(self.weights, self.channels, kept))
        return all(
            torch.isfinite(other).all() or not torch.isfinite(one).all()
            for one, other in zip(self.before, after, strict=True)
        )

    def _computed(self, weights: Weights) -> list[Tensor]:
        """What the model returns with other weights, in evaluation mode."""
        model = build(self.model, self.channels, weights, share=True).to(self.dtype).eval()
        args, kwargs = arguments(moved(self.example, dtype=self.dtype))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return tensors_in(model(*args, **kwargs))


class _Coarsest(TorchDispatchMode):
    """Notes the coarsest precision that any operation computes in."""

    tolerance = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dim():
            self.tolerance = max(self.tolerance, TOLERANCE.get(out.dtype, 0.0))
        return out


def shaken(model: nn.Module) -> dict[str, Tensor]:
    """Weights near the model's own with no two channels alike, so that no mistake stays hidden."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, tensor in state_of(model).items():
        value = tensor.detach()
        if value.is_floating_point():
            noise = torch.rand(value.shape, generator=generator).to(value.device)
            size = float(torch.linalg.vector_norm(value.float(), 1)) / max(1, value.numel())
            if value.dim() <= 1:  # A gain near zero would hide all that it scales.
                size = max(size, 1.0)
            # Buffers may have to stay positive (variances) or infinite (masks): only scale them.
            is_free = isinstance(tensor, nn.Parameter) or not value.any()
            shift = 0.1 * (size or 1.0) if is_free else 0.0
            value = value.to(torch.float64, copy=True)
            value = value.addcmul_(value, noise, value=0.2).add_(noise, alpha=shift)
        else:
            value = value.clone()
        weights[name] = value
    return weights


def alike(before: list[Tensor], after: list[Tensor], tolerance: float) -> bool:
    """Whether outputs agree up to rounding; what is not finite must be so in the same places."""
    return len(before) == len(after) and all(
        one.shape == other.shape and _close(one, other, tolerance)
        for one, other in zip(before, after, strict=True)
    )


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.is_floating_point():
        return torch.equal(one, other)
    one, other = one.double(), other.double()
    finite = torch.isfinite(one)
    if not torch.equal(one[~finite].nan_to_num(), other[~finite].nan_to_num()):
        return False
    error = (one - other)[finite].abs()
    return not error.numel() or float(error.max()) <= tolerance * float(one[finite].abs().max())
