"""What is here of a data set, and what is in it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from subflot.data.cache import entry_of, identity, open_entry
from subflot.data.dataset import Dataset
from subflot.data.fetch import md5_of
from subflot.data.settings import values_of
from subflot.data.source import Files, Source, SourceFile


@dataclass(frozen=True)
class Presence:
    """What there is of a data set."""

    folder: Path
    """Where its files lie, or belong."""
    files: tuple[Path, ...]
    missing: tuple[str, ...]
    """Files that a load without settings needs and does not find."""
    num_bytes: int
    examples: int | None
    """None until the set has been read once."""


def presence(source: Source[Any], root: Path | None = None) -> Presence:
    """Look for the files of a data set; nothing is read."""
    settings = source.settings()
    complete = source.find(settings, root)
    folder = next((path.parent for path in (complete or {}).values()), source.folder(root))
    names = {file.name for layout in source.layouts for file in layout}
    here = tuple(folder / name for name in sorted(names) if (folder / name).is_file())
    absent = [file.name for file in source.needed(settings)[0]]
    return Presence(
        folder=folder,
        files=here,
        missing=()
        if complete is not None
        else tuple(name for name in absent if not (folder / name).is_file()),
        num_bytes=sum(path.stat().st_size for path in here),
        examples=None if complete is None else _examples(source, settings, complete),
    )


def _examples(source: Source[Any], settings: Any, files: Files) -> int | None:
    contents = open_entry(entry_of(identity(source.name, values_of(settings), files)))
    return None if contents is None else len(contents.labels)


def checksum(source: Source[Any], path: Path) -> str:
    """Whether a file is the published one: `published`, `other` or `unknown`."""
    known: dict[str, SourceFile] = {file.name: file for part in source.layouts for file in part}
    wanted = known[path.name].md5
    if not wanted:
        return "unknown"
    return "published" if md5_of(path) == wanted else "other"


def counts(data: Dataset) -> dict[str, dict[str, int]]:
    """Examples of each class and of each group, by name.

    Example:
        >>> counts(Dataset("few", np.zeros((3, 2)), np.array([1, 1, 0]), ("cat", "dog")))
        {'classes': {'cat': 1, 'dog': 2}, 'groups': {}}
    """
    groups = np.empty(0, dtype=np.int64) if data.groups is None else data.groups
    numbered = {"classes": (data.classes, data.labels), "groups": (data.group_names, groups)}
    return {
        kind: dict(zip(names, np.bincount(numbers, minlength=len(names)).tolist(), strict=True))
        for kind, (names, numbers) in numbered.items()
    }
