"""What a privacy setting promises: it holds, or it is refused.

Clients clip and add noise before anything leaves them (Flower's mods). Here is what can be known
elsewhere: whether the settings can give what they name, and whether an upload can be what a client
that keeps to them sends.
"""

import math

import torch

from subflot.algorithms.base import Download, Upload
from subflot.errors import SubflotError

CERTAIN = 8.0
"""Gaussian noise is longer than expected by so many standard deviations once in 10^13 messages."""


def check_noise(clipping_norm: float, sensitivity: float, epsilon: float, delta: float) -> None:
    """Refuse settings of `local-dp` that do not give (epsilon, delta) for one message."""
    least = 2 * clipping_norm
    if not sensitivity >= least:
        raise SubflotError(
            f"sensitivity is {sensitivity:g}, and two changes that are clipped to "
            f"{clipping_norm:g} can lie {least:g} apart",
            hint=f"set flower.sensitivity={least:g}, or a smaller clipping_norm",
        )
    if not delta < 1:
        raise SubflotError(f"delta is {delta:g}", hint="less than 1; often 1e-5")
    found = _delta_of(noise(1.0, epsilon, delta), epsilon)
    if not found <= delta:
        raise SubflotError(
            f"epsilon is {epsilon:g}, where Flower's noise gives a delta of {found:.2g}, not "
            f"{delta:g}",
            hint="its formula holds for small epsilon: set flower.epsilon=1, or less",
        )


def noise(sensitivity: float, epsilon: float, delta: float) -> float:
    """Return the standard deviation of the noise that Flower's `LocalDpMod` adds."""
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _delta_of(deviation: float, epsilon: float) -> float:
    """Return the delta that Gaussian noise gives where the sensitivity is 1.

    Exactly: Balle and Wang, "Improving the Gaussian mechanism", 2018, theorem 8.

    Example:
        >>> round(_delta_of(3.73, 1.0) * 1e5, 1)
        1.0
    """
    if epsilon > 100:  # Beyond what is privacy, and what floats hold.
        return 1.0
    below = (0.5 / deviation - epsilon * deviation, -0.5 / deviation - epsilon * deviation)
    first, second = (math.erfc(-x / math.sqrt(2)) / 2 for x in below)
    return first - math.exp(epsilon) * second


@torch.no_grad()
def fault_of_change(
    sent: Download, upload: Upload, clipping_norm: float, deviation: float = 0.0
) -> str:
    """Say whether an upload lies further from what was sent than clipping and noise allow.

    Args:
        sent: what the client received, with its values.
        upload: what came back.
        clipping_norm: the longest change.
        deviation: of the noise that the client was to add to every value.
    """
    squares, count, rounding = 0.0, 0, 0.0
    for name, before in sent.weights.items():
        if not before.is_floating_point():
            continue
        after = upload.weights[name]
        if after.shape != before.shape:
            return f"tensor `{name}` was cut by the client, so that its change cannot be clipped"
        squares += float((after.double() - before.double()).square().sum())
        count += before.numel()
        rounding += torch.finfo(before.dtype).eps * float(before.double().norm())
    length = math.sqrt(squares) if squares >= 0 else math.nan
    most = clipping_norm * 1.001 + rounding + deviation * (math.sqrt(count) + CERTAIN)
    if length > most:
        return f"its change is {length:.4g} long, and clipping allows {most:.4g}"
    return ""
