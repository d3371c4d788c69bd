"""The smartwatch's recordings, from small ones made here and from the real ones."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_files import zip_file
from numpy.typing import NDArray

from subflot.cli.run import read_settings
from subflot.data.archives import ZipReader
from subflot.data.federated import federate
from subflot.data.pickles import load_single
from subflot.data.sets import load
from subflot.data.source import Files
from subflot.data.watch import INNER, WHEEL
from subflot.errors import SubflotError
from subflot.experiments.config import grid
from subflot.experiments.runner import assemble


def signals(recording: int, steps: int) -> NDArray[np.float64]:
    """Whose value tells its recording, its signal and its step; in columns, as published."""
    marks = 10_000 * recording + 1000 * np.arange(6) + np.arange(steps)[:, None]
    return np.asfortranarray(marks.astype(np.float64))


def content() -> dict[str, Any]:
    """Four recordings of three arms; the third is too short for a window."""
    return {
        "X": [signals(n, steps) for n, steps in enumerate((256, 300, 127, 128))],
        "y": np.array([1, 0, 1, 1], dtype=np.uint8),
        "subject": np.array([7.0, 2.0, 2.0, 7.0]),
        "side": np.array([0, 1, 1, 1]),
        "X_labels": ["x"] * 6,
        "y_labels": ["PEN", "ABD"],
    }


def npy(value: Any) -> bytes:
    """As numpy writes a single value; an array stays one."""
    holder = value
    if not isinstance(value, np.ndarray):
        holder = np.empty((), dtype=object)
        holder[()] = value
    stream = io.BytesIO()
    np.save(stream, holder, allow_pickle=True)
    return stream.getvalue()


def write(root: Path, value: Any) -> Path:
    path = root / "watch" / INNER
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(npy(value))
    return path


def test_recordings_are_cut_into_windows_that_overlap_by_half(tmp_path: Path) -> None:
    write(tmp_path, content())
    data = load("watch", root=tmp_path)
    expected = [(0, 0), (0, 64), (0, 128), (1, 0), (1, 64), (1, 128), (3, 0)]
    assert data.spans is not None
    assert data.spans.tolist() == [[n, start, start + 128] for n, start in expected]
    assert data.inputs.shape == (7, 6, 1, 128)
    for window, (recording, start) in zip(data.inputs, expected, strict=True):
        assert np.array_equal(window[:, 0], signals(recording, 300)[start : start + 128].T)
    assert data.classes == ("PEN", "ABD")
    assert data.labels.tolist() == [1, 1, 1, 0, 0, 0, 1]


def test_an_arm_of_a_person_is_a_group(tmp_path: Path) -> None:
    everyone = {"X": [signals(n, 128) for n in range(4)], "side": np.array([0, 1, 0, 1])}
    write(tmp_path, content() | everyone)
    data = load("watch", root=tmp_path)
    assert data.group_names == (
        "person 2, left arm",
        "person 2, right arm",
        "person 7, left arm",
        "person 7, right arm",
    )
    assert data.groups is not None
    assert data.groups.tolist() == [2, 1, 0, 3]


def test_the_wheel_is_read_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "inner", content())
    wheel = tmp_path / "outer" / "watch" / WHEEL
    zip_file(wheel, {f"seglearn/data/{INNER}": npy(content()), "seglearn/x.py": b""})
    one, other = (load("watch", root=tmp_path / kind) for kind in ("inner", "outer"))
    assert np.array_equal(one.inputs, other.inputs)


class Call:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made-by-a-pickle",)


def test_a_call_is_refused_and_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, content() | {"X_labels": [Call()]})
    with pytest.raises(SubflotError, match=r"asks to run `.*mkdir`"):
        load("watch", root=tmp_path)
    assert not (tmp_path / "made-by-a-pickle").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": [signals(0, 200)[:, :5]] * 4}, "no rows of 6 finite numbers"),
        ({"X": [np.full((200, 6), np.nan)] * 4}, "no rows of 6 finite numbers"),
        ({"X": [[[1.0] * 6] * 200] * 4}, "a recording is no array"),
        ({"X": [np.zeros((200, 6), dtype=np.int64)] * 4}, "a recording is no array"),
        ({"X": [signals(0, 200)] * 3}, "3 recordings, but no such many"),
        ({"X": [signals(0, 127)] * 4}, "no recording is as long as a window"),
        ({"X": 5}, "not iterable"),
        ({"y": np.array([0, 1, 2, 1])}, r"outside of \[0, 2\)"),
        ({"y": np.array([0, 1, -1, 1])}, r"outside of \[0, 2\)"),
        ({"y": np.array([0.5, 1, 1, 1])}, "no such many whole numbers"),
        ({"side": np.array([0, 1, 2, 1])}, r"outside of \[0, 2\)"),
        ({"subject": np.array([1e300, 1, 1, 1])}, "outside of"),
        ({"subject": ["a", "b", "c", "d"]}, "no such many whole numbers"),
        ({"y_labels": ["PEN", "ABD", "FEL"]}, "class `FEL` has no examples"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    write(tmp_path, content() | change)
    with pytest.raises(SubflotError, match=said):
        load("watch", root=tmp_path)


def test_other_contents_are_refused(tmp_path: Path) -> None:
    for value, said in (
        ([1, 2], "a list where a dict should be"),
        ({"y": 1}, "KeyError.*X"),
        (np.zeros(3), "does not hold a single value|cannot unpickle"),
    ):
        write(tmp_path, value)
        with pytest.raises(SubflotError, match=said):
            load("watch", root=tmp_path)


@pytest.mark.slow
def test_the_real_recordings(real: Callable[[str], Files]) -> None:
    (path,) = real("watch").values()
    data = load("watch")
    assert data.spans is not None
    assert data.groups is not None
    assert data.input_shape == (6, 1, 128)
    assert len(data) == 3605
    assert len(set(data.spans[:, 0].tolist())) == 140
    sizes = np.bincount(data.groups)
    assert (len(sizes), sizes.min(), sizes.max()) == (20, 103, 234)
    # Every window again, by slicing what the file holds.
    if path.name == INNER:
        pickled = path.read_bytes()
    else:
        with ZipReader(path) as archive:
            pickled = archive.read(f"seglearn/data/{INNER}")
    found = load_single(pickled, path)
    for window, label, (recording, start, stop) in zip(
        data.inputs, data.labels, data.spans, strict=True
    ):
        assert np.array_equal(window[:, 0].T, found["X"][recording][start:stop].astype("f4"))
        assert label == found["y"][recording]


@pytest.mark.slow
def test_no_window_for_testing_overlaps_one_for_training(real: Callable[[str], Files]) -> None:
    real("watch")
    data = load("watch")
    clients = federate(data, partition="by_group", validation_share=0.2)
    assert clients.num_clients == 20
    assert data.spans is not None
    for share in clients.shares:
        for early, late in (
            (share.train, share.validation),
            (share.train, share.test),
            (share.validation, share.test),
        ):
            assert len(early)
            assert len(late)
            for recording in np.unique(data.spans[late, 0]):
                before = data.spans[early][data.spans[early, 0] == recording]
                after = data.spans[late][data.spans[late, 0] == recording]
                assert before[:, 2].max(initial=0) <= after[:, 1].min()
        assert len(np.unique(data.labels[share.test])) == 7


@pytest.mark.slow
def test_the_presets_network_takes_the_real_windows(real: Callable[[str], Files]) -> None:
    real("watch")
    settings = read_settings("watch")
    del settings["tune"]
    task, data, _ = assemble(grid(settings)[0])
    assert data.num_clients == 20
    assert task.example.shape == (1, 6, 1, 128)
