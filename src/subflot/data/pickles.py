"""Pickles from strangers: arrays and plain containers come out, anything else is refused.

A pickle names the functions that it wants called. Here it gets narrow ones of our own in the place
of the few that rebuild an array, and no other; numpy's never see what a pickle says.
"""

import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import damaged
from subflot.errors import SubflotError

NUMBERS = frozenset(["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "b1"])
"""Types of arrays that are read, as numpy calls them."""


def load_plain(content: bytes, path: Path, member: str) -> Any:
    """Unpickle arrays, lists, tuples, dicts, strings and numbers; `path` and `member` name it."""
    return _load(_Plain, content, path, member)


def load_single(content: bytes, path: Path) -> Any:
    """Read the one value that `numpy.save` was given instead of an array: plain, as above.

    It writes a line of header and then the pickle of an array without axes, which holds the value.
    """
    header, _, pickled = content.partition(b"\n")
    if not header.startswith(b"\x93NUMPY"):
        raise damaged(path, "it does not begin as a file of numpy does")
    holder = _load(_Single, pickled, path, path.name)
    if not isinstance(holder, _Array) or not holder.held:
        raise damaged(path, "it does not hold a single value")
    return holder.held[0]


def _load(kind: "type[_Plain]", content: bytes, path: Path, member: str) -> Any:
    try:
        return kind(io.BytesIO(content), encoding="bytes").load()
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


class _Type:
    """Stands in for `numpy.dtype`: the name and byte order of a plain number, never a layout.

    With numpy's own a pickle could declare its bytes to be addresses of objects.
    """

    def __init__(self, name: object, align: object = 0, copy: object = 0) -> None:
        text = name.decode("ascii") if isinstance(name, bytes) else name
        if text not in NUMBERS:
            raise ValueError(f"arrays of {name!r} are not read")
        self.dtype = np.dtype(text)

    def __setstate__(self, state: object) -> None:
        """Take the byte order; all else is the same for every plain number."""
        if not isinstance(state, tuple) or state[2:] != (None, None, None, -1, -1, 0):
            raise ValueError("an array is not of a plain type")
        order = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|"):
            raise ValueError(f"an array has the byte order {order!r}")
        self.dtype = np.dtype(f"{order}{self.dtype.str[1:]}")


class _Object:
    """Stands in for numpy's type of objects, which never sees what a pickle says."""

    def __setstate__(self, state: object) -> None:
        pass


def _any_type(name: object, align: object = 0, copy: object = 0) -> _Type | _Object:
    return _Object() if name in ("O8", b"O8") else _Type(name)


class _Array(np.ndarray[Any, Any]):
    """An array that takes only bytes that are as many as its shape and plain type want."""

    held: tuple[Any, ...] = ()
    """The only value of an array of objects, which itself stays empty."""

    def __setstate__(self, state: object, /) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise ValueError("an array has another state")
        _, shape, kind, is_turned, content = state
        if isinstance(kind, _Object):
            if shape != () or type(content) is not list or len(content) != 1:
                raise ValueError("an array holds several objects")
            self.held = tuple(content)
            return
        dtype = _checked(content, kind, shape)
        super().__setstate__((1, shape, dtype, bool(is_turned), content))  # type: ignore[arg-type]


def _checked(content: object, kind: object, shape: object) -> np.dtype[Any]:
    """Return an array's type, if bytes, type and shape agree."""
    if not isinstance(content, bytes | bytearray) or not isinstance(kind, _Type):
        raise ValueError("an array does not hold bytes of a plain type")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"an array has the shape {shape!r}")
    if len(content) != math.prod(shape) * kind.dtype.itemsize:
        raise ValueError(f"an array of shape {shape} has {len(content)} bytes")
    return kind.dtype


def _empty_array(kind: object, shape: object, dtype: object) -> NDArray[Any]:
    """Stand in for numpy's `_reconstruct`, which is always called like this; values follow."""
    return _Array((0,), np.uint8)


def _array(content: Any, kind: object, shape: Any, order: Any) -> NDArray[Any]:
    """Stand in for numpy's `_frombuffer`, of protocol 5."""
    return np.frombuffer(content, _checked(content, kind, shape)).reshape(shape, order=order)


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Stand in for `_codecs.encode`, as which Python 3 writes bytes into old protocols."""
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Stand in for `bytes`, as which Python 3 writes the empty bytes into old protocols."""
    return b""


_ADMITTED: dict[tuple[str, str], Callable[..., Any] | None] = {
    ("__builtin__", "bytes"): _no_bytes,
    ("_codecs", "encode"): _latin1,
    ("numpy", "dtype"): _Type,
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
    admitted = _ADMITTED

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self.admitted[module, name]
        except KeyError:
            raise _Refused(f"{module}.{name}") from None


class _Single(_Plain):
    admitted = _ADMITTED | {("numpy", "dtype"): _any_type}
