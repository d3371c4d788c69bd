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

PRINTED = {
    "vgg11": {"full": (9.23e6, 153.5e6), "mean": (4.33e6, 72.35e6)},
    "mobilenetv2": {"full": (2.24e6, 6.52e6), "mean": (1.07e6, 3.22e6)},
    "resnet18": {"full": (11.18e6, 37.18e6), "mean": (5.24e6, 17.83e6)},
}
"""Network -> at full width, and on average over pruning rates 0 to 3/4 -> the paper's numbers."""
TOLERANCE = 0.01
"""A difference above this share is explained."""


@dataclass(frozen=True)
class Compared:
    """One number of the paper and ours."""

    quantity: str
    width: str
    printed: float
    ours: float
    difference: float
    reason: str


def compare(model: str, full: Cost, mean: Cost) -> Iterator[Compared]:
    """Put every printed number beside ours; a difference above one percent gets its reason."""
    for width, own in (("full", full), ("mean", mean)):
        for quantity, printed in zip(QUANTITIES, PRINTED[model][width], strict=True):
            ours = getattr(own, quantity)
            difference, reason = ours / printed - 1, ""
            if abs(difference) > TOLERANCE:
                counted = _as_printed(quantity, own)
                reason = "not explained"
                if abs(counted / printed - 1) <= TOLERANCE:
                    reason = (
                        "the printed count adds batch norm, activations and pooling; with these "
                        f"ours is {counted / 1e6:.2f} million"
                    )
            yield Compared(quantity, width, printed, ours, difference, reason)


def _as_printed(quantity: str, own: Cost) -> float:
    """Count what the paper counts."""
    elementwise = own.elementwise if quantity == "multiply_adds" else 0
    return float(getattr(own, quantity) + elementwise)


def resources() -> dict[str, Any]:
    """Count the cells, and describe the table as `tables.sheet` does."""
    cells = []
    for model in TITLES:
        costs = dict(zip(("full", "mean"), _costs(model), strict=True))
        for one in compare(model, **costs):
            ours = _as_printed(one.quantity, costs[one.width])
            cell = {"row": f"{one.width}-{one.quantity}", "column": model}
            cells.append({**cell, "values": [ours / 1e6], "printed": one.printed / 1e6})
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
