"""How a federation's examples are divided: counts per client and class, and a picture of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from subflot.data.federated import FederatedData
from subflot.drawing import blank, check_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NAMES = 40
"""Classes up to which each has its name beside the picture."""
LARGEST_BUBBLE = 28.0
"""In points, so that the key beside the picture has room for three."""


@dataclass(frozen=True, eq=False)
class Division:
    """What each client holds."""

    name: str
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    """(clients, classes): examples, those for training and testing together."""
    num_train: tuple[int, ...]
    num_validation: tuple[int, ...]
    num_test: tuple[int, ...]
    groups: tuple[str, ...] = ()
    """The group of each client, if each has examples of one group only."""

    def as_json(self) -> dict[str, Any]:
        """Return the same as plain values, one entry per client."""
        clients = [
            {
                "client": client,
                **({"group": self.groups[client]} if self.groups else {}),
                "examples": int(row.sum()),
                "train": self.num_train[client],
                "validation": self.num_validation[client],
                "test": self.num_test[client],
                "classes": {self.classes[label]: int(row[label]) for label in np.flatnonzero(row)},
            }
            for client, row in enumerate(self.counts)
        ]
        return {"name": self.name, "classes": list(self.classes), "clients": clients}


def describe(data: FederatedData) -> Division:
    """Count what each client holds."""
    dataset = data.dataset
    held = [
        np.concatenate([shares.train, shares.validation, shares.test]) for shares in data.shares
    ]
    counts = [np.bincount(dataset.labels[own], minlength=len(dataset.classes)) for own in held]
    groups = [] if dataset.groups is None else [np.unique(dataset.groups[own]) for own in held]
    is_apart = all(len(found) == 1 for found in groups)
    return Division(
        dataset.name,
        dataset.classes,
        np.array(counts),
        tuple(len(shares.train) for shares in data.shares),
        tuple(len(shares.validation) for shares in data.shares),
        tuple(len(shares.test) for shares in data.shares),
        tuple(dataset.group_names[found[0]] for found in groups) if is_apart else (),
    )


def draw(division: Division, path: str | Path) -> None:
    """Draw a bubble per client and class into a PNG or PDF file; its area shows the examples."""
    path = check_picture(path)
    num_clients, num_classes = division.counts.shape
    width, height = np.clip((0.32 * num_clients, 0.32 * num_classes), (4, 2.5), (13, 10))
    figure = blank(width + 2.2, height + 1)
    axes = figure.subplots()
    cell = min(72 * width / num_clients, 72 * height / num_classes, LARGEST_BUBBLE)
    _draw_bubbles(axes, division.counts, largest=(0.95 * cell) ** 2)
    axes.set_title(f"{division.name}: examples of each client")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    axes.locator_params(integer=True)
    if num_classes <= MOST_NAMES:
        axes.set_yticks(range(num_classes), division.classes)
    axes.tick_params(labelsize="small")
    figure.savefig(path, format=path.suffix.lower()[1:])


def _draw_bubbles(axes: "Axes", counts: NDArray[np.int64], largest: float) -> None:
    """Draw the bubbles and a key to their sizes; `largest` is an area in square points."""
    clients, classes = counts.nonzero()
    most = int(counts.max())
    # Grey with a dark rim: it prints without colour, and bubbles that touch stay apart.
    style: dict[str, Any] = {"color": "0.6", "edgecolors": "0.1", "linewidths": 0.5}
    axes.scatter(clients, classes, largest * counts[clients, classes] / most, **style)
    for examples in sorted({most, max(1, most // 4), max(1, most // 16)}, reverse=True):
        axes.scatter([], [], largest * examples / most, **style, label=f"{examples:,}")
    axes.legend(
        title="examples", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, labelspacing=1
    )
    axes.set_xlim(-0.6, counts.shape[0] - 0.4)
    axes.set_ylim(-0.6, counts.shape[1] - 0.4)
    axes.set_axisbelow(True)
    axes.grid(color="0.9", linewidth=0.5)
