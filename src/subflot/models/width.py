"""Narrower copies of the bundled networks."""

from subflot.errors import SubflotError


def scaled(channels: int, width: float) -> int:
    """Return so many channels times `width`, rounded, at least 1.

    Example:
        >>> scaled(64, 0.25), scaled(64, 1.0), scaled(3, 0.1)
        (16, 64, 1)
    """
    if not 0 < width < float("inf"):
        raise SubflotError(
            f"width is {width}", hint="a share of the network's channels, as in width=0.25"
        )
    return max(1, round(channels * width))
