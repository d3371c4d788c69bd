"""MNIST and Fashion-MNIST, from small files made here and from the real ones."""

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_files import tar_file
from numpy.typing import NDArray

from subflot.data import load
from subflot.data.mnist import IN_TARBALL, NAMES, TARBALL
from subflot.data.source import Files
from subflot.errors import SubflotError

AS_PUBLISHED: dict[str, Any] = {"size": 28, "channels": 1}


def idx(array: NDArray[np.uint8]) -> bytes:
    """As the format says: two zeros, type, number of axes, sizes from the highest byte, values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


def pictures(count: int, start: int) -> NDArray[np.uint8]:
    """Whose first pixel tells the number and whose last but one row is white."""
    found = np.zeros((count, 28, 28), dtype=np.uint8)
    found[:, 0, 0] = np.arange(start, start + count)
    found[:, 26] = 255
    return found


def members() -> dict[str, bytes]:
    """Twelve training and ten test images, with every label."""
    contents = (
        pictures(12, 0),
        np.arange(12, dtype=np.uint8) % 10,
        pictures(10, 12),
        np.arange(10, dtype=np.uint8)[::-1].copy(),
    )
    return {name: idx(array) for name, array in zip(NAMES, contents, strict=True)}


def write(folder: Path, files: dict[str, bytes], suffix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        packed = gzip.compress(content) if suffix else content
        (folder / f"{name}{suffix}").write_bytes(packed)


def test_training_images_come_first_and_are_as_published(tmp_path: Path) -> None:
    write(tmp_path / "mnist", members())
    data = load("mnist", root=tmp_path, **AS_PUBLISHED)
    assert data.inputs.shape == (22, 1, 28, 28)
    assert data.inputs[:, 0, 0, 0].tolist() == list(range(22))
    assert (data.inputs[:, 0, 26] == 255).all()
    assert (data.inputs[:, 0, 27] == 0).all()
    assert data.labels.tolist() == [*range(10), 0, 1, *reversed(range(10))]
    assert data.classes == tuple("0123456789")


def test_however_the_files_lie_the_images_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "raw" / "mnist", members())
    write(tmp_path / "gz" / "mnist", members(), ".gz")
    packed = {f"{IN_TARBALL}/{name}": content for name, content in members().items()}
    tar_file(tmp_path / "tar" / "mnist" / TARBALL, packed | {"package/index.js": b"x"})
    write(tmp_path / "clothes" / "fashion-mnist", members(), ".gz")
    raw, *others = (
        load("mnist", root=tmp_path / kind, **AS_PUBLISHED) for kind in ("raw", "gz", "tar")
    )
    clothes = load("fashion-mnist", root=tmp_path / "clothes", **AS_PUBLISHED)
    for other in (*others, clothes):
        assert np.array_equal(raw.inputs, other.inputs)
        assert np.array_equal(raw.labels, other.labels)
    assert clothes.classes[:2] == ("T-shirt/top", "Trouser")


def test_images_take_the_shape_that_a_network_wants(tmp_path: Path) -> None:
    write(tmp_path / "mnist", members())
    assert load("mnist", root=tmp_path).input_shape == (3, 32, 32)


IMAGES, LABELS = NAMES[:2]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (IMAGES, lambda c: c[:-1], "does not have the 9,408 bytes"),
        (IMAGES, lambda c: c + b"\0", "does not have the 9,408 bytes"),
        (IMAGES, lambda c: c[:10], "does not begin as an array"),
        (IMAGES, lambda c: b"", "does not begin as an array"),
        (IMAGES, lambda c: b"\0\0\x0d\3" + c[4:], "does not begin as an array"),
        (IMAGES, lambda c: b"\0\0\x08\1" + c[4:], "does not begin as an array"),
        (IMAGES, lambda c: c[:4] + b"\xff" * 12 + c[16:], "it declares 79,228,1"),
        (
            IMAGES,
            lambda c: c[:4] + b"\x7f\0\0\0\0\0\0\1\0\0\0\1",
            "have the 2,130,706,432 bytes",
        ),
        (IMAGES, lambda c: idx(np.zeros((12, 0, 28), dtype=np.uint8)), "it declares 0 bytes"),
        (LABELS, lambda c: idx(np.arange(11, dtype=np.uint8) % 10), "12 images in .* 11 in"),
        (LABELS, lambda c: c[:-1] + bytes([10]), "a label is 10"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, name: str, change: Callable[[bytes], bytes], said: str, suffix: str
) -> None:
    files = members()
    write(tmp_path / "mnist", files | {name: change(files[name])}, suffix)
    with pytest.raises(SubflotError, match=said) as caught:
        load("mnist", root=tmp_path)
    assert name in str(caught.value)


def test_a_damaged_gz_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist", members(), ".gz")
    path = tmp_path / "mnist" / f"{IMAGES}.gz"
    whole = path.read_bytes()
    wrong_sum = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    for content in (whole[:-20], wrong_sum, b"no gzip file"):
        path.write_bytes(content)
        with pytest.raises(SubflotError, match=f"{IMAGES}.gz"):
            load("mnist", root=tmp_path)


def content(files: Files, name: str) -> bytes:
    """One of the real files, unpacked without the reader."""
    if TARBALL in files:
        with tarfile.open(files[TARBALL]) as archive:
            member = archive.extractfile(f"{IN_TARBALL}/{name}")
            assert member is not None
            return member.read()
    if name in files:
        return files[name].read_bytes()
    return gzip.decompress(files[f"{name}.gz"].read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("mnist", [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]),
        ("fashion-mnist", [7000] * 10),
    ],
)
def test_the_real_files(name: str, counts: list[int], real: Callable[[str], Files]) -> None:
    files = real(name)
    data = load(name, **AS_PUBLISHED)
    assert data.inputs.shape == (70_000, 1, 28, 28)
    assert np.bincount(data.labels).tolist() == counts
    raw = [content(files, part) for part in NAMES]
    for part, first in ((0, 0), (2, 60_000)):
        images, labels = raw[part][16:], raw[part + 1][8:]
        assert data.labels[first : first + len(labels)].astype(np.uint8).tobytes() == labels
        assert data.inputs[first : first + len(labels)].tobytes() == images
