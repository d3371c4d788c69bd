"""How close is close enough, by name: `torch.testing.assert_close(a, b, **FLOAT32)`."""

from typing import Final, TypedDict


class Tolerance(TypedDict):
    rtol: float
    atol: float


EXACT: Final[Tolerance] = {"rtol": 0.0, "atol": 0.0}
FLOAT32: Final[Tolerance] = {"rtol": 1e-5, "atol": 1e-6}
DOUBLE: Final[Tolerance] = {"rtol": 1e-9, "atol": 1e-10}
