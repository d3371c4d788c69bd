"""Arrays that lie in a file and are mapped into memory."""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.errors import SubflotError


@dataclass(frozen=True)
class MappedFile:
    """Where an array lies: enough to map it again, in this process or another."""

    path: Path
    offset: int
    """Bytes before its first entry."""
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: object) -> "MappedFile | None":
        """Find the place of a mapped array; None for anything that must be copied.

        That is every other array, but also a part of a map that is not one stretch of the file,
        and a map that could be written to.
        """
        if not isinstance(array, np.memmap) or array.filename is None or array.mode != "r":
            return None
        if not array.flags.c_contiguous:
            return None
        # A slice keeps the offset of the whole, so its place is read off the addresses. The
        # mapping starts at a multiple of the system's granularity before `offset`.
        mapping = np.frombuffer(array._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
        start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        offset = start + array.ctypes.data - mapping.ctypes.data
        return cls(Path(array.filename), offset, array.shape, array.dtype)

    def open(self) -> NDArray[Any]:
        """Map the array again, read-only."""
        try:
            return np.memmap(
                self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=self.shape
            )
        except (OSError, ValueError) as error:
            raise SubflotError(
                f"cannot map {self.path}: {error}",
                hint="the cache was emptied while a data set was in use; load the set again",
            ) from error
