"""A data set checks itself, gives out tensors, cannot be changed, and travels by file name."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tolerances import EXACT, FLOAT32
from torch.testing import assert_close

from subflot.data.dataset import Dataset
from subflot.data.mapped import MappedFile
from subflot.errors import SubflotError

IMAGES = np.arange(4 * 3 * 2 * 2, dtype=np.uint8).reshape(4, 3, 2, 2) * 5
LABELS = np.array([0, 1, 1, 0])


def dataset(**changes: Any) -> Dataset:
    fields = {"name": "few", "inputs": IMAGES, "labels": LABELS, "classes": ("cat", "dog")}
    return Dataset(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels": LABELS[:3]}, "labels have shape"),
        ({"labels": LABELS[:, None]}, "labels have shape"),
        ({"labels": np.array([0, 1, 2, 0])}, "example 2 has label 2"),
        ({"labels": np.array([0, -1, 1, 0])}, "example 1 has label -1"),
        ({"labels": LABELS.astype(float)}, "labels are float64"),
        ({"groups": LABELS[:2], "group_names": ("a", "b")}, "groups have shape"),
        ({"groups": LABELS, "group_names": ("a",)}, "example 1 has group 1"),
        ({"groups": LABELS}, "example 1 has group 1|example 0 has group 0"),
        ({"group_names": ("a",)}, "groups have shape"),
        ({"inputs": IMAGES[:0], "labels": LABELS[:0]}, "inputs have shape"),
        ({"inputs": np.array(["a"] * 4)}, "type <U1"),
        ({"inputs": np.float32(1)}, "inputs have shape"),
        ({"test_share": 1.0}, "test_share is 1"),
        ({"test_share": float("nan")}, "test_share is nan"),
        ({"mean": (0.5,), "std": (0.5,)}, "do not fit"),
        ({"mean": (0.5,) * 3}, "do not fit"),
        ({"mean": (0.5,) * 3, "std": (0.5, 0.0, 0.5)}, "do not fit"),
        ({"inputs": IMAGES.astype(float), "mean": (0.5,) * 3, "std": (0.5,) * 3}, "do not fit"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SubflotError, match=said) as caught:
        dataset(**changes)
    assert "`few`" in str(caught.value)
    assert caught.value.hint


def test_images_are_scaled_channel_by_channel() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    inputs, labels = dataset(mean=mean, std=std).tensors([2, 0])
    expected = np.empty((2, 3, 2, 2))
    for row, example in enumerate((2, 0)):
        for channel in range(3):
            values = IMAGES[example, channel].astype(np.float64) / 255
            expected[row, channel] = (values - mean[channel]) / std[channel]
    assert_close(inputs, torch.from_numpy(expected).float(), **FLOAT32)
    assert labels.tolist() == [1, 0]
    assert (inputs.dtype, labels.dtype) == (torch.float32, torch.int64)


def test_images_without_mean_lie_between_zero_and_one() -> None:
    inputs, _ = dataset(inputs=np.full((4, 1, 1), 255, dtype=np.uint8)).tensors([0])
    assert_close(inputs, torch.ones(1, 1, 1), **EXACT)


def test_tokens_come_out_as_int64_and_signals_as_float32() -> None:
    tokens, _ = dataset(inputs=np.array([[7, 300]] * 4, dtype=np.int32)).tensors([1])
    assert_close(tokens, torch.tensor([[7, 300]]), **EXACT)
    signals, _ = dataset(inputs=np.array([[0.5, -3.0]] * 4)).tensors([1])
    assert_close(signals, torch.tensor([[0.5, -3.0]]), **EXACT)


def test_examples_are_chosen_by_number_in_any_kind_of_list() -> None:
    data = dataset()
    wanted, _ = data.tensors([3, 1])
    for indices in (np.array([3, 1], dtype=np.int32), torch.tensor([3, 1]), (3, 1)):
        assert_close(data.tensors(indices)[0], wanted, **EXACT)
    assert data.tensors([])[0].shape == (0, 3, 2, 2)


def test_a_mask_is_no_list_of_examples() -> None:
    with pytest.raises(SubflotError, match="indexed with bool"):
        dataset().tensors(np.array([True, False, True, False]))


def test_neither_fields_nor_arrays_nor_batches_change_it() -> None:
    data = dataset(groups=LABELS, group_names=("a", "b"))
    with pytest.raises(AttributeError):
        data.name = "other"  # type: ignore[misc]
    for array in (data.inputs, data.labels, data.groups):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    before = data.inputs.copy()
    data.tensors([0, 1, 2, 3])[0].zero_()
    assert (data.inputs == before).all()
    assert IMAGES.flags.writeable  # The caller's own array stays as it was.


def mapped(path: Path, array: NDArray[Any]) -> NDArray[Any]:
    np.save(path, array)
    loaded: NDArray[Any] = np.load(path, mmap_mode="r")
    return loaded


def test_a_mapped_data_set_travels_as_a_file_name(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (500, 3, 16, 16), dtype=np.uint8)
    labels = np.arange(500) % 2
    data = dataset(
        inputs=mapped(tmp_path / "inputs.npy", images),
        labels=mapped(tmp_path / "labels.npy", labels),
        groups=mapped(tmp_path / "groups.npy", labels),
        group_names=("a", "b"),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
    )
    data.tensors([0])  # What it remembers of batches does not travel.
    sent = pickle.dumps(data)
    assert len(sent) < 3000
    copy = pickle.loads(sent)
    for name in ("inputs", "labels", "groups"):
        assert MappedFile.of(getattr(copy, name)) == MappedFile.of(getattr(data, name)) is not None
        assert not getattr(copy, name).flags.writeable
    assert Path(copy.inputs.filename) == tmp_path / "inputs.npy"
    for one, other in zip(copy.tensors([499, 3]), data.tensors([499, 3]), strict=True):
        assert_close(one, other, **EXACT)
    assert (copy.name, copy.classes, copy.mean) == ("few", ("cat", "dog"), (0.5,) * 3)


def test_arrays_in_memory_travel_by_value_and_stay_read_only() -> None:
    copy = pickle.loads(pickle.dumps(dataset()))
    assert (copy.inputs == IMAGES).all()
    assert not copy.inputs.flags.writeable


@given(
    start=st.integers(0, 29),
    stop=st.integers(1, 30),
    step=st.sampled_from([1, 2, -1]),
    row=st.booleans(),
)
def test_any_part_of_a_map_arrives_as_it_was_sent(
    tmp_path_factory: pytest.TempPathFactory, start: int, stop: int, step: int, row: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "parts.npy"
    if not path.exists():
        # Long enough that a part may start behind the first page of the file.
        np.save(path, np.arange(30 * 700, dtype=np.int32).reshape(30, 700))
    whole = np.load(path, mmap_mode="r")
    part = whole[start:stop:step]
    part = part[:, 3:] if row else part
    found = MappedFile.of(part)
    is_stretch = step == 1 and not row and len(part) > 0
    if is_stretch:
        assert found is not None
    if found is not None and part.size:
        assert np.array_equal(found.open(), part)


def test_a_map_that_can_be_written_to_is_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(10))
    assert MappedFile.of(np.load(tmp_path / "a.npy", mmap_mode="c")) is None
    assert MappedFile.of(np.load(tmp_path / "a.npy", mmap_mode="r")) is not None
    assert MappedFile.of(np.load(tmp_path / "a.npy", mmap_mode="r")[[1, 2]]) is None


def test_a_map_whose_file_is_gone_says_so(tmp_path: Path) -> None:
    sent = pickle.dumps(dataset(inputs=mapped(tmp_path / "inputs.npy", IMAGES)))
    (tmp_path / "inputs.npy").unlink()
    with pytest.raises(SubflotError, match=r"cannot map .*inputs\.npy"):
        pickle.loads(sent)
