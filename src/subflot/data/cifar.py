"""CIFAR-10 and CIFAR-100: 32x32 colour images in Python pickles inside a tar.gz.

Paper: "Learning Multiple Layers of Features from Tiny Images", Krizhevsky, 2009.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subflot.data.archives import damaged, read_tar
from subflot.data.images import fit_all
from subflot.data.pickles import load_plain
from subflot.data.settings import ImageSettings
from subflot.data.source import Contents, Files, Source, SourceFile
from subflot.errors import SubflotError

SIDE = 32
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@dataclass(frozen=True)
class Cifar100Settings(ImageSettings):
    """Images, and which of the two kinds of label."""

    labels: str = "fine"
    """`fine`: 100 classes; `coarse`: the 20 groups of five classes that the authors made."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels not in ("fine", "coarse"):
            raise SubflotError(f"labels is {self.labels!r}", hint="it is 'fine' or 'coarse'")


def read_cifar10(files: Files, settings: ImageSettings) -> Contents:
    """Read the five training batches and then the test batch."""
    parts = [f"cifar-10-batches-py/data_batch_{number}" for number in range(1, 6)]
    parts.append("cifar-10-batches-py/test_batch")
    meta = ("cifar-10-batches-py/batches.meta", "label_names")
    return _read(files["cifar-10-python.tar.gz"], parts, "labels", meta, settings)


def read_cifar100(files: Files, settings: Cifar100Settings) -> Contents:
    """Read the training images and then the test images."""
    parts = ["cifar-100-python/train", "cifar-100-python/test"]
    meta = ("cifar-100-python/meta", f"{settings.labels}_label_names")
    label_key = f"{settings.labels}_labels"
    return _read(files["cifar-100-python.tar.gz"], parts, label_key, meta, settings)


def _read(
    path: Path,
    parts: Sequence[str],
    label_key: str,
    meta: tuple[str, str],
    settings: ImageSettings,
) -> Contents:
    """Read `parts` in order; `meta` is the member and the key under which the classes lie."""
    members = read_tar(path, [*parts, meta[0]])
    names = _field(path, meta[0], load_plain(members[meta[0]], path, meta[0]), meta[1])
    classes = tuple(n.decode() if isinstance(n, bytes) else str(n) for n in names)
    images, labels = [], []
    for part in parts:
        batch = load_plain(members.pop(part), path, part)
        pixels = _field(path, part, batch, "data")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
            raise damaged(path, f"the images in `{part}` are no array of bytes")
        if pixels.ndim != 2 or pixels.shape[1] != 3 * SIDE * SIDE:
            raise damaged(path, f"the images in `{part}` have shape {pixels.shape}")
        numbers = _field(path, part, batch, label_key)
        if len(numbers) != len(pixels):
            raise damaged(path, f"{len(pixels)} images but {len(numbers)} labels in `{part}`")
        wrong = [n for n in numbers if type(n) is not int or not 0 <= n < len(classes)]
        if wrong:
            raise damaged(path, f"label {wrong[0]!r} in `{part}`, but {len(classes)} classes")
        images.append(fit_all(pixels.reshape(-1, 3, SIDE, SIDE), settings))
        labels.append(np.array(numbers, dtype=np.int64))
    return Contents(np.concatenate(images), np.concatenate(labels), classes)


def _field(path: Path, part: str, batch: Any, key: str) -> Any:
    """A field of a pickled dict, whose keys are bytes if Python 2 wrote it."""
    fields = batch if isinstance(batch, dict) else {}
    value = fields.get(key, fields.get(key.encode()))
    if not isinstance(value, (list, np.ndarray)):
        raise damaged(path, f"there is no `{key}` in `{part}`")
    return value


CIFAR10 = Source(
    "cifar10",
    "CIFAR-10: 60,000 colour images, 10 classes",
    "free to use, cite the authors",
    PAGE,
    1 / 6,
    ImageSettings,
    read_cifar10,
    (
        (
            SourceFile(
                "cifar-10-python.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "c58f30108f718f92721af3b95e74349a",
            ),
        ),
    ),
)

CIFAR100 = Source(
    "cifar100",
    "CIFAR-100: 60,000 colour images, 100 classes in 20 groups",
    "free to use, cite the authors",
    PAGE,
    1 / 6,
    Cifar100Settings,
    read_cifar100,
    (
        (
            SourceFile(
                "cifar-100-python.tar.gz",
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
            ),
        ),
    ),
)
