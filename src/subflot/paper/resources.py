"""Table "Resource Efficiency": what a round costs a client, counted rather than run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from subflot.channels import trace
from subflot.channels.cost import Cost, cost, mean_cost
from subflot.models import MODELS

PRUNING_RATES = (0.0, 0.25, 0.5, 0.75)
TITLES = {"vgg11": "VGG11", "mobilenetv2": "MobileNetV2", "resnet18": "ResNet18"}
QUANTITIES = {
    "parameters": "parameters to send",
    "multiply_adds": "multiply-adds per example",
}
WIDTHS = {"mean": "SubFLOT", "full": "FedAvg"}

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


PRINTED = {
    "vgg11": PrintedCost((9.23e6, 4.33e6), (153.5e6, 72.35e6)),
    "mobilenetv2": PrintedCost((2.24e6, 1.07e6), (6.52e6, 3.22e6)),
    "resnet18": PrintedCost((11.18e6, 5.24e6), (37.18e6, 17.83e6)),
}
"""By network."""


def resources() -> dict[str, Any]:
    """Count the cells, and describe the table as `tables.sheet` does."""
    cells = []
    for model in TITLES:
        full, mean = _costs(model)
        for printed in _printed(model, full, mean):
            cells.append({"column": model, **printed})
    return {
        "name": "resources",
        "title": "What a round costs a client, at full width and on average over the pruning rates",
        "source": "Table 6",
        "unit": "million",
        "notes": [
            "Sizes are millions of parameters, which the paper calls MB. Multiply-adds are those "
            "of one 32x32 image; like the paper's they count batch norm, activations and pooling."
        ],
        "rows": [
            {"name": f"{width}-{quantity}", "title": f"{method}, {title}", "group": quantity}
            for quantity, title in QUANTITIES.items()
            for width, method in WIDTHS.items()
        ],
        "columns": [{"name": model, "title": title} for model, title in TITLES.items()],
        "cells": cells,
    }


def _costs(model: str) -> tuple[Cost, Cost]:
    network = MODELS[model]
    module, example = network.model(), network.example()
    channels = trace(module, example)
    costs = [cost(module, channels, (example[:1],), rate) for rate in PRUNING_RATES]
    return costs[0], mean_cost(costs)


def _printed(model: str, full: Cost, mean: Cost) -> list[dict[str, Any]]:
    found = []
    for place, (width, ours) in enumerate((("full", full), ("mean", mean))):
        counted = (ours.parameters, ours.multiply_adds + ours.elementwise)
        found += [
            {
                "row": f"{width}-{quantity}",
                "values": [count / 1e6],
                "printed": getattr(PRINTED[model], quantity)[place] / 1e6,
            }
            for quantity, count in zip(QUANTITIES, counted, strict=True)
        ]
    return found


def _reason(quantity: str, printed: float, ours: Cost) -> str:
    with_elementwise = ours.multiply_adds + ours.elementwise
    if quantity == "multiply_adds" and abs(with_elementwise / printed - 1) <= TOLERANCE:
        return (
            "the printed count adds batch norm, activations and pooling; with these ours is "
            f"{with_elementwise / 1e6:.2f} million"
        )
    return "not explained"
