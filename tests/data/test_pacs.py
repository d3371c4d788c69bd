"""PACS, from a small archive made here and from the real one."""

import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_files import picture, zip_file

from subflot.data.pacs import DOMAINS
from subflot.data.sets import load
from subflot.data.source import Files
from subflot.errors import SubflotError


def members(top: str = "PACS/") -> dict[str, bytes]:
    """One image of each of two classes in each domain; its grey value is 10 domain + class."""
    return {
        f"{top}{domain}/{label}/pic_1.png": picture(np.full((9, 9), 10 * group + number))
        for group, domain in reversed(list(enumerate(DOMAINS)))
        for number, label in enumerate(("dog", "house"))
    }


def write(root: Path, files: dict[str, bytes]) -> None:
    zip_file(root / "pacs" / "PACS.zip", files)


@pytest.mark.parametrize("top", ["PACS/", "", "kfold/", "data/PACS/"])
def test_domains_are_groups_and_folders_are_classes(tmp_path: Path, top: str) -> None:
    noise = {f"{top}photo/dog/.DS_Store": b"x", f"__MACOSX/{top}photo/dog/._pic_1.png": b"x"}
    noise |= {f"{top}splits/photo_train.txt": b"x", f"{top}photo/dog/": b""}
    write(tmp_path, members(top) | noise)
    data = load("pacs", root=tmp_path)
    assert (data.classes, data.group_names) == (("dog", "house"), DOMAINS)
    assert data.input_shape == (3, 64, 64)
    assert data.groups is not None
    assert data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.labels.tolist() == [0, 1] * 4
    assert data.inputs[:, 1, 30, 30].tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    assert data.test_share == 1 / 5


def test_a_missing_domain_is_named(tmp_path: Path) -> None:
    write(tmp_path, {name: file for name, file in members().items() if "/sketch/" not in name})
    with pytest.raises(SubflotError, match=r"PACS\.zip: there is no domain `sketch`"):
        load("pacs", root=tmp_path)


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    files = members() | {"PACS/photo/horse/": b""}
    write(tmp_path, files)
    with pytest.raises(SubflotError, match="no images of class `horse` in domain `art_painting`"):
        load("pacs", root=tmp_path)
    del files["PACS/photo/horse/"], files["PACS/cartoon/dog/pic_1.png"]
    write(tmp_path, files)
    with pytest.raises(SubflotError, match="no images of class `dog` in domain `cartoon`"):
        load("pacs", root=tmp_path)


def test_a_broken_picture_is_named(tmp_path: Path) -> None:
    write(tmp_path, members() | {"PACS/photo/dog/pic_2.jpg": b"no"})
    with pytest.raises(SubflotError, match=r"PACS/photo/dog/pic_2\.jpg`: cannot be read"):
        load("pacs", root=tmp_path)


@pytest.mark.slow
def test_the_real_archive(real: Callable[[str], Files]) -> None:
    (path,) = real("pacs").values()
    data = load("pacs")
    with zipfile.ZipFile(path) as archive:
        names = [name.split("/")[-3:] for name in archive.namelist() if not name.endswith("/")]
    expected = Counter((domain, label) for domain, label, _ in names)
    assert data.groups is not None
    found = Counter(
        (data.group_names[group], data.classes[label])
        for group, label in zip(data.groups, data.labels, strict=True)
    )
    assert found == expected
    assert len(data.classes) == 7
    assert data.input_shape == (3, 64, 64)
    # Sketches are black on white, so mostly white; photos are not.
    brightness = [data.inputs[data.groups == group].mean() for group in range(4)]
    assert brightness[3] > 220 > max(brightness[:3])
