"""The small text files of a run: what is written can be read again."""

import json
import math
import os
import zlib
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError


def toml_value(value: Any) -> str:
    """Write a value as TOML.

    Example:
        >>> toml_value(("one two", float("inf"), 3, True))
        '["one two", inf, 3, true]'
    """
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)
    # The escapes of JSON are TOML's too, but it knows no pairs of surrogates, and escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def clean(text: str, most: int) -> str:
    r"""Make a stranger's text one short line that cannot command a terminal.

    Example:
        >>> clean("\x1b[2J2 of\n3", 20)
        '\\x1b[2J2 of\\n3'
    """
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[:most])
    return shown[:most]


def checksum(data: bytes | memoryview, before: str = "") -> str:
    """Sum bytes up, so that damage to them shows; it is no protection from anyone's will.

    Args:
        data: what is summed up.
        before: the checksum of what comes ahead of it.

    Example:
        >>> checksum(b"two", checksum(b"one, ")) == checksum(b"one, two") != checksum(b"one, twn")
        True
    """
    return f"{zlib.crc32(data, int(before or '0', 16)):08x}"


def check_writable(key: str, value: Any) -> None:
    """Refuse a setting that could not be written and read again as it is."""
    for one in value if isinstance(value, tuple | list) else (value,):
        if isinstance(one, float) and math.isnan(one):
            raise SubflotError(f"{key} is {one}", hint="give a number")
        if isinstance(one, str):
            try:
                one.encode()
            except UnicodeEncodeError:
                raise SubflotError(f"{key} is {one!r}, which is no text", hint="UTF-8 is") from None


def write_text(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        sync(part)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        raise SubflotError(f"cannot write {path}: {error}") from None
    finally:
        part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
