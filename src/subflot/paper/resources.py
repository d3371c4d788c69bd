"""Table "Resource Efficiency": what a round costs a client, counted rather than run."""

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
    known = MODELS[model].printed
    if known is None:
        raise LookupError(f"the paper prints no cost of {model}")
    found = []
    for place, (width, ours) in enumerate((("full", full), ("mean", mean))):
        counted = {
            "parameters": ours.parameters,
            "multiply_adds": ours.multiply_adds + ours.elementwise,
        }
        found += [
            {
                "row": f"{width}-{quantity}",
                "values": [counted[quantity] / 1e6],
                "printed": getattr(known, quantity)[place] / 1e6,
            }
            for quantity in QUANTITIES
        ]
    return found
