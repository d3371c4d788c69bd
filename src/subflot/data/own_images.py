"""A user's own images: a folder with a folder per class, or a table that lists files."""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from subflot.data.cache import cached, identity
from subflot.data.dataset import Dataset
from subflot.data.images import decode, is_image
from subflot.data.own import from_arrays, make_dataset
from subflot.data.settings import ImageSettings
from subflot.data.source import Contents
from subflot.errors import SubflotError

TABLE_HINT = "its first line names the columns file, label and, if clients are known, client"


def from_folder(
    path: Path | str,
    *,
    size: int = 32,
    channels: int = 3,
    domains: bool = False,
    test_share: float = 0.2,
) -> Dataset:
    """Read the images of a folder with one folder per class, or per domain and in it per class.

    They are read once, and mapped from the cache until a file changes.

    Args:
        path: holds `class/file`, or with `domains` `domain/class/file`; the domain is the group.
        size: height and width to which images are resized.
        channels: 3 for colour, 1 for grey.
        domains: whether there is a level of domains.
        test_share: share of each client's examples that is kept for testing.
    """
    root = Path(path)
    if not root.is_dir():
        raise SubflotError(f"there is no folder {root}")
    level = "domain/class/file" if domains else "class/file"
    pictures = []
    for domain in _folders(root, level) if domains else [root]:
        for kind in _folders(domain, level):
            files = sorted(f for f in kind.iterdir() if f.is_file() and is_image(f.name))
            if not files:
                raise SubflotError(f"there are no images in {kind}", hint=f"expected {level}")
            group = domain.name if domains else None
            pictures += [_Picture(file, kind.name, group) for file in files]
    return _read_pictures(root.resolve().name, pictures, ImageSettings(size, channels), test_share)


def from_table(
    path: Path | str, *, size: int = 32, channels: int = 3, test_share: float = 0.2
) -> Dataset:
    """Read the images that a CSV file lists, with the columns file, label and perhaps client.

    They are read once, and mapped from the cache until a file changes.

    Args:
        path: the CSV file; files are relative to its folder. The client is the group.
        size: height and width to which images are resized.
        channels: 3 for colour, 1 for grey.
        test_share: share of each client's examples that is kept for testing.
    """
    table = Path(path)
    try:
        with table.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or ()
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SubflotError(f"cannot read {table}: {error}", hint=TABLE_HINT) from None
    if not {"file", "label"} <= set(columns):
        raise SubflotError(
            f"{table} has the columns {', '.join(columns) or 'none'}", hint=TABLE_HINT
        )
    pictures = []
    for line, row in rows:
        values = [row[column] for column in ("file", "label", "client") if column in columns]
        if not all(values):
            raise SubflotError(f"{table}, line {line}: a value is missing", hint=TABLE_HINT)
        file = table.parent / row["file"]
        if not file.is_file():
            raise SubflotError(
                f"{table}, line {line}: there is no file {file}",
                hint="paths are relative to the folder of the table",
            )
        pictures.append(_Picture(file, row["label"], row.get("client")))
    if not pictures:
        raise SubflotError(f"{table} lists no images", hint=TABLE_HINT)
    return _read_pictures(table.stem, pictures, ImageSettings(size, channels), test_share)


@dataclass(frozen=True)
class _Picture:
    file: Path
    label: str
    group: str | None


def _folders(parent: Path, level: str) -> list[Path]:
    """Folders in order of their names, without those that tools hide."""
    found = sorted(f for f in parent.iterdir() if f.is_dir() and not f.name.startswith((".", "__")))
    if not found:
        raise SubflotError(f"there are no folders in {parent}", hint=f"expected {level}")
    return found


def _read_pictures(
    name: str, pictures: list[_Picture], settings: ImageSettings, test_share: float
) -> Dataset:
    """Decode the pictures, or map what was decoded before if nothing has changed since."""

    def read() -> Contents:
        shape = (len(pictures), settings.channels, settings.size, settings.size)
        inputs = np.empty(shape, dtype=np.uint8)
        for target, picture in zip(inputs, pictures, strict=True):
            target[:] = decode(_content(picture.file), settings, str(picture.file))
        groups = [picture.group for picture in pictures]
        data = from_arrays(
            inputs,
            [picture.label for picture in pictures],
            None if groups[0] is None else groups,
            name=name,
        )
        return Contents(data.inputs, data.labels, data.classes, data.groups, data.group_names)

    key = {
        **identity(name, asdict(settings), {str(p.file.resolve()): p.file for p in pictures}),
        "pictures": [[str(p.file.resolve()), p.label, p.group] for p in pictures],
    }
    return make_dataset(name, cached(key, read), test_share)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SubflotError(f"cannot read {file}: {error.strerror}") from None
