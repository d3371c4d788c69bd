"""Small archives and pictures, made by the tests that read them, and damage to files."""

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def zip_file(path: Path, members: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def tar_file(path: Path, members: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def picture(pixels: NDArray[Any], kind: str = "PNG") -> bytes:
    """A picture file of (height, width) or (height, width, 3) bytes."""
    stream = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(stream, kind)
    return stream.getvalue()


def flip(path: Path, place: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << bit
    path.write_bytes(data)


def without_checksums(folder: Path) -> None:
    """Make the folder of a run that has begun one from before there were checksums."""
    path = folder / "manifest.json"
    found = json.loads(path.read_text())
    del found["checksum"], found["checksums"]
    path.write_text(json.dumps({**found, "format": 1}))
