"""Distances between the channels of two models."""

import torch
from torch import Tensor

from subflot.errors import SubflotError

NOISE = 256
"""Squared distances below this many roundings of the squared norms are computed anew."""
CHUNK = 2**22
"""Numbers held at once while they are."""


@torch.no_grad()
def distances(source: Tensor, target: Tensor, *, name: str = "") -> Tensor:
    """Return the Euclidean distance of every source row to every target row.

    One matrix product does most of the work. It loses the digits of rows that are almost equal, so
    these pairs are subtracted one by one; equal rows have distance exactly zero.

    Args:
        source: one row per channel, shape (source, ...).
        target: one row per channel, shape (target, ...), rows as long as those of `source`.
        name: the layer, for the error message.

    Returns:
        Shape (source, target), on the device of the rows, in float32 or the wider dtype given.
    """
    dtype = torch.promote_types(torch.promote_types(source.dtype, target.dtype), torch.float32)
    source, target = (rows.flatten(1).to(dtype) for rows in (source, target))
    source_norm, target_norm = (
        torch.linalg.vector_norm(rows, dim=1).square_() for rows in (source, target)
    )
    largest = float(torch.maximum(source_norm.max(), target_norm.max()))
    limits = torch.finfo(dtype)
    if not limits.tiny / limits.eps**2 <= largest <= limits.max * limits.eps:
        return _rescaled(source, target, name)

    squared: Tensor = (source_norm[:, None] + target_norm).addmm_(source, target.T, alpha=-2)
    # Rows that are almost equal have almost equal norms: one of them tells the noise of the pair.
    pairs = (squared < (3 * NOISE * limits.eps * source_norm)[:, None]).nonzero()
    if len(pairs) > 4 * sum(squared.shape):
        # Most rows are alike, as in a constant layer: subtract everywhere.
        return torch.cdist(source, target, compute_mode="donot_use_mm_for_euclid_dist")
    squared.clamp_(min=0)
    chunks = pairs.split(max(1, CHUNK // max(1, source.shape[1]))) if len(pairs) else ()
    for chunk in chunks:
        rows, columns = chunk.unbind(1)
        difference = source[rows].sub_(target[columns])
        squared[rows, columns] = torch.linalg.vecdot(difference, difference)
    return squared.sqrt_()


def _rescaled(source: Tensor, target: Tensor, name: str) -> Tensor:
    """Handle rows whose squares leave the range of their dtype, or that are not numbers."""
    largest = max(float(rows.abs().max()) if rows.numel() else 0.0 for rows in (source, target))
    if not (source.isfinite().all() and target.isfinite().all()):
        raise not_finite(f"the weights of {name!r} hold" if name else "the weights hold")
    if largest == 0:
        return source.new_zeros(len(source), len(target))
    # Twice, for the inverse of a very small number is not finite.
    root = largest**0.5
    return distances(source / root / root, target / root / root, name=name).mul_(root).mul_(root)


def not_finite(what: str) -> SubflotError:
    """Return the error for values that no distance can be measured between."""
    return SubflotError(
        f"{what} NaN or infinity",
        hint="training may have diverged; a lower learning rate or clipped gradients often help",
    )
