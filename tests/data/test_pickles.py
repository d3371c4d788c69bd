"""Pickles give arrays and plain containers; whatever else they ask for is refused."""

import io
import os
import pickle
import subprocess
import sys
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from subflot.data.pickles import load_plain, load_single
from subflot.errors import SubflotError

PATH = Path("cifar.tar.gz")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)

plain = st.recursive(
    st.integers() | st.text() | st.binary() | st.booleans() | st.none(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(value=plain, protocol=st.sampled_from(PROTOCOLS))
def test_plain_values_come_out_as_they_went_in(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol), PATH, "batch") == value


@given(
    array=arrays(np.uint8, st.tuples(st.integers(0, 4), st.integers(0, 4))),
    in_columns=st.booleans(),
    protocol=st.sampled_from(PROTOCOLS),
)
def test_arrays_come_out_as_they_went_in(array: Any, in_columns: bool, protocol: int) -> None:
    given_array = np.asfortranarray(array) if in_columns else array
    for core in (b"numpy._core", b"numpy.core"):  # As numpy 2 writes it, and as numpy 1 did.
        content = pickle.dumps({"data": given_array}, protocol)
        if core == b"numpy.core" and protocol < 4:  # Later protocols count the letters.
            content = content.replace(b"numpy._core", core)
        found = load_plain(content, PATH, "batch")["data"]
        assert found.dtype == np.uint8
        assert np.array_equal(found, array)


def test_a_pickle_as_python_2_wrote_it() -> None:
    """Protocol 2 with byte strings: a dict of an array of two bytes and a list of names."""
    content = (
        b"\x80\x02}(U\x04data"
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01K\x02\x85cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\x07\xfftb"
        b"U\x06labels]U\x03cata"
        b"u."
    )
    found = load_plain(content, PATH, "batch")
    assert found[b"data"].tolist() == [7, 255]
    assert found[b"labels"] == [b"cat"]


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("hostile", "asked"),
    [
        (Call(os.mkdir, "made-by-a-pickle"), "mkdir"),
        (Call(eval, "1 + 1"), "eval"),
        (Call(getattr, "text", "upper"), "getattr"),
        (Call(np.load, "x.npy"), "load"),
        (OrderedDict(), "OrderedDict"),
        (np.float64(1), "scalar"),
        (Path("x"), "Path"),
    ],
)
def test_a_call_is_refused_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: Any, asked: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"data": [hostile]}, protocol)
    with pytest.raises(
        SubflotError, match=rf"cifar\.tar\.gz: the pickle `batch` asks to run `.*{asked}"
    ) as caught:
        load_plain(content, PATH, "batch")
    assert "do not trust" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_name_inside_an_admitted_one_is_refused() -> None:
    """Protocol 4 may ask for `ndarray.tofile` of `numpy`."""
    content = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
    with pytest.raises(SubflotError, match=r"numpy\.ndarray\.tofile"):
        load_plain(content, PATH, "batch")


def dtype(name: bytes, state: bytes) -> bytes:
    return b"cnumpy\ndtype\n(U" + bytes([len(name)]) + name + b"K\x00K\x01tR" + state


PLAIN = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
OBJECTS = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK?tb"
FIELDS = b"(K\x03U\x01|N(U\x01atq\x01}U\x01a" + dtype(b"O8", b"") + b"K\x00\x86sK\x08K\x01K\x00tb"


HOSTILE = [
    dtype(b"O8", PLAIN),  # Objects, of which it says that they are none.
    dtype(b"O8", OBJECTS),
    dtype(b"O", b""),
    dtype(b"V8", FIELDS),
    dtype(b"u8", OBJECTS),
    dtype(b"u8", FIELDS),
    dtype(b"u8", PLAIN.replace(b"|", b"O")),
    dtype(b"u1", PLAIN),  # Eight bytes for one.
    b"U\x02u8",
    b"N",
]
READ_ALL = """
import sys
from pathlib import Path
from subflot.data.pickles import load_plain
from subflot.errors import SubflotError
for line in sys.stdin:
    try:
        print(load_plain(bytes.fromhex(line), Path("cifar.tar.gz"), "batch"), flush=True)
    except SubflotError as error:
        print(str(error).partition("\\n")[0], flush=True)
"""


