"""Handwritten digits that come with scikit-learn: real data without a download.

`digits` are 1,797 grey pictures of 8 x 8 pixels. `digits-domains` are the same pictures, each in
one of five styles that were made up here to stand for domains: inverted, turned by a quarter, on
a noisy background, with thick strokes, blurred. No picture is in two styles.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from subflot.data.settings import NoSettings
from subflot.data.source import Contents, Files, Source

Pixels = NDArray[np.uint8]
"""(examples, 1, height, width)."""

CLASSES = tuple(str(digit) for digit in range(10))
LEVELS = 16
"""The scan counts ink in cells of 4 x 4 pixels, from 0 to 16."""
SEED = 1998
"""Of the styles, never to be changed: it decides what the data are."""


def read_digits(files: Files, settings: NoSettings) -> Contents:
    """Return the pictures as scikit-learn has them, with grey levels from 0 to 255."""
    from sklearn.datasets import load_digits

    ink, labels = load_digits(return_X_y=True)
    pixels = np.rint(ink * (255 / LEVELS)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Contents(pixels, labels.astype(np.int64), CLASSES)


def read_domains(files: Files, settings: NoSettings) -> Contents:
    """Return the same pictures, each in one of the styles; a style is a group."""
    plain = read_digits(files, settings)
    # Numbers straight from the bit generator are the same in every version of numpy.
    order = np.argsort(np.random.PCG64(SEED).random_raw(len(plain.labels)), kind="stable")
    groups = np.empty(len(order), dtype=np.int64)
    groups[order] = np.arange(len(order)) % len(STYLES)
    pixels = plain.inputs.copy()
    for group, style in enumerate(STYLES.values()):
        pixels[groups == group] = style(plain.inputs[groups == group])
    return Contents(pixels, plain.labels, CLASSES, groups, tuple(STYLES))


def inverted(images: Pixels) -> Pixels:
    """Dark digits on white."""
    return 255 - images


def rotated(images: Pixels) -> Pixels:
    """Turned to the left by a quarter, which takes no digit for another."""
    return np.rot90(images, axes=(2, 3))


def noisy(images: Pixels) -> Pixels:
    """Behind the digit, every pixel is grey up to half of white, at random."""
    raw = np.random.PCG64(SEED + 1).random_raw(images.size)
    return np.maximum(images, (raw >> 57).astype(np.uint8).reshape(images.shape))


def thick(images: Pixels) -> Pixels:
    """Strokes are one pixel wider, to the right and downwards."""
    grown = images
    for axis in (2, 3):
        moved = np.roll(grown, 1, axis)
        np.moveaxis(moved, axis, 0)[0] = 0
        grown = np.maximum(grown, moved)
    return grown


def blurred(images: Pixels) -> Pixels:
    """Each pixel is the mean of its neighbours, which count 1, 2, 1 across and down."""
    height, width = images.shape[2:]
    padded = np.pad(images.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    across = padded[..., :width] + 2 * padded[..., 1:-1] + padded[..., 2:]
    total: NDArray[np.int64] = (
        across[..., :height, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
    )
    return (total // 16).astype(np.uint8)


STYLES: Mapping[str, Callable[[Pixels], Pixels]] = {
    "inverted": inverted,
    "rotated": rotated,
    "noisy": noisy,
    "thick": thick,
    "blurred": blurred,
}

_LICENCE = "CC BY 4.0"
_PAGE = "https://archive.ics.uci.edu/dataset/80"

DIGITS = Source(
    "digits",
    "handwritten digits, 8 x 8, bundled with scikit-learn",
    _LICENCE,
    _PAGE,
    0.2,
    NoSettings,
    read_digits,
)
DIGITS_DOMAINS = Source(
    "digits-domains",
    "the bundled digits in five artificial styles, as domains",
    _LICENCE,
    _PAGE,
    0.2,
    NoSettings,
    read_domains,
)
