"""What is logged of a round, by hand."""

import json
import math
from dataclasses import replace

import pytest

from subflot.algorithms.base import Client
from subflot.simulation.record import metrics_line, timing_line
from subflot.simulation.server import Report
from subflot.training import Measurement

REPORTS = (
    Report(
        Client(4, 0.0),
        num_examples=30,
        trained=Measurement(10, 8, 5.0),
        extracted=Measurement(10, 5, 12.0),
        parameters=100,
        multiply_adds=1000,
        bytes_down=400,
        bytes_up=300,
        metrics={"training_loss": 0.5},
        seconds={"train": 2.0, "align": 0.5},
    ),
    Report(
        Client(1, 0.5),
        num_examples=20,
        trained=Measurement(40, 10, 100.0),
        extracted=None,
        parameters=50,
        multiply_adds=400,
        bytes_down=200,
        bytes_up=150,
        metrics={"training_loss": math.nan, "delta_ot": 2.0},
        seconds={"train": 1.0, "evaluate": 0.25},
        fault="tensor `w` holds NaN or infinity",
    ),
    Report(Client(2, 0.5), 5, None, None, 50, 400, 1, 2, {}, {}),
)


def test_a_line_sums_a_round_up() -> None:
    line = metrics_line(7, REPORTS, Measurement(100, 42, 250.0))
    assert line["round"] == 7
    assert line["trained"] == {
        "mean": (0.8 + 0.25) / 2,
        "weighted": 18 / 50,
        "worst": 0.25,
        "loss": 105 / 50,
    }
    assert line["extracted"] == {"mean": 0.5, "weighted": 0.5, "worst": 0.5, "loss": 1.2}
    assert line["global"] == {"accuracy": 0.42, "loss": 2.5, "num_examples": 100}
    assert line["bytes_down"] == 601
    assert line["bytes_up"] == 452
    assert line["num_rejected"] == 1


def test_clients_are_columns_and_what_is_not_a_number_is_left_open() -> None:
    columns = metrics_line(7, REPORTS, None)["clients"]
    assert columns == {
        "client": [4, 1, 2],
        "pruning_rate": [0.0, 0.5, 0.5],
        "num_examples": [30, 20, 5],
        "num_test": [10, 40, None],
        "trained_correct": [8, 10, None],
        "trained_loss": [0.5, 2.5, None],
        "extracted_correct": [5, None, None],
        "parameters": [100, 50, 50],
        "multiply_adds": [1000, 400, 400],
        "bytes_down": [400, 200, 1],
        "bytes_up": [300, 150, 2],
        "training_loss": [0.5, None, None],
        "delta_ot": [None, 2.0, None],
        "fault": [None, "tensor `w` holds NaN or infinity", None],
    }


def test_what_is_told_of_layers_is_a_mean_over_those_who_tell_it() -> None:
    told: list[dict[str, float]] = [
        {"moved/a.b": 0.25, "moved/c": 0.5, "training_loss": 1.0},
        {"moved/a.b": 0.75, "moved/c": math.nan},
        {},
    ]
    each = zip(REPORTS, told, strict=True)
    line = metrics_line(1, [replace(report, metrics=metrics) for report, metrics in each], None)
    assert line["layers"] == {"moved": {"a.b": 0.5, "c": 0.5}}
    assert line["clients"].keys() & {"moved", "moved/c", "training_loss"} == {"training_loss"}
    assert "layers" not in metrics_line(1, REPORTS, None)


def test_what_was_not_measured_is_none_and_empty_columns_are_left_out() -> None:
    line = metrics_line(1, REPORTS[2:], None)
    assert line["trained"] is line["extracted"] is line["global"] is None
    assert "trained_correct" not in line["clients"]
    assert "fault" not in line["clients"]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_losses_that_are_no_numbers_can_be_written(loss: float) -> None:
    bad = Measurement(10, 1, loss)
    report = Report(Client(0), 5, bad, bad, 1, 1, 1, 1, {"training_loss": loss}, {})
    line = metrics_line(1, [report], bad)
    assert json.loads(json.dumps(line, allow_nan=False)) == line
    assert line["trained"]["loss"] is line["global"]["loss"] is None
    assert line["trained"]["mean"] == 0.1


def test_time_is_added_up_by_phase() -> None:
    assert timing_line(7, REPORTS, 3.5) == {
        "round": 7,
        "seconds": 3.5,
        "phases": {"align": 0.5, "evaluate": 0.25, "train": 3.0},
    }
