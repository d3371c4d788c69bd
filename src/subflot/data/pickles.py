"""Pickles from strangers: arrays and plain containers come out, anything else is refused.

A pickle names the functions that it wants called. Here it gets the few that rebuild an array, and
where one of these would do more than that, a narrow one of our own in its place.
"""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import damaged
from subflot.errors import SubflotError


def load_plain(content: bytes, path: Path, member: str) -> Any:
    """Unpickle arrays, lists, tuples, dicts, strings and numbers; `path` and `member` name it."""
    try:
        return _Plain(io.BytesIO(content), encoding="bytes").load()
    except _Refused as refused:
        raise SubflotError(
            f"{path}: the pickle `{member}` asks to run `{refused}`",
            hint="a data set holds arrays and lists only: do not trust this file",
        ) from None
    # A pickle is a program; a damaged one can fail in any way.
    except Exception as error:
        reason = f"cannot unpickle `{member}` ({type(error).__name__}: {error})"
        raise damaged(path, reason) from error


class _Refused(Exception):  # noqa: N818 - it is raised as what it says
    pass


def _empty_array(kind: object, shape: object, dtype: object) -> NDArray[Any]:
    """Stand in for numpy's `_reconstruct`, which is always called like this; values follow."""
    return np.ndarray((0,), np.uint8)


def _array(buffer: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any) -> NDArray[Any]:
    """Stand in for numpy's `_frombuffer`, of protocol 5."""
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stand in for `_codecs.encode`, as which Python 3 writes bytes into old protocols."""
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Stand in for `bytes`, as which Python 3 writes the empty bytes into old protocols."""
    return b""


_ADMITTED: dict[tuple[str, str], Callable[..., Any] | None] = {
    ("__builtin__", "bytes"): _no_bytes,
    ("_codecs", "encode"): _latin1,
    ("numpy", "dtype"): np.dtype,
    ("numpy", "ndarray"): None,  # Only ever handed to `_reconstruct`.
    **{
        (f"{core}.{module}", name): function
        for core in ("numpy.core", "numpy._core")  # Before numpy 2, and since.
        for module, name, function in (
            ("multiarray", "_reconstruct", _empty_array),
            ("numeric", "_frombuffer", _array),
        )
    },
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None
