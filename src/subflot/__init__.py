"""Federated learning in which every client trains a model of its own size."""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subflot.public import *  # noqa: F403

    __version__: str

else:  # Not for type checkers, which would then take any name for one of ours.

    def __getattr__(name: str) -> Any:
        """Return a public name. They are imported late, for torch takes seconds."""
        if name == "__version__":
            return version("subflot")
        if not name.startswith("_"):
            public = import_module("subflot.public")
            if name in public.__all__:
                return getattr(public, name)
            if name in globals():  # A module that was imported on the way.
                return globals()[name]
        raise AttributeError(f"module `subflot` has no attribute `{name}`")

    def __dir__() -> list[str]:
        return [*globals(), *import_module("subflot.public").__all__]
