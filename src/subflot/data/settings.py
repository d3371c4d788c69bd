"""Settings of a data set: frozen dataclasses, filled from keywords or from the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from subflot.errors import SubflotError, UnknownName

S = TypeVar("S")

LARGEST_SIZE = 1024


@dataclass(frozen=True)
class NoSettings:
    """For a data set that can be read in one way only."""


@dataclass(frozen=True)
class ImageSettings:
    """How images are brought to one shape, (channels, size, size)."""

    size: int = 32
    """Height and width; images of another size are resized with Pillow's bicubic filter."""
    channels: int = 3
    """3 for colour, 1 for grey (luma of ITU-R 601)."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= LARGEST_SIZE:
            raise SubflotError(f"size is {self.size}", hint=f"it lies in [1, {LARGEST_SIZE}]")
        if self.channels not in (1, 3):
            raise SubflotError(f"channels is {self.channels}", hint="3 for colour, 1 for grey")


def fill(kind: type[S], values: Mapping[str, Any], owner: str) -> S:
    """Make the settings of a data set from keywords; what is not named keeps its default.

    Example:
        >>> fill(ImageSettings, {"size": 64}, "cifar10")
        ImageSettings(size=64, channels=3)
    """
    defaults = _defaults(kind)
    for name, value in values.items():
        _known(name, defaults, owner)
        wanted = type(defaults[name])
        fits = isinstance(value, (tuple, list)) if wanted is tuple else type(value) is wanted
        if not fits:
            raise SubflotError(
                f"setting `{name}` of `{owner}` is {value!r}",
                hint=f"it is of type {wanted.__name__}, as in {name}={defaults[name]!r}",
            )
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def values_of(settings: Any) -> dict[str, Any]:
    """The settings by name."""
    return {name: getattr(settings, name) for name in _defaults(type(settings))}


def parse(kind: type[S], pairs: Iterable[str], owner: str) -> dict[str, Any]:
    """Read `key=value` as written on the command line into keywords for `fill`.

    Example:
        >>> parse(ImageSettings, ["size=64"], "cifar10")
        {'size': 64}
    """
    defaults = _defaults(kind)
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise SubflotError(f"`{pair}` sets nothing", hint="write key=value, as in size=64")
        _known(name, defaults, owner)
        default = defaults[name]
        try:
            values[name] = tuple(text.split(",")) if type(default) is tuple else type(default)(text)
        except ValueError:
            raise SubflotError(
                f"`{text}` is no value for `{name}` of `{owner}`",
                hint=f"it is of type {type(default).__name__}, as in {name}={default}",
            ) from None
    return values


def _defaults(kind: type[Any]) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind)}


def _known(name: str, defaults: Mapping[str, Any], owner: str) -> None:
    if not defaults:
        raise SubflotError(f"`{owner}` has no settings, so `{name}` cannot be set")
    if name not in defaults:
        raise UnknownName(f"setting of `{owner}`", name, defaults, "subflot data list --json")
