import os
from collections.abc import Callable
from pathlib import Path

import pytest

from subflot.data.sets import find
from subflot.data.source import Files

AT_HAND = {"digit5": {"domains": ("mnist", "mnistm", "svhn", "usps")}}
"""Settings with which the smallest useful download of a set is complete."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache, or another test's."""
    monkeypatch.setenv("SUBFLOT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def real(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Files]:
    """The files of a real data set; without them the test is skipped."""
    # Shared by all tests on real data, so that each set is read once.
    monkeypatch.setenv("SUBFLOT_CACHE", str(tmp_path_factory.getbasetemp() / "real"))

    def locate(name: str) -> Files:
        source = find(name)
        if not os.environ.get("SUBFLOT_DATA"):
            pytest.skip("name a folder in SUBFLOT_DATA; `subflot data get` fills it")
        files = source.find(source.settings(**AT_HAND.get(name, {})))
        if files is None:
            pytest.skip(f"no {name} in SUBFLOT_DATA; see `subflot data get {name}`")
        return files

    return locate
