"""The folder of a run: whole rounds or none, whatever happens to it."""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import contents, differing, metrics_of, run_rounds
from made_files import flip, without_checksums
from torch import Tensor

from subflot.algorithms import make
from subflot.algorithms.base import State
from subflot.errors import SubflotError
from subflot.simulation.store import Manifest, Store, clear, flattened, joined


class Failing:
    """Lets so many calls through and then fails."""

    def __init__(self, call: Any, left: int, error: BaseException) -> None:
        self.call, self.left, self.error = call, left, error

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return self.call(*args, **kwargs)


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def weights(value: float) -> dict[str, Tensor]:
    return {"a.weight": torch.full((2, 3), value), "count": torch.tensor(int(value))}


def equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store after two rounds, in the second of which client 7 took part."""
    store = Store(tmp_path)
    assert store.open() is None
    store.write(Manifest(0), State(weights(0)))
    store.commit(Manifest(0), {})
    for round in (1, 2):
        history = {"3": "history/3-1.safetensors"} if round == 2 else {}
        client = 3 if round == 1 else 7
        history[str(client)] = store.keep("history", client, round, weights(round))
        memory = {str(client): store.keep("memory", client, round, weights(10 * round))}
        manifest = Manifest(round, history, memory)
        store.write(manifest, State(weights(round), {"mean": torch.tensor([0.5])}))
        store.commit(manifest, {"metrics.jsonl": {"round": round}})
    return store


def test_what_was_committed_is_read_back(store: Store) -> None:
    manifest = store.open()
    assert manifest is not None
    assert manifest.round == 2
    state = store.state(manifest)
    assert equal(state.weights, weights(2))
    assert equal(state.extras, {"mean": torch.tensor([0.5])})
    assert list(state.history) == [3, 7]
    assert len(state.history) == 2
    assert 5 not in state.history
    assert equal(state.history[3], weights(1))
    assert equal(state.history[7], weights(2))
    assert equal(store.memory(manifest, 7), weights(20))
    assert store.memory(manifest, 3) == {}


def test_files_of_rounds_that_are_over_are_gone(store: Store) -> None:
    files = sorted(str(p.relative_to(store.folder)) for p in store.folder.rglob("*.safetensors"))
    assert files == [
        "history/3-1.safetensors",
        "history/7-2.safetensors",
        "memory/7-2.safetensors",
        "state-2.safetensors",
    ]


def test_a_round_that_was_not_committed_leaves_no_trace(store: Store) -> None:
    before = contents(store.folder)
    store.keep("history", 7, 3, weights(3))
    store.keep("memory", 5, 3, weights(3))
    store.write(Manifest(3), State(weights(3)))
    store.arriving(7).write_bytes(b"half of an upl")
    (store.folder / ".manifest.json.99.part").write_text("{")
    with (store.folder / "metrics.jsonl").open("a") as log:
        log.write('{"round": 3')
    manifest = store.open()
    assert manifest is not None
    assert manifest.round == 2
    assert contents(store.folder) == before


def test_lines_of_a_first_round_that_was_not_committed_are_gone(tmp_path: Path) -> None:
    for manifest in (None, Manifest(0)):
        store = Store(tmp_path)
        if manifest:
            store.write(manifest, State(weights(0)))
            store.commit(manifest, {})
        (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n')
        store.open()
        assert metrics_of(tmp_path) == []


def test_logs_grow_by_a_line_per_round(store: Store) -> None:
    assert [line["round"] for line in metrics_of(store.folder)] == [1, 2]


READERS: dict[str, Callable[[Store, Manifest], object]] = {
    "state-2.safetensors": lambda store, manifest: store.state(manifest),
    "history/7-2.safetensors": lambda store, manifest: store.state(manifest).history[7],
    "memory/7-2.safetensors": lambda store, manifest: store.memory(manifest, 7),
}


@pytest.mark.parametrize("missing", [1, 100, None])
@pytest.mark.parametrize("file", READERS)
def test_a_file_that_lost_bytes_is_named(store: Store, file: str, missing: int | None) -> None:
    path = store.folder / file
    os.truncate(path, path.stat().st_size - missing if missing else 0)
    manifest = store.open()
    assert manifest is not None
    with pytest.raises(SubflotError, match=f"checkpoint is damaged: .*{file}.*\n.*--force"):
        READERS[file](store, manifest)


def test_a_missing_file_is_named(store: Store) -> None:
    (store.folder / "state-2.safetensors").unlink()
    manifest = store.open()
    assert manifest is not None
    with pytest.raises(SubflotError, match=r"there is no file .*state-2\.safetensors"):
        store.state(manifest)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "manifest.json is damaged"),
        ('{"format": 1, "round": 2, "hist', "manifest.json is damaged"),
        ('{"format": 1, "turn": 2}', "manifest.json is damaged"),
        ('{"round": 2}', "manifest.json is damaged"),
        ("[1]", "manifest.json is damaged"),
        ('{"format": 99, "round": 2}', "has format 99, this version reads 1"),
    ],
)
def test_a_damaged_manifest_is_an_error_and_nothing_is_thrown_away(
    store: Store, text: str, message: str
) -> None:
    (store.folder / "manifest.json").write_text(text)
    with pytest.raises(SubflotError, match=message):
        store.open()
    assert (store.folder / "state-2.safetensors").exists()


def test_no_flipped_bit_of_a_manifest_is_read_as_if_nothing_were(store: Store) -> None:
    path, before = store.folder / "manifest.json", store.manifest()
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        flip(path, bit // 8, bit % 8)
        with pytest.raises(SubflotError, match=r"manifest\.json (is damaged|has format)"):
            store.manifest()
        path.write_bytes(whole)
    assert store.manifest() == before


def test_a_folder_from_before_checksums_is_read_and_gets_them(store: Store) -> None:
    without_checksums(store.folder)
    manifest = store.open()
    assert manifest is not None
    assert equal(store.state(manifest).weights, weights(2))
    store.write(replace(manifest, round=3), State(weights(3)))
    store.commit(replace(manifest, round=3), {"metrics.jsonl": {"round": 3}})
    flip(store.folder / "metrics.jsonl", 0)
    with pytest.raises(SubflotError, match=r"metrics\.jsonl is damaged: its checksum"):
        store.open()


def test_a_log_that_lost_lines_is_an_error(store: Store) -> None:
    os.truncate(store.folder / "metrics.jsonl", 4)
    with pytest.raises(SubflotError, match=r"metrics\.jsonl is shorter than the \d+ bytes it had"):
        store.open()


@pytest.mark.parametrize("calls", range(5))
def test_a_run_whose_clearing_was_interrupted_starts_anew(
    calls: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(os, "unlink", Failing(os.unlink, calls, KeyboardInterrupt()))
        clear(store.folder)
    assert store.open() is None
    assert metrics_of(store.folder) == []
    assert not list(store.folder.glob("state-*"))
    assert not (store.folder / ".forgetting.json").exists()


def test_clearing_removes_what_a_run_left_and_nothing_else(store: Store) -> None:
    (store.folder / "notes.txt").write_text("mine")
    clear(store.folder)
    assert [path.name for path in store.folder.iterdir()] == ["notes.txt"]


def test_groups_of_tensors_share_a_file() -> None:
    parts = {"weights": weights(1), "extras": {"weights/x": torch.ones(1)}}
    again = joined(flattened(parts))
    assert again.keys() == parts.keys()
    assert all(equal(again[part], parts[part]) for part in parts)


# ----- a full disk


# Of four histories, the state, two logs and two folders; then of the manifest and its folder.
@pytest.mark.parametrize("left", range(11))
def test_a_full_disk_is_one_clear_error_and_the_run_goes_on_afterwards(
    left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Path
) -> None:
    folder = run_rounds(make("subflot"), tmp_path, rounds=2, stop_after=1)
    before = contents(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Failing(os.fsync, left, FULL))
        with pytest.raises(SubflotError, match=r"cannot write .*No space left on device"):
            run_rounds(make("subflot"), folder, rounds=2)
    manifest = Store(folder).open()
    assert manifest is not None
    assert manifest.round == (1 if left < 10 else 2)
    assert manifest.round == 2 or contents(folder) == before
    run_rounds(make("subflot"), folder, rounds=2)
    assert differing(folder, undisturbed) == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_rounds(make("subflot"), tmp_path_factory.mktemp("whole"), rounds=2)


def test_rounds_that_only_lack_their_manifest_are_not_thrown_away(
    store: Store, tmp_path: Path
) -> None:
    before = {path for path in tmp_path.rglob("*") if path.name != "manifest.json"}
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(SubflotError, match=r"manifest\.json is gone") as error:
        store.open()
    assert "--force" in error.value.hint
    assert {*tmp_path.rglob("*")} >= before
