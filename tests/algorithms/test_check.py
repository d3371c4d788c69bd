"""Uploads that must not be merged, and the reason that is given for each."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from federations import CLIENTS, tiny_task
from torch import Tensor

from subflot.algorithms import make
from subflot.algorithms.base import Download, State, Turn, Upload
from subflot.algorithms.check import fault_of
from subflot.channels import take

TASK = tiny_task()
TURN = Turn(1, 1, 0)
SENT = make("heterofl").download(TASK, State(TASK.initial), CLIENTS[2], TURN)
CARRIED = replace(SENT, kept={})
"""Weights of half the channels; whose they are is said, or left to the server."""


def answer(download: Download, **changes: Any) -> Upload:
    return replace(Upload(dict(download.weights), 12, download.kept), **changes)


def changed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    return {**SENT.weights, name: tensor}


def spoilt(name: str, value: float) -> dict[str, Tensor]:
    tensor = SENT.weights[name].clone()
    tensor.view(-1)[-1] = value
    return changed(name, tensor)


@pytest.mark.parametrize("download", [SENT, CARRIED, Download({})])
def test_an_honest_upload_has_no_fault(download: Download) -> None:
    assert fault_of(TASK, download, answer(download, metrics={"training_loss": 0.5})) == ""


@pytest.mark.parametrize("value", [3e38, -1e30, 1.1e6])
def test_values_that_no_training_reaches_are_a_fault(value: float) -> None:
    fault = fault_of(TASK, SENT, answer(SENT, weights=spoilt("hidden.weight", value)))
    assert fault == f"tensor `hidden.weight` holds values up to {abs(value):.3g}, " + (
        "expected at most 1e+06"
    )


def test_how_large_values_may_be_goes_by_the_server_and_by_what_they_are() -> None:
    """Statistics of inputs that nobody scaled are large, and do no harm."""
    for name, value in (("hidden.weight", 9e5), ("norm.running_var", 9e11)):
        assert fault_of(TASK, SENT, answer(SENT, weights=spoilt(name, value))) == ""
        larger = answer(SENT, weights=spoilt(name, 50 * value))
        assert "expected at most" in fault_of(TASK, SENT, larger)
        assert fault_of(TASK, SENT, larger, largest=50.0) == ""


def test_a_client_may_train_less_than_it_received() -> None:
    kept = {"conv": torch.tensor([1]), "hidden": torch.tensor([0, 2, 3])}
    part = take(TASK.initial, TASK.channels, kept)
    whole = Download(TASK.initial)
    assert fault_of(TASK, whole, Upload(part, 3, kept)) == ""
    assert fault_of(TASK, SENT, Upload(part, 3, kept)) == ""


@pytest.mark.parametrize("download", [SENT, CARRIED])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": spoilt("head.bias", float("nan"))}, "tensor `head.bias` holds NaN"),
        ({"weights": spoilt("conv.weight", float("inf"))}, "tensor `conv.weight` holds NaN"),
        ({"weights": spoilt("norm.running_var", float("-inf"))}, "tensor `norm.running_var`"),
        ({"extras": {"gains": torch.tensor([float("nan")])}}, "tensor `gains` holds NaN"),
        ({"metrics": {"training_loss": float("inf")}}, "its metrics hold NaN or infinity"),
        (
            {"weights": {n: t for n, t in SENT.weights.items() if n != "head.bias"}},
            "its tensors are not those that were sent: head.bias",
        ),
        ({"weights": changed("more", torch.zeros(1))}, "not those that were sent: more"),
        (
            {"weights": changed("head.bias", torch.zeros(10, dtype=torch.float64))},
            "tensor `head.bias` is torch.float64, and torch.float32 was sent",
        ),
        ({"weights": changed("conv.bias", torch.zeros(2, dtype=torch.int64))}, "is torch.int64"),
        (
            {"weights": changed("head.bias", torch.zeros(9))},
            "has shape (9,), expected (10,)",
        ),
        ({"weights": changed("head.bias", torch.zeros(1, 10))}, "`head.bias` has shape"),
        ({"weights": changed("conv.weight", torch.zeros(2, 1, 9, 1))}, "tensor `conv.weight` has"),
        (
            {"weights": changed("conv.bias", torch.zeros(4))},
            "has shape (4,), expected (2,)",
        ),
        ({"num_examples": 0}, "it claims 0 examples"),
        ({"num_examples": -5}, "it claims -5 examples"),
        ({"num_examples": 10**15}, "it claims 1000000000000000 examples"),
        ({"num_examples": 3.5}, "it claims 3.5 examples"),
        ({"num_examples": float("nan")}, "it claims nan examples"),
        ({"num_examples": True}, "it claims True examples"),
    ],
)
def test_each_fault_has_its_reason(
    download: Download, changes: Mapping[str, Any], reason: str
) -> None:
    assert reason in fault_of(TASK, download, answer(download, **changes))


def first(conv: int, hidden: int) -> dict[str, Tensor]:
    return {"conv": torch.arange(conv), "hidden": torch.arange(hidden)}


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        ({**first(2, 4), "conv": torch.tensor([1, 1])}, "it kept a channel of `conv` twice"),
        ({**first(2, 4), "conv": torch.tensor([0, 4])}, "cannot keep 2 channels of space `conv`"),
        ({**first(2, 4), "conv": torch.tensor([-1, 0])}, "cannot keep 2 channels"),
        (first(3, 4), "`conv.weight` has shape (2, 1, 3, 3), expected (3, 1, 3, 3)"),
        ({**first(2, 4), "other": torch.tensor([0])}, "there is no space `other`"),
        ({**first(2, 4), "conv": torch.tensor([0.0, 1.0])}, "channels of `conv` are no list"),
        ({**first(2, 4), "conv": torch.tensor([[0, 1]])}, "channels of `conv` are no list"),
        ({"conv": torch.arange(2)}, "`hidden.weight` has shape (4, 18), expected (8, 18)"),
    ],
)
def test_channels_that_cannot_be_kept_have_their_reason(
    kept: dict[str, Tensor], reason: str
) -> None:
    for download in (SENT, CARRIED):
        assert reason in fault_of(TASK, download, answer(download, kept=kept))


def test_a_model_of_another_width_without_channels_is_refused() -> None:
    wider = TASK.narrow(TASK.initial, 0.25)
    reason = "`conv.weight` has shape (3, 1, 3, 3), expected (2, 1, 3, 3)"
    assert reason in fault_of(TASK, CARRIED, answer(CARRIED, weights=wider))


def test_channels_that_the_server_named_must_be_named_again() -> None:
    assert "expected (4, 1, 3, 3)" in fault_of(TASK, SENT, answer(SENT, kept={}))


def test_channels_of_a_model_without_its_last_layers_are_checked_too() -> None:
    shallow = {name: SENT.weights[name] for name in ("conv.weight", "conv.bias")}
    sent = Download(shallow, SENT.kept)
    assert fault_of(TASK, sent, answer(sent)) == ""
    wrong = {**SENT.kept, "conv": torch.tensor([1, 7])}
    assert "cannot keep 2 channels" in fault_of(TASK, sent, answer(sent, kept=wrong))
    fewer = {**SENT.kept, "conv": torch.tensor([1])}
    assert "expected (1, 1, 3, 3)" in fault_of(TASK, sent, answer(sent, kept=fewer))
