"""Figures of two experiments of their own: attention maps, and the gap beside its bound."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from subflot.drawing import blank
from subflot.paper.canvas import label, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREY = (0.299, 0.587, 0.114)
"""How bright red, green and blue are (ITU-R 601)."""


def attention(path: Path) -> "Figure":
    """Draw images with the maps of every kind of model, and the similarity over all images."""
    found = json.loads(path.read_text())
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    kinds: dict[str, str] = found["kinds"]
    images = arrays["images"]
    count = len(images)
    figure = blank(1.7 * (len(kinds) + 1), 1.9 * count + 0.6)
    grid = figure.subplots(count, len(kinds) + 1, squeeze=False)
    side = images.shape[1:3]
    for row, image in zip(grid, range(count), strict=True):
        picture = images[image] if images.shape[-1] == 3 else images[image, ..., 0]
        row[0].imshow(picture, cmap="gray")
        grey = picture @ np.array(GREY) if picture.ndim == 3 else picture
        for axes, kind in zip(row[1:], kinds, strict=True):
            axes.imshow(grey, cmap="gray", alpha=0.5)
            axes.imshow(
                arrays[kind][image],
                cmap="magma",
                alpha=0.65,
                vmin=0.0,
                vmax=1.0,
                interpolation="bilinear",
                extent=(-0.5, side[1] - 0.5, side[0] - 0.5, -0.5),
            )
        for axes in row:
            axes.set_xticks([])
            axes.set_yticks([])
    grid[0][0].set_title("test image", fontsize="small")
    for axes, (kind, title) in zip(grid[0][1:], kinds.items(), strict=True):
        one = found["similarity"].get(kind)
        number = "" if one is None else f"\n{one['mean']:.3f} ± {one['deviation']:.3f}"
        axes.set_title(title + number, fontsize="small")
    figure.supxlabel(
        f"brighter: counts more for the true class; numbers: cosine to the maps of the historical "
        f"model, mean and deviation over {found['num_images']} test images; "
        f"{found['num_empty']} of its maps are empty and count as 0",
        fontsize="small",
    )
    return figure


def convergence(path: Path) -> "Figure":
    """Draw the gap and the bound over rounds, with all constants beside them."""
    found = json.loads(path.read_text())
    figure, (axes,) = panels(1, width=8.0, height=4.5)
    rounds = range(len(found["gaps"]))
    axes.plot(rounds, found["gaps"], "-", color="black", linewidth=2.0, label="measured gap")
    axes.plot(rounds, found["bounds"], "--", color="black", label="bound as printed")
    axes.plot(
        rounds, found["proof_bounds"], ":", color="black", label="bound as the proof derives it"
    )
    axes.set_yscale("log")
    label(axes, found["title"], "round", "loss above the least loss")
    lines = [f"{name} = {value:.4g}" for name, value in found["constants"].items()]
    lines += ["", "terms of the error:"]
    lines += [f"{name} = {value:.4g}" for name, value in found["terms"].items()]
    axes.text(1.02, 1.0, "\n".join(lines), transform=axes.transAxes, va="top", fontsize="x-small")
    axes.legend(loc="center right")
    return figure
