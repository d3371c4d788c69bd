"""Find the layers whose scale no normalisation takes away, by numbers."""

import torch
from torch import Tensor

from subflot.channels.certify import Certificate
from subflot.channels.example import Example, arguments, moved, tensors_in
from subflot.channels.flow import Origin
from subflot.channels.resize import build, state_of
from subflot.channels.space import ChannelMap

PROBES = 4
"""Random directions in which the change of the outputs is looked at."""
LEAST = 1e-3
"""Relative change of the outputs, per relative change of a weight's scale, that is none: the small
number that norms add to a variance explains so much."""
BATCH = 8
"""Examples that batch statistics are taken over: two are always one above and one below."""


class Invariance:
    """A certified model in training mode, where norms take statistics of what they are given."""

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

    def scaled_inputs(self, channels: ChannelMap) -> frozenset[Origin]:
        """Name the input axes that can lose channels and whose tensor's scale shows in the output.

        By Euler's theorem a function does not depend on the scale of W where the inner product of
        W and its gradient is zero; one backward pass tells it of all tensors.
        """
        unmade = {
            s: channels.members(s)[0] for s in channels.prunable if s not in channels.producers
        }
        makers = {origin for made in channels.producers.values() for origin in made}
        found = {
            (name, axis)
            for name, axis in channels.inputs - makers - set(unmade.values())
            if axis in channels.moving[name]
        }
        names = sorted({name for name, _ in found})
        shown = self._sensitivity(names, channels) if names else {}
        return frozenset(o for o in found if shown.get(o[0], 1.0) > LEAST)

    def _sensitivity(self, names: list[str], channels: ChannelMap) -> dict[str, float]:
        """Relative change of the outputs when the scale of a tensor changes; of those known."""
        for example in (_varied(self.certificate.example), self.certificate.example):
            for is_training in (True, False):
                try:
                    return self._measured(names, channels, example, is_training)
                except (RuntimeError, TypeError, ValueError, IndexError):
                    continue
        return {}

    def _measured(
        self, names: list[str], channels: ChannelMap, example: Example, is_training: bool
    ) -> dict[str, float]:
        whole = self.certificate
        model = build(whole.model, channels, whole.weights).to(whole.dtype).train(is_training)
        state = state_of(model)
        tensors = [state[name].requires_grad_() for name in names]
        args, kwargs = arguments(moved(example, dtype=whole.dtype))
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            outputs = [t for t in tensors_in(model(*args, **kwargs)) if t.requires_grad]
            if not outputs:
                return {}
            size = sum(float(out.detach().square().sum()) for out in outputs)
            squares: dict[str, float] = {}
            for _ in range(PROBES):
                total = sum((out * torch.randn_like(out)).sum() for out in outputs)
                assert isinstance(total, Tensor)
                slopes = torch.autograd.grad(total, tensors, retain_graph=True, allow_unused=True)
                for name, tensor, slope in zip(names, tensors, slopes, strict=True):
                    if slope is not None and slope.any():  # Else the outputs tell nothing of it.
                        moved_by = float((tensor.detach() * slope).sum())
                        squares[name] = squares.get(name, 0.0) + moved_by**2 / PROBES
        return {name: (square / size) ** 0.5 for name, square in squares.items()}


def _varied(example: Example) -> Example:
    """More examples of the same kind: the given ones over and over, each time a little changed."""
    args, kwargs = arguments(example)
    lengths = {len(t) for t in tensors_in((args, kwargs)) if t.dim()}
    if len(lengths) != 1:
        return example
    generator = torch.Generator().manual_seed(0)

    def more(value: object) -> object:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        times = -(-BATCH // max(1, len(value)))
        many = value.repeat(times, *(1,) * (value.dim() - 1))
        if many.is_floating_point():
            noise = torch.randn(many.shape, generator=generator).to(many)
            return many + noise * (many.std() if many.numel() > 1 else 1)
        order = torch.randperm(many.numel(), generator=generator).to(many.device)
        return many.flatten()[order].view_as(many)

    if isinstance(example, Tensor):
        varied = more(example)
        assert isinstance(varied, Tensor)
        return varied
    return {k: more(v) for k, v in kwargs.items()} if kwargs else tuple(more(a) for a in args)
