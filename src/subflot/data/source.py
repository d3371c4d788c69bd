"""What is known of a data set before it is read: its files, their origin, its settings."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from subflot.data.packages import Package
from subflot.data.settings import S
from subflot.errors import SubflotError

Files = Mapping[str, Path]
"""Name of a file in the data set's folder -> where it lies."""


@dataclass(frozen=True)
class SourceFile:
    """One file as it is published."""

    name: str
    url: str = ""
    """Where to fetch it directly; empty if it has to be fetched by hand."""
    md5: str = ""
    """Of the file behind `url` or in the package; empty if none is known."""
    domain: str = ""
    """The domain it holds: needed only if the setting `domains` names it."""


@dataclass(frozen=True, eq=False)
class Contents:
    """The arrays that a reader makes, as `Dataset` holds them."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    group_names: tuple[str, ...] = ()
    spans: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Source(Generic[S]):
    """One data set: what it is, its files, and the function that reads them."""

    name: str
    title: str
    licence: str
    page: str
    """Where a person finds it."""
    test_share: float
    settings: type[S]
    """A frozen dataclass with a default for every field."""
    read: Callable[[Files, S], Contents]
    layouts: tuple[tuple[SourceFile, ...], ...] = ((),)
    """The ways in which the files may lie in the set's folder, the usual one first; a single empty
    one for data that needs no files."""
    package: Package | None = None
    """A package that holds the files, which are also looked for where it installs them."""

    def folder(self, root: Path | None = None) -> Path:
        """Where its files belong; `ag_news` is as good as `ag-news`."""
        root = data_root() if root is None else root
        other = root / self.name.replace("-", "_")
        return other if other.is_dir() else root / self.name

    def needed(self, settings: S) -> list[tuple[SourceFile, ...]]:
        """List the files that these settings need, for each layout."""
        domains = getattr(settings, "domains", ())
        return [
            tuple(file for file in layout if not file.domain or file.domain in domains)
            for layout in self.layouts
        ]

    def find(self, settings: S, root: Path | None = None) -> Files | None:
        """Find the files of the first layout that is complete; None if none is.

        What lies in the set's folder comes before what a package has installed.
        """
        installed = self.package.places() if self.package else ()
        for folder in (self.folder(root), *installed):
            for layout in self.needed(settings):
                if all((folder / file.name).is_file() for file in layout):
                    return {file.name: folder / file.name for file in layout}
        return None

    def locate(self, settings: S, root: Path | None = None) -> Files:
        """Find the files; an error says which one is missing and what to do."""
        files = self.find(settings, root)
        if files is None:
            raise self.missing(settings, root)
        return files

    def missing(self, settings: S, root: Path | None = None) -> SubflotError:
        """Say which files are missing, and how to get them."""
        folder = self.folder(root)
        absent = [f for f in self.needed(settings)[0] if not (folder / f.name).is_file()]
        names = ", ".join(f"`{file.name}`" for file in absent)
        steps = []
        if any(file.url for file in absent):
            steps.append(f"`subflot data get {self.name}` fetches what can be fetched")
        if self.package:
            steps.append(
                f"`{self.package}` installs it"
                if self.package.is_for_all
                else f"`subflot data get {self.name}` gets it with `{self.package}`"
            )
        by_hand = [file.name for file in absent if not file.url]
        if by_hand:
            listed = ", ".join(by_hand)
            steps.append(
                f"or put {listed} there by hand ({self.page})"
                if self.package
                else f"get {listed} from {self.page} and put it there by hand"
            )
        lacking = {file.domain for file in absent}
        domains = [d for d in getattr(settings, "domains", ()) if d not in lacking]
        if domains:
            steps.append(
                f"or use the domains at hand: domains={tuple(domains)}, "
                f"on the command line --set domains={','.join(domains)}"
            )
        return SubflotError(
            f"data set `{self.name}`: {names} not found in {folder}", hint="; ".join(steps)
        )


def data_root() -> Path:
    """The folder that holds one folder per data set: SUBFLOT_DATA, or the user's data folder."""
    from platformdirs import user_data_path

    named = os.environ.get("SUBFLOT_DATA")
    return Path(named) if named else user_data_path("subflot", appauthor=False) / "data"
