"""PACS: seven classes as photos, paintings, cartoons and sketches; the domain is the group.

Paper: "Deeper, Broader and Artier Domain Generalization", Li et al., ICCV 2017.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from subflot.data.archives import ZipReader, damaged
from subflot.data.images import decode, is_image
from subflot.data.settings import ImageSettings
from subflot.data.source import Contents, Files, Source, SourceFile

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")


@dataclass(frozen=True)
class PacsSettings(ImageSettings):
    """Images at 64x64 unless told otherwise.

    The published ones are 227x227. A ResNet18 costs a twelfth as much at 64x64, the size at which
    Tiny-ImageNet trains the same network.
    """

    size: int = 64


def read_pacs(files: Files, settings: PacsSettings) -> Contents:
    """Read every `<domain>/<class>/<file>`, domain by domain; classes are the folders' names."""
    with ZipReader(files["PACS.zip"]) as archive:
        found = _by_folder(archive)
        classes = tuple(sorted({name for _, name in found}))
        members = [
            (file, label, group)
            for group, domain in enumerate(DOMAINS)
            for label, name in enumerate(classes)
            for file in _files(archive, found, domain, name)
        ]
        shape = (len(members), settings.channels, settings.size, settings.size)
        inputs = np.empty(shape, dtype=np.uint8)
        for target, (file, _, _) in zip(inputs, members, strict=True):
            target[:] = decode(archive.read(file), settings, f"{archive.path}: `{file}`")
    labels = np.array([label for _, label, _ in members], dtype=np.int64)
    groups = np.array([group for _, _, group in members], dtype=np.int64)
    return Contents(inputs, labels, classes, groups, DOMAINS)


Folders = dict[tuple[str, str], list[str]]


def _by_folder(archive: ZipReader) -> Folders:
    """(Domain, class) -> its image files, whatever folder lies around the domains."""
    found: Folders = defaultdict(list)
    for name in archive.names:
        parts = name.split("/")
        domain, label, file = parts[-3:] if len(parts) > 2 else ("", "", "")
        if domain in DOMAINS:
            files = found[domain, label]  # An empty folder is seen too.
            if is_image(file):
                files.append(name)
    for domain in DOMAINS:
        if not any(known == domain for known, _ in found):
            raise damaged(archive.path, f"there is no domain `{domain}` in it")
    return found


def _files(archive: ZipReader, found: Folders, domain: str, label: str) -> list[str]:
    files = found.get((domain, label))
    if not files:
        raise damaged(archive.path, f"there are no images of class `{label}` in domain `{domain}`")
    return sorted(files)


PACS = Source(
    "pacs",
    "PACS: 9,991 images, 7 classes in 4 domains",
    "research, terms of the images' owners",
    "https://domaingeneralization.github.io/",
    1 / 5,
    PacsSettings,
    read_pacs,
    ((SourceFile("PACS.zip"),),),
)
