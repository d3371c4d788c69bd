"""Arithmetic on named tensors."""

from collections.abc import Mapping

from torch import Tensor

Weights = Mapping[str, Tensor]
"""A state dict, read-only by convention."""


def num_bytes(weights: Weights) -> int:
    """Bytes that the tensors take when sent as they are."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
