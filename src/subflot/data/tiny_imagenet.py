"""Tiny-ImageNet: 64x64 images of 200 classes of ImageNet, as JPEG files in a zip.

Paper: "Tiny ImageNet Visual Recognition Challenge", Le and Yang, 2015.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from subflot.data.archives import ZipReader, damaged
from subflot.data.images import decode, is_image
from subflot.data.settings import ImageSettings
from subflot.data.source import Contents, Files, Source, SourceFile

TOP = "tiny-imagenet-200"


@dataclass(frozen=True)
class TinyImageNetSettings(ImageSettings):
    """Images at their own size unless told otherwise."""

    size: int = 64


def read_tiny_imagenet(files: Files, settings: TinyImageNetSettings) -> Contents:
    """Read the training images by class, then the validation images; the test has no labels."""
    with ZipReader(files[f"{TOP}.zip"]) as archive:
        wnids = [line.strip() for line in archive.lines(f"{TOP}/wnids.txt") if line.strip()]
        words = dict(
            line.split("\t", 1) for line in archive.lines(f"{TOP}/words.txt") if "\t" in line
        )
        label_of = {wnid: label for label, wnid in enumerate(wnids)}
        members = [*_training(archive, label_of), *_validation(archive, label_of)]
        shape = (len(members), settings.channels, settings.size, settings.size)
        inputs = np.empty(shape, dtype=np.uint8)
        for target, (name, _) in zip(inputs, members, strict=True):
            target[:] = decode(archive.read(name), settings, f"{archive.path}: `{name}`")
    labels = np.array([label for _, label in members], dtype=np.int64)
    return Contents(inputs, labels, tuple(words.get(wnid, wnid) for wnid in wnids))


def _training(archive: ZipReader, label_of: dict[str, int]) -> list[tuple[str, int]]:
    """The training images with their labels: train/<class>/images/<file>."""
    by_class = defaultdict(list)
    for name in archive.names:
        parts = name.split("/")
        if parts[:2] == [TOP, "train"] and is_image(name):
            by_class[parts[2]].append(name)
    for wnid in label_of:
        if not by_class[wnid]:
            raise damaged(archive.path, f"there are no training images of class `{wnid}`")
    return [(name, label_of[wnid]) for wnid in label_of for name in sorted(by_class[wnid])]


def _validation(archive: ZipReader, label_of: dict[str, int]) -> list[tuple[str, int]]:
    """The validation images with their labels, in the order of their list."""
    table = f"{TOP}/val/val_annotations.txt"
    found = []
    for number, line in enumerate(archive.lines(table), start=1):
        file, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in label_of:
            raise damaged(archive.path, f"unknown class `{wnid}` in line {number} of `{table}`")
        found.append((f"{TOP}/val/images/{file}", label_of[wnid]))
    return found


TINY_IMAGENET = Source(
    "tiny-imagenet",
    "Tiny-ImageNet: 110,000 colour images, 200 classes",
    "terms of ImageNet: research and education, not commercial",
    "http://cs231n.stanford.edu/",
    1 / 11,
    TinyImageNetSettings,
    read_tiny_imagenet,
    (
        (
            SourceFile(
                f"{TOP}.zip",
                f"http://cs231n.stanford.edu/{TOP}.zip",
                "90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
    ),
)
