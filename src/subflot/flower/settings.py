"""What can be set of a run on Flower: deadlines, how many must answer, and privacy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from subflot.errors import SubflotError, UnknownName
from subflot.flower.privacy import check_noise, noise

PRIVACY = ("", "clipping", "local-dp")
PRIVATE = ("privacy", "clipping_norm", "sensitivity", "epsilon", "delta")
"""Settings that change what is learned."""


@dataclass(frozen=True)
class FlowerSettings:
    """The table `[flower]` of a file of settings.

    Attributes:
        round_timeout: seconds that clients have for their part in a round; whoever has not
            answered by then is left out of it.
        min_uploads: a round with fewer good uploads is an error.
        min_nodes: a round waits until so many nodes are there.
        measure_global: ask every client how the new global model does on its test examples; it
            costs one more message per client in every round that is measured.
        privacy: what happens on the client before its weights leave it: `clipping` shortens the
            change to `clipping_norm`, `local-dp` also adds noise; nothing if empty.
        clipping_norm: the longest change, over all weights; a longer one is not merged.
        sensitivity: of the Gaussian noise of `local-dp`: how far two clipped changes can lie apart,
            at least twice `clipping_norm`.
        epsilon, delta: what the noise is to give, for one message.
    """

    round_timeout: float = 600.0
    min_uploads: int = 1
    min_nodes: int = 1
    measure_global: bool = True
    privacy: str = ""
    clipping_norm: float = 1.0
    sensitivity: float = 2.0
    epsilon: float = 1.0
    delta: float = 1e-5

    def __post_init__(self) -> None:
        if self.privacy not in PRIVACY:
            raise UnknownName("privacy", self.privacy, PRIVACY[1:], "docs/flower.md")
        for name in ("min_uploads", "min_nodes"):
            if getattr(self, name) < 1:
                raise SubflotError(f"{name} is {getattr(self, name)}", hint="at least 1")
        for name in ("round_timeout", *PRIVATE[1:]):
            if not 0 < getattr(self, name) < float("inf"):
                raise SubflotError(f"{name} is {getattr(self, name)}", hint="a positive number")
        if self.privacy == "local-dp":
            check_noise(self.clipping_norm, self.sensitivity, self.epsilon, self.delta)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "FlowerSettings":
        """Make settings from a table; unknown keys and values of another kind are errors."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        found: dict[str, Any] = {}
        for key, value in table.items():
            if key not in kinds:
                raise UnknownName("setting of [flower]", key, kinds, "docs/flower.md")
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if kinds[key] is float and is_number:
                value = float(value)
            if type(value) is not kinds[key]:
                raise SubflotError(
                    f"{key} of [flower] is {value!r}", hint=f"it is of type {kinds[key].__name__}"
                )
            found[key] = value
        return cls(**found)

    def table(self) -> dict[str, Any]:
        """Return what differs from the defaults, as `of` takes it; of privacy, everything."""
        usual = asdict(type(self)())
        told = PRIVATE if self.privacy else ()
        return {k: v for k, v in asdict(self).items() if v != usual[k] or k in told}

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise that clients add."""
        if self.privacy != "local-dp":
            return 0.0
        return noise(self.sensitivity, self.epsilon, self.delta)
