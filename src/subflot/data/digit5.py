"""Digit-5: the ten digits from five sources; the source, or domain, is the group.

Paper: "Moment Matching for Multi-Source Domain Adaptation", Peng et al., ICCV 2019.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import damaged
from subflot.data.images import Pixels, fit_all
from subflot.data.matlab import read_mat
from subflot.data.settings import ImageSettings
from subflot.data.source import Contents, Files, Source, SourceFile
from subflot.errors import UnknownName

Domain = tuple[Pixels, NDArray[np.int64]]
"""Images (examples, channels, height, width) and digits."""


def _mnist(files: Files) -> list[Domain]:
    path = files["mnist_data.mat"]
    fields = read_mat(path, ("train_32", "test_32", "label_train", "label_test"))
    return [
        (_channels_last(path, fields[f"{part}_32"]), _one_hot(path, fields[f"label_{part}"]))
        for part in ("train", "test")
    ]


def _mnist_m(files: Files) -> list[Domain]:
    path = files["mnistm_with_label.mat"]
    fields = read_mat(path, ("train", "test", "label_train", "label_test"))
    return [
        (_channels_last(path, fields[part]), _one_hot(path, fields[f"label_{part}"]))
        for part in ("train", "test")
    ]


def _street_numbers(domain: str) -> Callable[[Files], list[Domain]]:
    """Read files in the layout of SVHN: images last, and 10 for the digit 0."""

    def read(files: Files) -> list[Domain]:
        parts = []
        for path in (files[f"{domain}_{part}_32x32.mat"] for part in ("train", "test")):
            fields = read_mat(path, ("X", "y"))
            digits = _digits(path, fields["y"], highest=10) % 10
            parts.append((_channels_last(path, np.moveaxis(fields["X"], -1, 0)), digits))
        return parts

    return read


def _usps(files: Files) -> list[Domain]:
    path = files["usps_28x28.mat"]
    cells = read_mat(path, ("dataset",))["dataset"]
    if cells.shape != (2, 2):
        raise damaged(
            path, f"`dataset` has shape {cells.shape}, expected train, test x image, label"
        )
    parts = []
    for images, labels in cells:
        pixels = np.asarray(images)
        if (
            pixels.ndim != 4
            or pixels.dtype.kind != "f"
            or not ((pixels >= 0) & (pixels <= 1)).all()
        ):
            raise damaged(path, "its images are no numbers from 0 to 1")
        parts.append((np.rint(pixels * 255).astype(np.uint8), _digits(path, labels, highest=9)))
    return parts


DOMAINS: Mapping[str, Callable[[Files], list[Domain]]] = {
    "mnist": _mnist,
    "mnistm": _mnist_m,
    "svhn": _street_numbers("svhn"),
    "usps": _usps,
    "synth": _street_numbers("synth"),
}


@dataclass(frozen=True)
class Digit5Settings(ImageSettings):
    """Images, and which of the five domains."""

    domains: tuple[str, ...] = tuple(DOMAINS)

    def __post_init__(self) -> None:
        super().__post_init__()
        for domain in self.domains or ("",):
            if domain not in DOMAINS:
                raise UnknownName("domain of Digit-5", domain, DOMAINS, "subflot data list --json")
        # In one order, whichever was asked for: it decides the numbers of the groups.
        ordered = tuple(domain for domain in DOMAINS if domain in self.domains)
        object.__setattr__(self, "domains", ordered)


def read_digit5(files: Files, settings: Digit5Settings) -> Contents:
    """Read the domains one after the other, each with its training and then its test images."""
    images, labels, groups = [], [], []
    for group, domain in enumerate(settings.domains):
        for pixels, digits in DOMAINS[domain](files):
            if len(pixels) != len(digits):
                names = [f.name for f in FILES if f.domain == domain]
                reason = f"{len(pixels)} images but {len(digits)} labels in a part of `{domain}`"
                raise damaged(files[names[0]], reason)
            images.append(fit_all(pixels, settings))
            labels.append(digits)
            groups.append(np.full(len(digits), group, dtype=np.int64))
    return Contents(
        np.concatenate(images),
        np.concatenate(labels),
        tuple("0123456789"),
        np.concatenate(groups),
        settings.domains,
    )


def _channels_last(path: Path, images: NDArray[Any]) -> Pixels:
    """Bring (examples, height, width[, channels]) to (examples, channels, height, width)."""
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
        raise damaged(path, f"its images are {images.dtype} of shape {images.shape}")
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _one_hot(path: Path, rows: NDArray[Any]) -> NDArray[np.int64]:
    marked = np.asarray(rows) != 0
    if marked.ndim != 2 or marked.shape[1] != 10 or not (marked.sum(axis=1) == 1).all():
        raise damaged(path, "its labels are no rows of ten with one digit marked")
    digits: NDArray[np.int64] = marked.argmax(axis=1)
    return digits


def _digits(path: Path, labels: NDArray[Any], highest: int) -> NDArray[np.int64]:
    numbers = np.asarray(labels).ravel()
    wrong = numbers[~np.isin(numbers, np.arange(highest + 1))]
    if wrong.size:
        raise damaged(path, f"label {wrong[0]}, expected a digit from 0 to {highest}")
    return numbers.astype(np.int64)


_SVHN = "http://ufldl.stanford.edu/housenumbers"
FILES = (
    SourceFile("mnist_data.mat", domain="mnist"),
    SourceFile("mnistm_with_label.mat", domain="mnistm"),
    SourceFile(
        "svhn_train_32x32.mat",
        f"{_SVHN}/train_32x32.mat",
        "e26dedcc434d2e4c54c9b2d4a06d8373",
        "svhn",
    ),
    SourceFile(
        "svhn_test_32x32.mat",
        f"{_SVHN}/test_32x32.mat",
        "eb5a983be6a315427106f1b164d9cef3",
        "svhn",
    ),
    SourceFile("usps_28x28.mat", domain="usps"),
    SourceFile("synth_train_32x32.mat", domain="synth"),
    SourceFile("synth_test_32x32.mat", domain="synth"),
)

DIGIT5 = Source(
    "digit5",
    "Digit-5: images of digits from 5 sources",
    "terms of each source; SVHN not commercial",
    "http://ai.bu.edu/M3SDA/",
    1 / 5,
    Digit5Settings,
    read_digit5,
    (FILES,),
)
