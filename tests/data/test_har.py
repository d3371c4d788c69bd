"""HAR, from a small archive made here and from the real one."""

import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_files import zip_file
from numpy.typing import NDArray

from subflot.data.har import INNER, OUTER, SIGNALS, TOP
from subflot.data.sets import load
from subflot.data.source import Files
from subflot.errors import SubflotError

WINDOWS = {"train": 3, "test": 2}


def value(part: str, signal: int, window: int, step: int) -> float:
    return {"train": 0, "test": 5000}[part] + 1000 * window + 100 * signal + step / 128


def members() -> dict[str, bytes]:
    """Three training windows of subjects 5 and 2, two test windows of subject 11."""
    files = {
        "activity_labels.txt": "1 WALKING\n2 SITTING\n",
        "train/y_train.txt": "2\n1\n2\n",
        "train/subject_train.txt": "5\n5\n2\n",
        "test/y_test.txt": "1\n1\n",
        "test/subject_test.txt": "11\n11\n",
    }
    for part, windows in WINDOWS.items():
        for number, signal in enumerate(SIGNALS):
            rows = [[value(part, number, w, s) for s in range(128)] for w in range(windows)]
            files[f"{part}/Inertial Signals/{signal}_{part}.txt"] = "\n".join(
                "".join(f" {entry: .7e}" for entry in row) for row in rows
            )
    return {f"{TOP}/{name}": text.encode() for name, text in files.items()}


def write(root: Path, files: dict[str, bytes]) -> None:
    zip_file(root / "har" / INNER, files)


def test_signals_are_channels_and_subjects_are_groups(tmp_path: Path) -> None:
    write(tmp_path, members())
    data = load("har", root=tmp_path)
    assert data.inputs.shape == (5, 9, 1, 128)
    places = [("train", 0), ("train", 1), ("train", 2), ("test", 0), ("test", 1)]
    for example, (part, window) in enumerate(places):
        for signal in range(9):
            for step in (0, 77, 127):
                expected = np.float32(value(part, signal, window, step))
                assert data.inputs[example, signal, 0, step] == pytest.approx(expected, rel=1e-6)
    assert data.labels.tolist() == [1, 0, 1, 0, 0]
    assert data.classes == ("walking", "sitting")
    assert data.groups is not None
    assert data.groups.tolist() == [1, 1, 0, 2, 2]
    assert data.group_names == ("subject 2", "subject 5", "subject 11")
    assert data.test_share == 2 / 7
    assert SIGNALS[:4] == ("body_acc_x", "body_acc_y", "body_acc_z", "body_gyro_x")
    assert SIGNALS[6:] == ("total_acc_x", "total_acc_y", "total_acc_z")


def test_the_download_is_a_zip_around_the_zip(tmp_path: Path) -> None:
    write(tmp_path / "inner", members())
    inner = (tmp_path / "inner" / "har" / INNER).read_bytes()
    zip_file(tmp_path / "outer" / "har" / OUTER, {INNER: inner, "UCI HAR Dataset.names": b""})
    one, other = (load("har", root=tmp_path / kind) for kind in ("inner", "outer"))
    assert np.array_equal(one.inputs, other.inputs)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("train/y_train.txt", "2\n1\n9\n", "label 9 is not in `activity_labels"),
        ("train/y_train.txt", "2\n1\n", r"train` have \[2, 3\] rows"),
        ("train/subject_train.txt", "2\n1\n", r"train` have \[2, 3\] rows"),
        ("test/y_test.txt", "1\nx\n", "y_test.txt` is not a table of numbers"),
        ("test/y_test.txt", None, "there is no `.*y_test.txt`"),
        ("test/Inertial Signals/body_gyro_y_test.txt", "1 2\n3 4\n", "no rows of 128 finite"),
        ("test/Inertial Signals/body_gyro_y_test.txt", "1 2\n3\n", "not a table"),
        ("test/Inertial Signals/body_gyro_y_test.txt", "nan " * 128 + "\n", "no rows of 128 fin"),
        ("activity_labels.txt", "WALKING\n", "no rows of number and name"),
        ("activity_labels.txt", "1 WALKING\n2 SITTING\n3 LAYING\n", "class `laying` has no"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    files = members()
    del files[f"{TOP}/{name}"]
    write(tmp_path, files if content is None else files | {f"{TOP}/{name}": content.encode()})
    with pytest.raises(SubflotError, match=said):
        load("har", root=tmp_path)


def numbers(archive: zipfile.ZipFile, name: str) -> NDArray[np.float64]:
    """Read without numpy's parser."""
    rows = archive.read(f"{TOP}/{name}").decode().splitlines()
    return np.array([[float(entry) for entry in row.split()] for row in rows])


@pytest.mark.slow
def test_the_real_archive(real: Callable[[str], Files]) -> None:
    files = real("har")
    if INNER not in files:
        pytest.skip("the counts are read from the inner archive")
    data = load("har")
    with zipfile.ZipFile(files[INNER]) as archive:
        labels, subjects = (
            [
                int(n)
                for part in WINDOWS
                for n in archive.read(f"{TOP}/{part}/{kind}_{part}.txt").split()
            ]
            for kind in ("y", "subject")
        )
        gyro = numbers(archive, "test/Inertial Signals/body_gyro_z_test.txt")
    assert len(data) == 10_299
    assert data.input_shape == (9, 1, 128)
    assert data.groups is not None
    assert len(data.group_names) == 30
    assert (data.labels + 1).tolist() == labels
    assert Counter(data.group_names[group] for group in data.groups) == Counter(
        f"subject {subject}" for subject in subjects
    )
    assert np.array_equal(data.inputs[-len(gyro) :, 5, 0], gyro.astype(np.float32))


@pytest.mark.slow
def test_neighbouring_windows_overlap_by_half_in_every_signal(real: Callable[[str], Files]) -> None:
    real("har")
    data = load("har")
    assert data.groups is not None
    same = (data.labels[1:] == data.labels[:-1]) & (data.groups[1:] == data.groups[:-1])
    before, after = data.inputs[:-1][same][..., 64:], data.inputs[1:][same][..., :64]
    overlap = (before == after).all(axis=(2, 3)).mean(axis=0)
    assert overlap.shape == (9,)
    assert overlap.min() > 0.9
