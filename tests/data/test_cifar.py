"""CIFAR-10 and CIFAR-100, from small archives made here and from the real ones."""

import os
import pickle
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_files import tar_file

from subflot.data.sets import load
from subflot.data.source import Files
from subflot.errors import SubflotError

TEN = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
NAMES = ["plane", "car"]


def ten(root: Path, protocol: int = 2, **changed: Any) -> dict[str, dict[str, Any]]:
    """Write a CIFAR-10 of two classes and three images per batch; return the batches."""
    rng = np.random.default_rng(0)
    batches = {
        name: {
            "data": rng.integers(0, 256, (3, 3072), dtype=np.uint8),
            "labels": rng.permutation([0, 1, 1]).tolist(),
        }
        for name in TEN
    }
    batches["data_batch_3"] |= changed
    # Neither the order of the archive nor its other files matter.
    members = {f"cifar-10-batches-py/{name}": batches[name] for name in reversed(TEN)}
    members["cifar-10-batches-py/batches.meta"] = {"label_names": NAMES}
    contents = {name: pickle.dumps(value, protocol) for name, value in members.items()}
    contents["cifar-10-batches-py/readme.html"] = b"hello"
    tar_file(root / "cifar10" / "cifar-10-python.tar.gz", contents)
    return batches


@pytest.mark.parametrize("protocol", [2, 5])
def test_batches_come_in_order_with_channels_first(tmp_path: Path, protocol: int) -> None:
    batches = ten(tmp_path, protocol)
    data = load("cifar10", root=tmp_path)
    assert data.classes == ("plane", "car")
    assert data.labels.tolist() == [label for name in TEN for label in batches[name]["labels"]]
    assert data.input_shape == (3, 32, 32)
    assert data.test_share == 1 / 6
    for example in range(18):
        row = batches[TEN[example // 3]]["data"][example % 3]
        # The rows hold 1,024 red, then green, then blue values, line by line.
        assert data.inputs[example, 1, 2, 5] == row[1024 + 2 * 32 + 5]
        assert np.array_equal(data.inputs[example].ravel(), row)


def test_batches_in_an_array_that_runs_by_columns(tmp_path: Path) -> None:
    pixels = np.asfortranarray(np.random.default_rng(1).integers(0, 256, (3, 3072), dtype=np.uint8))
    ten(tmp_path, data=pixels)
    assert np.array_equal(load("cifar10", root=tmp_path).inputs[6].ravel(), pixels[0])


def test_images_in_other_sizes_and_grey(tmp_path: Path) -> None:
    ten(tmp_path)
    assert load("cifar10", root=tmp_path, size=16, channels=1).input_shape == (1, 16, 16)
    assert load("cifar10", root=tmp_path, size=64).input_shape == (3, 64, 64)


class Hostile:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("made",))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"labels": [0, 1, 2]}, "label 2 in `.*data_batch_3`, but 2 classes"),
        ({"labels": [0, 1, -1]}, "label -1"),
        ({"labels": [0, 1, "1"]}, "label '1'"),
        ({"labels": [0, 1]}, "3 images but 2 labels"),
        ({"labels": None}, "there is no `labels` in `.*data_batch_3`"),
        ({"data": np.zeros((3, 3000), np.uint8)}, r"have shape \(3, 3000\)"),
        ({"data": np.zeros((3, 3072))}, "no array of bytes"),
        ({"data": [[0] * 3072] * 3}, "no array of bytes"),
        ({"extra": Hostile()}, "asks to run `posix.mkdir"),
    ],
)
def test_a_batch_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ten(tmp_path, **changed)
    with pytest.raises(SubflotError, match=rf"cifar-10-python\.tar\.gz: .*{said}"):
        load("cifar10", root=tmp_path)
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "parts", "label_key", "meta"),
    [
        ("cifar10", {}, TEN, b"labels", ("batches.meta", b"label_names")),
        ("cifar100", {}, ["train", "test"], b"fine_labels", ("meta", b"fine_label_names")),
        (
            "cifar100",
            {"labels": "coarse"},
            ["train", "test"],
            b"coarse_labels",
            ("meta", b"coarse_label_names"),
        ),
    ],
)
def test_the_real_archives(
    real: Callable[[str], Files],
    name: str,
    settings: dict[str, Any],
    parts: list[str],
    label_key: bytes,
    meta: tuple[str, bytes],
) -> None:
    (path,) = real(name).values()
    data = load(name, **settings)
    with tarfile.open(path) as archive:
        members = {Path(member.name).name: member for member in archive}

        def unpickled(member: str) -> Any:
            stream = archive.extractfile(members[member])
            assert stream is not None
            return pickle.load(stream, encoding="bytes")

        classes = tuple(label.decode() for label in unpickled(meta[0])[meta[1]])
        batches = [unpickled(part) for part in parts]
    labels = [label for batch in batches for label in batch[label_key]]
    assert data.classes == classes
    assert len(classes) == {"cifar10": 10, "cifar100": 20 if settings else 100}[name]
    assert data.input_shape == (3, 32, 32)
    assert Counter(data.labels.tolist()) == Counter(labels)
    assert data.labels.tolist() == labels
    assert np.array_equal(
        data.inputs.reshape(-1, 3072), np.concatenate([batch[b"data"] for batch in batches])
    )


def test_labels_are_fine_or_coarse(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match="labels is 'rough'"):
        load("cifar100", root=tmp_path, labels="rough")
