"""What the paper prints of a network's cost, beside what we count."""

from collections.abc import Iterator
from dataclasses import dataclass

from subflot.channels.cost import Cost

TOLERANCE = 0.01
"""A difference above this share is explained."""


@dataclass(frozen=True)
class Cell:
    """One number of the paper and ours."""

    quantity: str
    width: str
    printed: float
    ours: float
    difference: float
    reason: str


@dataclass(frozen=True)
class PrintedCost:
    """Table "Resource Efficiency": full width, and the mean over pruning rates 0 to 3/4."""

    parameters: tuple[float, float]
    multiply_adds: tuple[float, float]

    def compare(self, full: Cost, mean: Cost) -> Iterator[Cell]:
        """Put every printed number beside ours; a difference above one percent gets its reason."""
        for place, (width, ours) in enumerate((("full", full), ("mean", mean))):
            for quantity in ("parameters", "multiply_adds"):
                printed, counted = getattr(self, quantity)[place], getattr(ours, quantity)
                difference = counted / printed - 1
                reason = _reason(quantity, printed, ours) if abs(difference) > TOLERANCE else ""
                yield Cell(quantity, width, printed, counted, difference, reason)


def _reason(quantity: str, printed: float, ours: Cost) -> str:
    with_elementwise = ours.multiply_adds + ours.elementwise
    if quantity == "multiply_adds" and abs(with_elementwise / printed - 1) <= TOLERANCE:
        return (
            "the printed count adds batch norm, activations and pooling; with these ours is "
            f"{with_elementwise / 1e6:.2f} million"
        )
    return "not explained"
