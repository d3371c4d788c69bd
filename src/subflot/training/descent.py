"""Steps of gradient descent."""

from collections.abc import Sequence

import torch
from torch import Tensor

from subflot.task import LocalTraining


class Descent:
    """Gradient descent with momentum and weight decay, to the bit as `torch.optim.SGD` does it.

    Torch's optimisers load its compiler at their first step, which takes as long as some clients
    train, and they do more in Python at every step.
    """

    def __init__(self, parameters: Sequence[Tensor], local: LocalTraining) -> None:
        self.parameters = parameters
        self.local = local
        self.velocity: dict[Tensor, Tensor] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move all parameters that have a gradient."""
        moving: list[Tensor] = [p for p in self.parameters if p.grad is not None]
        slopes = [p.grad for p in moving if p.grad is not None]
        if not moving:
            return
        if self.local.weight_decay:
            slopes = list(torch._foreach_add(slopes, moving, alpha=self.local.weight_decay))
        if self.local.momentum:
            slopes = self._with_momentum(moving, slopes)
        torch._foreach_add_(moving, slopes, alpha=-self.local.learning_rate)

    def _with_momentum(self, moving: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
        pairs = [
            (self.velocity[p], slope)
            for p, slope in zip(moving, slopes, strict=True)
            if p in self.velocity
        ]
        if pairs:
            old, new = map(list, zip(*pairs, strict=True))
            torch._foreach_mul_(old, self.local.momentum)
            torch._foreach_add_(old, new)
        for p, slope in zip(moving, slopes, strict=True):
            if p not in self.velocity:
                self.velocity[p] = slope.clone()
        return [self.velocity[p] for p in moving]
