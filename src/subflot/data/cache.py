"""Arrays that were read once, kept as plain .npy files and mapped into memory from then on.

An entry is a folder that appears whole, by one rename, or not at all. Its name contains a digest
of everything that went into it, so an entry is never changed; it may be deleted at any time.
"""

import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from subflot.data.source import Contents
from subflot.errors import SubflotError

VERSION = 1
"""Raised whenever a reader makes other arrays of the same files, so that old entries are unused."""
LEFTOVER = ".making-"
LEFTOVER_SECONDS = 24 * 3600


def cache_root() -> Path:
    """The folder of all entries: SUBFLOT_CACHE, or the user's cache folder."""
    from platformdirs import user_cache_path

    named = os.environ.get("SUBFLOT_CACHE")
    return Path(named) if named else user_cache_path("subflot", appauthor=False) / "data"


def identity(name: str, settings: Mapping[str, Any], files: Mapping[str, Path]) -> dict[str, Any]:
    """What the arrays of a data set depend on."""
    states = {file: path.stat() for file, path in sorted(files.items())}
    return {
        "name": name,
        "settings": dict(settings),
        "files": [[file, state.st_size, state.st_mtime_ns] for file, state in states.items()],
    }


def cached(key: Mapping[str, Any], make: Callable[[], Contents]) -> Contents:
    """Map the arrays that belong to `key`; `make` makes them if they are not there yet.

    Args:
        key: what the arrays depend on, as JSON can write it; `key["name"]` begins the entry's name.
        make: called at most once, and its result is written out.
    """
    entry = entry_of(key)
    contents = open_entry(entry)
    if contents is None:
        made = make()
        try:
            _store(made, key, entry)
        except OSError as error:
            raise SubflotError(
                f"cannot write the cache in {entry.parent}: {error.strerror or error}",
                hint="make room there, or name another folder in SUBFLOT_CACHE",
            ) from error
        contents = open_entry(entry)
        if contents is None:
            raise SubflotError(f"the cache in {entry} vanished while it was written")
    return contents


def entry_of(key: Mapping[str, Any]) -> Path:
    """The folder in which the arrays of `key` lie, or will."""
    text = json.dumps({**key, "version": VERSION}, sort_keys=True)
    return cache_root() / f"{key['name']}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def open_entry(entry: Path) -> Contents | None:
    """Map the arrays of an entry; None if it is not there or somebody damaged it."""
    try:
        about = json.loads((entry / "about.json").read_text(encoding="utf-8"))
        arrays = {
            file.stem: np.load(file, mmap_mode="r", allow_pickle=False)
            for file in entry.glob("*.npy")
        }
        return Contents(
            arrays["inputs"],
            arrays["labels"],
            tuple(about["classes"]),
            arrays.get("groups"),
            tuple(about["group_names"]),
            arrays.get("spans"),
        )
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _store(contents: Contents, key: Mapping[str, Any], entry: Path) -> None:
    """Write an entry beside its place and move it there; another process may have been faster."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    _sweep(entry.parent)
    making = entry.parent / f"{LEFTOVER}{uuid.uuid4().hex}"
    making.mkdir()
    try:
        for name in ("inputs", "labels", "groups", "spans"):
            array = getattr(contents, name)
            if array is not None:
                with (making / f"{name}.npy").open("wb") as file:
                    np.save(file, array, allow_pickle=False)
                    _to_disk(file)
        about = {**key, "classes": contents.classes, "group_names": contents.group_names}
        with (making / "about.json").open("w", encoding="utf-8") as text:
            json.dump(about, text, indent=1)
            _to_disk(text)
        if entry.exists() and open_entry(entry) is None:
            shutil.rmtree(entry)
        try:
            making.rename(entry)
        except OSError:
            if open_entry(entry) is None:
                raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _to_disk(file: IO[Any]) -> None:
    """Write a file out, so that not even a power cut leaves an entry without its contents."""
    file.flush()
    os.fsync(file.fileno())


def _sweep(root: Path) -> None:
    """Remove what processes that were killed long ago have left."""
    for folder in root.glob(f"{LEFTOVER}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > LEFTOVER_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
