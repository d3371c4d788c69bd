"""Arrays from MATLAB files, checked before they fill the memory."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from subflot.data.archives import MEMBER_BYTES, damaged
from subflot.errors import SubflotError


def read_mat(path: Path, keys: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Read these variables; an error names the one that is missing."""
    from scipy.io import loadmat, whosmat

    try:
        entries = {name: math.prod(shape) for name, shape, _ in whosmat(path)}
        for key in keys:
            if key not in entries:
                found = ", ".join(f"`{name}`" for name in entries) or "nothing"
                raise damaged(path, f"there is no `{key}` in it, only {found}")
            # At one byte per entry at least; this is a guard, not a measure.
            if entries[key] > MEMBER_BYTES:
                raise damaged(path, f"`{key}` declares {entries[key]:,} entries")
        fields = loadmat(path, variable_names=list(keys))
        return {key: fields[key] for key in keys}
    except SubflotError:
        raise
    # The parser raises whatever it stumbles over in a damaged file.
    except Exception as error:
        raise damaged(path, f"cannot be read as a MATLAB file ({error})") from error
