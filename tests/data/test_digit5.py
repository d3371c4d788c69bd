"""Digit-5, from small files made here and from the real ones."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.io import loadmat, savemat

from subflot.data import matlab
from subflot.data.digit5 import DOMAINS
from subflot.data.sets import load
from subflot.data.source import Files
from subflot.errors import SubflotError

DIGITS = np.arange(10)
AT_HAND = ("mnist", "mnistm", "svhn", "usps")


def pictures(value: int, *shape: int) -> NDArray[np.uint8]:
    return np.full((10, *shape), value, dtype=np.uint8)


def one_hot() -> NDArray[np.uint8]:
    return np.eye(10, dtype=np.uint8)


def street(value: int) -> dict[str, Any]:
    labels = np.where(DIGITS == 0, 10, DIGITS)[:, None].astype(np.uint8)
    return {"X": np.moveaxis(pictures(value, 32, 32, 3), 0, -1), "y": labels}


def files() -> dict[str, dict[str, Any]]:
    """Each domain has the ten digits twice; the grey value tells domain and part."""
    cells = np.empty((2, 2), dtype=object)
    for part in range(2):
        cells[part, 0] = np.full((10, 1, 28, 28), (40 + part) / 255, dtype=np.float32)
        cells[part, 1] = DIGITS[:, None].astype(np.uint8)
    colour = pictures(20, 32, 32, 3)
    colour[..., 2] = 29
    labels = {"label_train": one_hot(), "label_test": one_hot()}
    return {
        "mnist_data": {"train_32": pictures(10, 32, 32), "test_32": pictures(11, 32, 32), **labels},
        "mnistm_with_label": {"train": colour, "test": pictures(21, 28, 28, 3), **labels},
        "svhn_train_32x32": street(30),
        "svhn_test_32x32": street(31),
        "usps_28x28": {"dataset": cells},
        "synth_train_32x32": street(50),
        "synth_test_32x32": street(51),
    }


def write(root: Path, fields: dict[str, dict[str, Any]]) -> Path:
    folder = root / "digit5"
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in fields.items():
        savemat(folder / f"{name}.mat", values)
    return folder


def test_domains_are_groups_and_each_brings_train_and_test(tmp_path: Path) -> None:
    write(tmp_path, files())
    data = load("digit5", root=tmp_path)
    assert data.input_shape == (3, 32, 32)
    assert data.group_names == ("mnist", "mnistm", "svhn", "usps", "synth") == tuple(DOMAINS)
    assert data.groups is not None
    assert data.groups.tolist() == [group for group in range(5) for _ in range(20)]
    assert data.labels.tolist() == list(range(10)) * 10
    values = data.inputs[::10, 0, 16, 16].tolist()
    assert values == [10, 11, 20, 21, 30, 31, 40, 41, 50, 51]
    assert data.inputs[20, :, 5, 5].tolist() == [20, 20, 29]
    assert data.test_share == 1 / 5


def test_axes_of_street_numbers_are_height_width_colour_example(tmp_path: Path) -> None:
    fields = files()
    fields["svhn_train_32x32"]["X"][3, 7, 1, 4] = 99
    write(tmp_path, fields)
    data = load("digit5", root=tmp_path, domains=("svhn",))
    assert np.argwhere(data.inputs == 99).tolist() == [[4, 1, 3, 7]]


def test_a_missing_domain_names_its_files_and_what_is_at_hand(tmp_path: Path) -> None:
    fields = files()
    del fields["synth_train_32x32"], fields["synth_test_32x32"]
    write(tmp_path, fields)
    with pytest.raises(SubflotError, match=r"`synth_train_32x32\.mat`, `synth_test") as caught:
        load("digit5", root=tmp_path)
    assert str(AT_HAND) in caught.value.hint
    assert load("digit5", root=tmp_path, domains=AT_HAND).group_names == AT_HAND
    assert len(load("digit5", root=tmp_path, domains=["usps", "mnist"])) == 40


def test_domains_keep_one_order(tmp_path: Path) -> None:
    write(tmp_path, files())
    data = load("digit5", root=tmp_path, domains=("usps", "mnist"))
    assert data.group_names == ("mnist", "usps")
    assert data.inputs[0, 0, 0, 0] == 10


@pytest.mark.parametrize("domains", [("minst",), ()])
def test_an_unknown_domain_is_an_error(tmp_path: Path, domains: tuple[str, ...]) -> None:
    with pytest.raises(SubflotError, match="unknown domain of Digit-5"):
        load("digit5", root=tmp_path, domains=domains)


def without(name: str, key: str) -> dict[str, dict[str, Any]]:
    fields = files()
    del fields[name][key]
    return fields


def with_value(name: str, key: str, value: object) -> dict[str, dict[str, Any]]:
    fields = files()
    fields[name][key] = value
    return fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (without("mnist_data", "label_train"), r"mnist_data\.mat: there is no `label_train` in it"),
        (without("svhn_test_32x32", "y"), r"svhn_test_32x32\.mat: there is no `y` in it, only `X`"),
        (with_value("usps_28x28", "dataset", np.zeros((1, 2))), r"`dataset` has shape \(1, 2\)"),
        (
            with_value("svhn_train_32x32", "y", np.full((10, 1), 11)),
            r"svhn_train_32x32\.mat: label 11, expected a digit from 0 to 10",
        ),
        (with_value("svhn_train_32x32", "y", DIGITS[:4, None]), "10 images but 4 labels"),
        (with_value("mnist_data", "label_test", np.ones((10, 10))), "one digit marked"),
        (with_value("mnist_data", "label_test", np.zeros((10, 10))), "one digit marked"),
        (with_value("mnistm_with_label", "train", np.zeros((10, 8, 8, 3))), "images are float64"),
        (
            with_value("mnistm_with_label", "train", np.zeros((10, 8, 8, 5), np.uint8)),
            r"of shape \(10, 8, 8, 5\)",
        ),
    ],
)
def test_what_is_missing_or_wrong_is_named(
    tmp_path: Path, fields: dict[str, dict[str, Any]], said: str
) -> None:
    write(tmp_path, fields)
    with pytest.raises(SubflotError, match=said):
        load("digit5", root=tmp_path)


def test_images_of_usps_lie_between_zero_and_one(tmp_path: Path) -> None:
    fields = files()
    fields["usps_28x28"]["dataset"][0, 0] = np.full((10, 1, 28, 28), 255.0)
    write(tmp_path, fields)
    with pytest.raises(SubflotError, match=r"usps_28x28\.mat: its images are no numbers from 0"):
        load("digit5", root=tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, files())
    path = folder / "mnist_data.mat"
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:500], whole[: len(whole) // 2], whole[:-9]):
        path.write_bytes(content)
        with pytest.raises(SubflotError, match=r"mnist_data\.mat: "):
            load("digit5", root=tmp_path)


def test_a_file_that_declares_absurd_sizes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, files())
    monkeypatch.setattr(matlab, "MEMBER_BYTES", 10_000)
    with pytest.raises(SubflotError, match=r"`train_32` declares 10,240 entries"):
        load("digit5", root=tmp_path)


def expected_counts(paths: Files) -> Counter[tuple[str, int]]:
    """(Domain, digit) -> examples, straight from the files."""
    counts: Counter[tuple[str, int]] = Counter()
    for name, path in paths.items():
        fields, domain = loadmat(path), name.split("_")[0]
        if domain in ("mnist", "mnistm"):
            for part in ("train", "test"):
                counts.update((domain, row.tolist().index(1)) for row in fields[f"label_{part}"])
        elif domain == "usps":
            for labels in fields["dataset"][:, 1]:
                counts.update((domain, int(label)) for label in labels.ravel())
        else:
            counts.update((domain, int(str(label)[-1])) for label in fields["y"].ravel())
    return counts


@pytest.mark.slow
def test_the_real_files(real: Callable[[str], Files]) -> None:
    paths = real("digit5")
    data = load("digit5", domains=AT_HAND)
    assert data.groups is not None
    found = Counter(
        (data.group_names[group], int(label))
        for group, label in zip(data.groups, data.labels, strict=True)
    )
    assert found == expected_counts(paths)
    assert data.input_shape == (3, 32, 32)
    mnist = loadmat(paths["mnist_data.mat"])["test_32"]
    assert data.inputs[data.groups == 0][-1, 2].tolist() == mnist[-1].tolist()
    svhn = loadmat(paths["svhn_test_32x32.mat"])["X"]
    assert data.inputs[data.groups == 2][-1].tolist() == svhn[..., -1].transpose(2, 0, 1).tolist()
    # A 28x28 image grows to 32x32 and keeps its brightness.
    usps = loadmat(paths["usps_28x28.mat"])["dataset"][0, 0]
    assert data.inputs[data.groups == 3][0].mean() / 255 == pytest.approx(usps[0].mean(), abs=0.01)
