"""What a client sends is compared with what was sent to it before any of it is believed."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from federations import tiny_data, tiny_task
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from subflot.algorithms import make
from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.errors import SubflotError
from subflot.flower.decode import Refused, array_tensor, read_answer, read_measurement
from subflot.flower.records import (
    Invitation,
    answer_records,
    invitation_records,
    packed,
    read_invitation,
)
from subflot.simulation.part import Answer, do_part
from subflot.weights import num_bytes

TASK = tiny_task()
FULL = num_bytes(TASK.initial)


def played(name: str = "fedrolex") -> tuple[Download, Answer]:
    """A client's honest part in a round."""
    method, client, turn = make(name), Client(1, 0.5), Turn(2, 3, 0)
    state = State(TASK.initial, method.start(TASK, [client], turn).extras)
    download = method.download(TASK, state, client, turn)
    context = ClientContext(client, tiny_data().train(1), {}, turn)
    return download, do_part(method, TASK, download, context, tiny_data().test(1), True)


def same(one: Any, other: Any) -> bool:
    return list(one) == list(other) and all(torch.equal(one[n], other[n]) for n in one)


def test_an_invitation_says_what_was_put_into_it() -> None:
    download, _ = played()
    download = replace(download, extras={"a/b": torch.tensor(3.5), "n": torch.arange(4)})
    sent = Invitation("0af3", Client(7, 0.25, 3), Turn(2, 9, 11), 1, True)
    read, received = read_invitation(invitation_records(sent, download))
    assert read == sent
    for part in ("weights", "kept", "extras"):
        assert same(getattr(received, part), getattr(download, part))


def test_an_invitation_cannot_point_elsewhere_in_the_file_system() -> None:
    download, _ = played()
    sent = Invitation("../../home", Client(7), Turn(2, 9, 11), 1, True)
    with pytest.raises(SubflotError, match="the run is called"):
        read_invitation(invitation_records(sent, download))


@pytest.mark.parametrize("name", ["fedrolex", "feddse", "flado", "local", "heterofl"])
def test_an_answer_says_what_was_put_into_it(name: str) -> None:
    download, answer = played(name)
    read, is_remembering = read_answer(answer_records(answer, download), download, FULL)
    for part in ("weights", "kept", "extras"):
        assert same(getattr(read.upload, part), getattr(answer.upload, part))
    assert is_remembering == bool(answer.memory)
    assert replace(read, upload=answer.upload, memory={}) == replace(answer, memory={})
    assert (read.upload.num_examples, read.upload.metrics) == (
        answer.upload.num_examples,
        answer.upload.metrics,
    )


def array(shape: str, payload: bytes = b"", descr: str = "<f4", order: str = "False") -> Array:
    """An array that says what it likes of itself."""
    header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    text = header.encode().ljust(117) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + payload
    return Array("float32", tuple(eval(shape)), "numpy.ndarray", data)


SENT = torch.empty(3, 4, device="meta")


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (array("(100000000000, 4)"), r"has shape \(100000000000, 4\), expected \(3, 4\)"),
        (array("(3, 100000000000)"), "has shape"),
        (array("(3, -4)"), "has shape"),
        (array("(12,)", bytes(48)), "has shape"),
        (array("(3, 4)", bytes(47)), "47 bytes, its shape wants 48"),
        (array("(3, 4)", bytes(49)), "49 bytes"),
        (array("(3, 4)", bytes(96), descr="<f8"), "is float64, and torch.float32 was sent"),
        (array("(3, 4)", bytes(48), order="True"), "was sent"),
        (array("(3, 4)", bytes(48), descr="|O"), "was sent"),
        (Array("float32", (2, 4), "numpy.ndarray", array("(3, 4)", bytes(48)).data), "has shape"),
        (Array("float32", (3, 4), "pickle", b"\x80\x04."), "is no array"),
        (Array("float32", (3, 4), "numpy.ndarray", b"junk"), "is no array"),
        (Array("float32", (3, 4), "numpy.ndarray", b""), "is no array"),
    ],
)
def test_an_array_that_lies_about_itself_is_refused_unread(bad: Array, why: str) -> None:
    with pytest.raises(Refused, match=why):
        array_tensor("w", bad, SENT)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_array_or_refused(data: bytes) -> None:
    for start in (b"", b"\x93NUMPY\x01\x00"):
        with pytest.raises(Refused):
            array_tensor("w", Array("float32", (3, 4), "numpy.ndarray", start + data), SENT)


