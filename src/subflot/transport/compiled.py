"""Functions compiled to machine code; import it only where a plan is solved or carried."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile once per machine; the compiled function lets other threads run."""
    compile_ = numba.njit(cache=True, nogil=True, error_model="numpy")
    return cast(Callable[P, R], compile_(function))
