"""Named tensors in files, whole or not at all."""

import os
from pathlib import Path

import pytest
import torch
from made_files import flip
from safetensors.torch import load_file, save_file
from tolerances import EXACT
from torch import nn
from torch.testing import assert_close

from subflot import weights as module
from subflot.errors import SubflotError
from subflot.weights import DTYPES, num_bytes, read_described, read_weights, write_weights


def test_bytes_are_those_of_the_tensors() -> None:
    some = {"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.int64), "c": torch.tensor(1.0)}
    assert num_bytes(some) == 6 * 4 + 5 * 8 + 4
    assert num_bytes({}) == 0


def test_tensors_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "some.safetensors"
    written = {
        "plain": torch.randn(3, 4),
        "turned": torch.randn(3, 4).T,
        "empty": torch.zeros(0, 2),
        "scalar": torch.tensor(7),
        "half": torch.randn(3).to(torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "trained": nn.Parameter(torch.randn(2)),
    }
    write_weights(path, written, {"who": "client 3"})
    for found in (read_weights(path), load_file(path)):
        assert found.keys() == written.keys()
        for name, tensor in written.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor)
    assert read_described(path)[1]["who"] == "client 3"


def test_no_flipped_bit_is_read_as_if_nothing_were(tmp_path: Path) -> None:
    path = tmp_path / "some"
    written = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([True]), "c": torch.tensor(3)}
    write_weights(path, written)
    whole, num_found = path.read_bytes(), 0
    for bit in range(0, 8 * len(whole), 3):
        flip(path, bit // 8, bit % 8)
        try:
            found = read_weights(path)
        except SubflotError as error:
            assert str(path) in str(error)  # noqa: PT017
            num_found += 1
        else:
            assert found.keys() == written.keys()
            assert all(torch.equal(found[name], written[name]) for name in written)
        path.write_bytes(whole)
    assert num_found > 8 * len(whole) / 3 * 0.7


def test_a_tail_of_zeros_shows(tmp_path: Path) -> None:
    path = tmp_path / "some"
    write_weights(path, {"a": torch.ones(100)}, {"of": "client 3"})
    path.write_bytes(path.read_bytes()[:-4] + bytes(4))
    with pytest.raises(
        SubflotError, match=r"some is damaged: its checksum is [0-9a-f]{8}, and was"
    ):
        read_weights(path)


def test_a_file_without_a_checksum_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.ones(3)}, tmp_path / "old", metadata={"description": '{"of": "3"}'})
    weights, texts = read_described(tmp_path / "old")
    assert torch.equal(weights["a"], torch.ones(3))
    assert texts == {"of": "3"}


def test_a_view_is_written_without_what_lies_behind_it(tmp_path: Path) -> None:
    large = torch.zeros(1000, 1000)
    write_weights(tmp_path / "view", {"row": large[3]})
    assert (tmp_path / "view").stat().st_size < 10_000


def test_tied_tensors_are_written_one_by_one(tmp_path: Path) -> None:
    tied = torch.randn(4)
    write_weights(tmp_path / "tied", {"one": tied, "two": tied, "part": tied[1:]})
    found = read_weights(tmp_path / "tied")
    assert torch.equal(found["one"], found["two"])
    assert torch.equal(found["part"], tied[1:])


def test_what_is_read_is_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "some"
    write_weights(path, {"a": torch.zeros(5)})
    read_weights(path)["a"].fill_(1)
    assert torch.equal(read_weights(path)["a"], torch.zeros(5))


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    some = {"b": torch.arange(4.0), "a": torch.tensor([1, 2])}
    write_weights(tmp_path / "one", some, {"x": "1", "y": "2"})
    write_weights(tmp_path / "two", dict(reversed(some.items())), {"y": "2", "x": "1"})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize("broken", ["save_file", "sync"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some"
    write_weights(path, {"a": torch.zeros(5)})
    before = path.read_bytes()

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, broken, full)
    with pytest.raises(SubflotError, match=r"cannot write .*some: .*No space left on device"):
        write_weights(path, {"a": torch.ones(5)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_disk_is_waited_for_unless_the_file_need_not_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_weights(tmp_path / "some", {"a": torch.zeros(1)}, is_lasting=False)
    assert synced == []
    write_weights(tmp_path / "some", {"a": torch.zeros(1)})
    assert len(synced) == 1


def test_files_that_are_not_there_or_hold_something_else_are_named(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"there is no file .*missing"):
        read_weights(tmp_path / "missing")
    (tmp_path / "text").write_text("not tensors")
    with pytest.raises(SubflotError, match=r"text is not a safetensors file"):
        read_weights(tmp_path / "text")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read there")
def test_reading_again_and_again_keeps_no_memory(tmp_path: Path) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    path = tmp_path / "model.safetensors"
    write_weights(path, {f"layer{number}.weight": torch.zeros(2) for number in range(40)})
    for _ in range(200):
        read_weights(path)
    before = resident()
    for _ in range(1500):
        read_weights(path)
    assert resident() - before < 1_000_000  # 60 bytes a tensor would be 3.6 MB.


def test_every_type_and_shape_is_mapped_as_the_library_reads_it(tmp_path: Path) -> None:
    kinds = (*DTYPES.values(), torch.complex64)
    tensors = {f"{kind}{n}": torch.ones(n, 2).to(kind) for kind in kinds for n in (0, 1, 3)}
    tensors["one"] = torch.tensor(7)
    write_weights(tmp_path / "model.safetensors", tensors)
    found, expected = (read(tmp_path / "model.safetensors") for read in (read_weights, load_file))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_close(found[name], tensor, **EXACT)