def test_an_honest_array_is_read_and_may_be_a_part_of_what_was_sent() -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    tensor = array_tensor("w", Array(values), SENT)
    assert torch.equal(tensor, torch.from_numpy(values))
    tensor += 1  # It is no view of bytes that must not change.


def in_config(**changes: Any) -> Callable[[RecordDict], None]:
    return lambda records: records["config"].update(changes)


def in_metrics(**changes: Any) -> Callable[[RecordDict], None]:
    renamed = {name.replace("__", "."): value for name, value in changes.items()}
    return lambda records: records["metrics"].update(renamed)


def without_first(records: RecordDict) -> None:
    arrays = records["arrays"]
    assert isinstance(arrays, ArrayRecord)
    del arrays[next(iter(arrays))]


TAMPERED: dict[str, tuple[Callable[[RecordDict], Any], str]] = {
    "a tensor is missing": (without_first, "not those that were sent: conv.weight"),
    "a second record of arrays": (
        lambda records: records.update({"more": ArrayRecord()}),
        "it consists of arrays, config, metrics, more",
    ),
    "no metrics": (lambda records: records.pop("metrics"), "it consists of"),
    "another order of names": (in_config(names=["head.bias"] * 11), "other tensors than it sends"),
    "names that are none": (in_config(names="conv.weight"), "other tensors than it sends"),
    "whole numbers of another name": (
        in_config(whole=packed({"conv.weight": torch.zeros(2)})),
        "not those that were sent",
    ),
    "extras that are no tensors": (in_config(extras=b"junk" * 9), "`extras` cannot be read"),
    "extras that claim a size": (
        in_config(
            extras=(70).to_bytes(8, "little")
            + b'{"a":{"dtype":"F32","shape":[100000000000],"data_offsets":[0,400000]}}'
        ),
        "`extras` cannot be read",
    ),
    "huge extras": (in_config(extras=bytes(FULL + 2**20 + 1)), "no tensors of at most"),
    "channels that are no tensors": (in_config(is_told=False, kept=b"junk" * 9), "`kept` cannot"),
    "no word on channels": (in_config(is_told=1), "does not say"),
    "a part of an example": (in_metrics(num_examples=1.5), "`num_examples` is 1.5"),
    "fewer examples than none": (in_metrics(num_examples=-1), "`num_examples` is -1"),
    "more right than there are": (in_metrics(trained__num_correct=10**6), "claims 1000000 right"),
    "a list for a number": (in_metrics(parameters=[1.0]), "`parameters` is"),
    "a long list of numbers": (
        in_metrics(**{f"metrics__{number}": 0.0 for number in range(99)}),
        "too many numbers",
    ),
    "a long name": (in_metrics(**{"metrics__" + 99 * "a": 0.0}), "too long"),
    "a name that is a command": (in_metrics(**{"metrics__\x1b[2J": 0.0}), "too long or odd"),
    "less than no time": (in_metrics(seconds__train=-1.0), "`train` is -1.0"),
    "time for what nobody asked": (
        in_metrics(seconds__mining=1.0),
        "seconds of `mining`, expected evaluate and train",
    ),
    "a number beyond all floats": (in_metrics(metrics__training_loss=10**400), "`training_loss`"),
    "a loss beyond all floats": (in_metrics(trained__loss=10**400), "`trained.loss` is 1000"),
    "no loss": (in_metrics(trained__loss=[1.0]), "`trained.loss` is"),
    **{
        f"{name} of {value}": (in_metrics(**{name: value}), re.escape(f"is {value}"))
        for name in ("parameters", "multiply_adds", "seconds__train")
        for value in (math.inf, -math.inf, math.nan, 1e300)
    },
}


@pytest.mark.parametrize("name", TAMPERED)
def test_an_answer_that_was_tampered_with_is_refused(name: str) -> None:
    tamper, why = TAMPERED[name]
    download, answer = played()
    records = answer_records(answer, download)
    read_answer(records, download, FULL)
    tamper(records)
    with pytest.raises(Refused, match=why):
        read_answer(records, download, FULL)


def test_a_measurement_is_read_or_refused() -> None:
    good = {"num_examples": 4, "num_correct": 3, "loss": 1.5}
    found = read_measurement(RecordDict({"metrics": MetricRecord(dict(good))}))
    assert found is not None
    assert vars(found) == good
    assert read_measurement(RecordDict({"config": ConfigRecord({})})) is None
    with pytest.raises(Refused, match="claims 5 right of 4"):
        read_measurement(RecordDict({"metrics": MetricRecord({**good, "num_correct": 5})}))
