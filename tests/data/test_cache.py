"""Arrays are made once, appear whole or not at all, and are mapped from then on."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subflot.data import cache
from subflot.data.cache import cached, entry_of, identity, open_entry
from subflot.data.source import Contents
from subflot.errors import SubflotError

KEY = {"name": "few", "settings": {"size": 8}, "files": [["a.zip", 10, 20]]}


def contents(value: int = 1) -> Contents:
    inputs = np.full((4, 3), value, dtype=np.uint8)
    return Contents(inputs, np.array([0, 1, 0, 1]), ("é", "b"), np.array([0, 0, 1, 1]), ("x", "y"))


def never() -> Contents:
    raise AssertionError("made again")


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_made_once_is_mapped_from_then_on() -> None:
    made = cached(KEY, contents)
    again = cached(KEY, never)
    for found in (made, again):
        assert (found.inputs == 1).all()
        assert found.labels.tolist() == [0, 1, 0, 1]
        assert found.groups is not None
        assert found.groups.tolist() == [0, 0, 1, 1]
        assert (found.classes, found.group_names) == (("é", "b"), ("x", "y"))
        for array in (found.inputs, found.labels, found.groups):
            assert isinstance(array, np.memmap)
            assert array.mode == "r"


def test_groups_are_optional() -> None:
    made = cached(KEY, lambda: Contents(np.zeros((1, 2)), np.array([0]), ("a",)))
    assert made.groups is None
    assert made.group_names == ()
    assert made.spans is None


def test_spans_are_kept() -> None:
    spans = np.array([[4, 0, 128]])
    cached(KEY, lambda: Contents(np.zeros((1, 2)), np.array([0]), ("a",), spans=spans))
    again = cached(KEY, never)
    assert isinstance(again.spans, np.memmap)
    assert again.spans.tolist() == spans.tolist()


@pytest.mark.parametrize(
    "changed",
    [{"name": "other"}, {"settings": {"size": 9}}, {"files": [["a.zip", 10, 21]]}, {"files": []}],
)
def test_whatever_the_arrays_depend_on_gives_another_entry(changed: dict[str, Any]) -> None:
    cached(KEY, contents)
    assert (cached({**KEY, **changed}, lambda: contents(2)).inputs == 2).all()
    assert (cached(KEY, never).inputs == 1).all()


def test_a_new_version_of_the_readers_makes_everything_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached(KEY, contents)
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    assert (cached(KEY, lambda: contents(2)).inputs == 2).all()


def test_a_changed_file_is_seen_by_its_size_or_its_time(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    file.write_bytes(b"one")
    first = identity("few", {}, {"a.zip": file})
    assert identity("few", {}, {"a.zip": file}) == first
    os.utime(file, ns=(0, 5))
    touched = identity("few", {}, {"a.zip": file})
    file.write_bytes(b"three")
    os.utime(file, ns=(0, 5))
    assert len({str(key) for key in (first, touched, identity("few", {}, {"a.zip": file}))}) == 3


def test_a_reader_that_fails_leaves_nothing() -> None:
    def fail() -> Contents:
        raise SubflotError("no")

    with pytest.raises(SubflotError, match="no"):
        cached(KEY, fail)
    assert open_entry(entry_of(KEY)) is None
    assert not entry_of(KEY).exists()


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(SubflotError, match="No space left") as caught:
        cached(KEY, contents)
    assert "SUBFLOT_CACHE" in caught.value.hint
    assert left_in(entry_of(KEY).parent) == []


def test_somebody_who_is_faster_is_no_trouble() -> None:
    """The other process finishes while this one is still reading."""

    def overtaken() -> Contents:
        cached(KEY, lambda: contents(2))
        return contents(1)

    assert (cached(KEY, overtaken).inputs == 2).all()
    assert left_in(entry_of(KEY).parent) == [entry_of(KEY).name]


def _make_together(barrier: Any, results: Any) -> None:
    def make() -> Contents:
        barrier.wait()
        return contents()

    results.put(int(cached(KEY, make).inputs.sum()))


def test_two_processes_that_make_the_same_at_once_both_end_well() -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(2), context.Queue()
    workers = [context.Process(target=_make_together, args=(barrier, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [results.get(timeout=60) for _ in workers] == [12, 12]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert left_in(entry_of(KEY).parent) == [entry_of(KEY).name]


KILLED = """
import os, signal, sys
import numpy as np
sys.path.insert(0, {tests!r})
from test_cache import KEY, contents
from subflot.data.cache import cached

real, calls = np.save, []
def save(file, array, **kwargs):
    calls.append(1)
    if len(calls) == {call}:
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    real(file, array, **kwargs)
np.save = save
cached(KEY, contents)
"""


@pytest.mark.parametrize("call", [1, 3])
def test_a_process_killed_while_writing_leaves_no_entry(call: int) -> None:
    script = KILLED.format(tests=str(Path(__file__).parent), call=call)
    done = subprocess.run([sys.executable, "-c", script], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not entry_of(KEY).exists()
    assert len(left_in(entry_of(KEY).parent)) == 1  # What it was writing.
    assert (cached(KEY, lambda: contents(3)).inputs == 3).all()


def test_leftovers_go_after_a_day_and_not_before() -> None:
    root = cache.cache_root()
    old, fresh = root / f"{cache.LEFTOVER}old", root / f"{cache.LEFTOVER}fresh"
    for folder in (old, fresh):
        folder.mkdir(parents=True)
        (folder / "inputs.npy").write_bytes(b"half")
    long_ago = time.time() - 2 * cache.LEFTOVER_SECONDS
    os.utime(old, (long_ago, long_ago))
    cached(KEY, contents)
    assert left_in(root) == sorted([fresh.name, entry_of(KEY).name])


def truncate(entry: Path) -> None:
    file = entry / "inputs.npy"
    file.write_bytes(file.read_bytes()[:-5])


def lose_labels(entry: Path) -> None:
    (entry / "labels.npy").unlink()


def spoil_text(entry: Path) -> None:
    (entry / "about.json").write_text("{")


@pytest.mark.parametrize("damage", [truncate, lose_labels, spoil_text])
def test_a_damaged_entry_is_made_anew(damage: Callable[[Path], None]) -> None:
    cached(KEY, contents)
    damage(entry_of(KEY))
    assert open_entry(entry_of(KEY)) is None
    assert (cached(KEY, lambda: contents(2)).inputs == 2).all()
    assert (cached(KEY, never).inputs == 2).all()


def test_the_cache_lies_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBFLOT_CACHE", str(tmp_path / "elsewhere"))
    assert entry_of(KEY).parent == tmp_path / "elsewhere"
    monkeypatch.delenv("SUBFLOT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert "subflot" in str(entry_of(KEY))
