"""Tiny-ImageNet, from a small archive made here and from the real one."""

import io
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_files import picture, zip_file
from PIL import Image

from subflot.data.sets import load
from subflot.data.source import Files
from subflot.errors import SubflotError

TOP = "tiny-imagenet-200"


def members() -> dict[str, bytes]:
    """Two classes, listed against the alphabet, two training and one validation image of each."""
    grey = {name: np.full((64, 64), value) for value, name in enumerate("abcdef", start=10)}
    files = {
        "wnids.txt": b"n2\nn1\n",
        "words.txt": b"n0\tthing\nn1\tcat, true cat\nn2\tdog\n",
        "train/n1/n1_boxes.txt": b"n1_0.JPEG\t0\t0\t9\t9\n",
        "train/n1/images/n1_1.JPEG": picture(grey["b"]),
        "train/n1/images/n1_0.JPEG": picture(grey["a"]),
        "train/n2/images/n2_0.JPEG": picture(np.stack([grey["c"]] * 3, axis=-1)),
        "train/n2/images/n2_1.JPEG": picture(grey["d"]),
        "val/val_annotations.txt": b"val_0.JPEG\tn1\t0\t0\t9\t9\nval_1.JPEG\tn2\t0\t0\t9\t9\n",
        "val/images/val_0.JPEG": picture(grey["e"]),
        "val/images/val_1.JPEG": picture(grey["f"]),
        "test/images/test_0.JPEG": picture(grey["f"]),
    }
    return {f"{TOP}/{name}": content for name, content in files.items()}


def write(root: Path, files: dict[str, bytes]) -> None:
    zip_file(root / "tiny-imagenet" / f"{TOP}.zip", files)


def test_training_images_by_class_then_validation_images(tmp_path: Path) -> None:
    write(tmp_path, members())
    data = load("tiny-imagenet", root=tmp_path)
    assert data.classes == ("dog", "cat, true cat")
    assert data.inputs[:, 0, 0, 0].tolist() == [12, 13, 10, 11, 14, 15]
    assert data.labels.tolist() == [0, 0, 1, 1, 1, 0]
    assert data.input_shape == (3, 64, 64)
    assert data.test_share == 1 / 11
    assert load("tiny-imagenet", root=tmp_path, size=32, channels=1).input_shape == (1, 32, 32)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("wnids.txt", b"n2\nn1\nn0\n", "there are no training images of class `n0`"),
        ("wnids.txt", None, "there is no `.*wnids.txt`"),
        ("val/val_annotations.txt", b"val_0.JPEG\tn9\t0\n", "unknown class `n9` in line 1"),
        ("val/val_annotations.txt", b"\n", "unknown class `` in line 1"),
        ("val/images/val_1.JPEG", None, "there is no `.*val_1.JPEG`"),
        ("train/n1/images/n1_0.JPEG", b"text", "n1_0.JPEG`: cannot be read as a picture"),
        ("words.txt", b"\xff", "words.txt`: is not UTF-8"),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    files = members()
    del files[f"{TOP}/{name}"]
    write(tmp_path, files if content is None else files | {f"{TOP}/{name}": content})
    with pytest.raises(SubflotError, match=rf"{TOP}\.zip: .*{said}"):
        load("tiny-imagenet", root=tmp_path)


@pytest.mark.slow
def test_the_real_archive(real: Callable[[str], Files]) -> None:
    (path,) = real("tiny-imagenet").values()
    data = load("tiny-imagenet")
    with zipfile.ZipFile(path) as archive:
        wnids = archive.read(f"{TOP}/wnids.txt").decode().split()
        names = [name for name in archive.namelist() if name.endswith(".JPEG")]
        expected = Counter(name.split("/")[2] for name in names if "/train/" in name)
        table = archive.read(f"{TOP}/val/val_annotations.txt").decode().splitlines()
        expected.update(line.split("\t")[1] for line in table)
        assert data.input_shape == (3, 64, 64)
        assert len(data.classes) == len(wnids) == 200
        assert Counter(wnids[label] for label in data.labels) == expected
        # The last example is the last of the validation images.
        name, wnid = table[-1].split("\t")[:2]
        with Image.open(io.BytesIO(archive.read(f"{TOP}/val/images/{name}"))) as image:
            pixels = np.asarray(image.convert("RGB"))
    assert wnids[data.labels[-1]] == wnid
    assert np.array_equal(data.inputs[-1].transpose(1, 2, 0), pixels)