def test_bytes_never_become_addresses() -> None:
    """In a process of its own: where this goes wrong there is nobody to say so."""
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    ends = [b"(K\x01K\x01\x85" + kind + b"\x89U\x08AAAAAAAAtb." for kind in HOSTILE]
    given_lines = "".join(f"{(start + end).hex()}\n" for end in ends)
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL], input=given_lines, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(HOSTILE)
    wanted = "cifar.tar.gz: cannot unpickle `batch` (ValueError: a"
    assert [line for line in lines if not line.startswith(wanted)] == []


def test_numbers_of_either_byte_order_are_read() -> None:
    for name in ("<i4", ">i4", "<f8", ">u2", "?"):
        array = np.array([[1, 2], [0, 1]], name)
        for protocol in PROTOCOLS:
            found = load_plain(pickle.dumps(array, protocol), PATH, "batch")
            assert found.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
            assert np.array_equal(found, array)


def test_what_would_fill_the_memory_is_not_made() -> None:
    huge = b"J\xff\xff\xff\x7f"
    array = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        b"(" + huge + huge + b"tU\x01btR."
    )
    assert load_plain(array, PATH, "batch").size == 0
    for called in (b"cnumpy\nndarray\n", b"c__builtin__\nbytes\n"):
        with pytest.raises(SubflotError, match="cannot unpickle `batch`"):
            load_plain(b"\x80\x02" + called + b"(" + huge + b"tR.", PATH, "batch")


@given(content=st.binary(max_size=60))
def test_junk_never_fails_in_another_way(content: bytes) -> None:
    with suppress(SubflotError):
        load_plain(content, PATH, "batch")


def test_a_pickle_that_ends_too_early_is_an_error() -> None:
    content = pickle.dumps({"data": np.zeros((5, 5), np.uint8)}, 2)
    for length in range(0, len(content), 7):
        with pytest.raises(SubflotError, match="cannot unpickle `batch`"):
            load_plain(content[:length], PATH, "batch")


def saved(value: Any) -> bytes:
    """What numpy writes if it is given no array."""
    file = io.BytesIO()
    np.save(file, np.array(value, dtype=object), allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"])
def test_the_single_value_of_a_file_comes_out_as_it_went_in(core: bytes) -> None:
    value = {"X": [np.arange(6.0).reshape(2, 3), np.ones((1, 3))], "names": ["a", "b"]}
    header, _, _ = saved(value).partition(b"\n")
    content = pickle.dumps(np.array(value, dtype=object), 2).replace(b"numpy._core", core)
    for given_content in (saved(value), header + b"\n" + content):
        found = load_single(given_content, PATH)
        assert found["names"] == value["names"]
        assert [one.tolist() for one in found["X"]] == [[[0, 1, 2], [3, 4, 5]], [[1, 1, 1]]]


def test_a_single_value_may_ask_for_no_more_than_others() -> None:
    with pytest.raises(SubflotError, match=r"asks to run `.*getattr"):
        load_single(saved({"X": Call(getattr, "text", "upper")}), PATH)
    with pytest.raises(SubflotError, match="arrays of 'V3' are not read"):
        load_single(saved({"X": np.zeros(2, "V3")}), PATH)
    objects = io.BytesIO()
    np.save(objects, np.array([[], {}], dtype=object), allow_pickle=True)
    with pytest.raises(SubflotError, match="holds several objects"):
        load_single(objects.getvalue(), PATH)
    for content in (b"", b"PK\x03\x04\n", pickle.dumps({})):
        with pytest.raises(SubflotError, match="does not begin as a file of numpy"):
            load_single(content, PATH)
    with pytest.raises(SubflotError, match="does not hold a single value"):
        load_single(b"\x93NUMPY\n" + pickle.dumps({}), PATH)


def test_objects_are_read_nowhere_else() -> None:
    with pytest.raises(SubflotError, match="arrays of 'O8' are not read"):
        load_plain(pickle.dumps(np.array({}, dtype=object)), PATH, "batch")


@given(end=st.binary(max_size=24))
def test_bytes_are_never_taken_for_the_single_value(end: bytes) -> None:
    kind = dtype(b"O8", OBJECTS)
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    content = b"U" + bytes([len(end)]) + end
    with pytest.raises(SubflotError, match="holds several objects"):
        load_single(b"\x93NUMPY\n" + start + b"(K\x01)" + kind + b"\x89" + content + b"tb.", PATH)
