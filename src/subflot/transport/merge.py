"""Bring aligned models together: two into one (Eq. 6), many into their mean (Eq. 9)."""

import torch
from torch import Tensor

from subflot.errors import SubflotError
from subflot.weights import Weights


@torch.no_grad()
def fuse(aligned: Weights, own: Weights, global_share: float) -> dict[str, Tensor]:
    """Mix a model that was aligned to a client's with the client's own (Eq. 6).

    Tensors that hold no fractions, such as counters, are the client's.

    Args:
        aligned: the global model in the client's shapes.
        own: the client's model.
        global_share: alpha, what the aligned model counts, from 0 to 1.
    """
    if not 0 <= global_share <= 1:
        raise SubflotError(f"global_share is {global_share}", hint="it lies between 0 and 1")
    return {
        name: torch.lerp(tensor, aligned[name].to(tensor), global_share)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in own.items()
    }


class RunningMean:
    """The weighted mean of models that come one by one (Eq. 9); it holds their sum and no more.

    Example:
        >>> mean = RunningMean()
        >>> mean.add({"w": torch.tensor([1.0])}, 1)
        >>> mean.add({"w": torch.tensor([4.0])}, 2)
        >>> mean.result()
        {'w': tensor([3.])}
    """

    def __init__(self) -> None:
        self._sum: dict[str, Tensor] = {}
        self._weight = 0.0

    @torch.no_grad()
    def add(self, weights: Weights, weight: float) -> None:
        """Take in one more model; `weight` may be any positive number, as that of its examples."""
        if not weight > 0:
            raise SubflotError(f"a model with weight {weight} cannot be merged")
        if self._sum and self._sum.keys() != weights.keys():
            raise SubflotError("models with different tensors cannot be merged")
        for name, tensor in weights.items():
            if name not in self._sum:
                is_fraction = tensor.is_floating_point()
                self._sum[name] = tensor * weight if is_fraction else tensor.clone()
            elif tensor.is_floating_point():
                self._sum[name].add_(tensor, alpha=weight)
        self._weight += weight

    @torch.no_grad()
    def result(self) -> dict[str, Tensor]:
        """The mean so far, in tensors of its own; counters are those of the first model."""
        if not self._sum:
            raise SubflotError("there is no model to take the mean of")
        return {
            name: total / self._weight if total.is_floating_point() else total.clone()
            for name, total in self._sum.items()
        }
