"""Records of runs, summed up by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from subflot.errors import SubflotError
from subflot.results import RunRecord, find_runs

LINES: list[dict[str, Any]] = [
    {
        "round": 1,
        "trained": {"mean": 0.6},
        "extracted": {"mean": 0.2},
        "global": {"accuracy": 0.1},
        "bytes_down": 100,
        "bytes_up": 50,
        "num_rejected": 0,
        "clients": {
            "client": [0, 1],
            "trained_correct": [8, 4],
            "num_test": [10, 10],
            "parameters": [30, 10],
            "multiply_adds": [300, 100],
        },
    },
    {
        "round": 2,
        "trained": {"mean": 0.45},
        "extracted": {"mean": 0.4},
        "global": None,
        "bytes_down": 10,
        "bytes_up": 5,
        "num_rejected": 1,
        "clients": {
            "client": [2, 1],
            "trained_correct": [9, None],
            "num_test": [20, None],
            "parameters": [20, 10],
            "multiply_adds": [200, 100],
        },
    },
    {
        "round": 3,
        "trained": None,
        "extracted": None,
        "global": None,
        "bytes_down": 1,
        "bytes_up": 1,
        "num_rejected": 0,
        "clients": {"client": [0], "parameters": [30], "multiply_adds": [300]},
    },
]
TIMES = [
    {"round": 1, "seconds": 2.0, "phases": {"train": 3.0, "align": 0.5}},
    {"round": 2, "seconds": 1.5, "phases": {"train": 1.0}},
]


def record(folder: Path, lines: list[dict[str, Any]] = LINES) -> RunRecord:
    (folder / "config.toml").write_text('algorithm = "subflot"\nrounds = 3\n')
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    (folder / "timing.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TIMES))
    return RunRecord(folder)


def test_a_summary_by_hand(tmp_path: Path) -> None:
    assert record(tmp_path).summary() == {
        "round": 3,
        # Each client when it was last measured: 8 of 10, 4 of 10, 9 of 20.
        "trained": pytest.approx((0.8 + 0.4 + 0.45) / 3),
        "worst": 0.4,
        # Of the last round in which anything was measured.
        "extracted": 0.4,
        "global": None,
        "best_round": 1,
        "best_trained": 0.6,
        "parameters": (30 + 10 + 20 + 10 + 30) / 5,
        "multiply_adds": (300 + 100 + 200 + 100 + 300) / 5,
        "bytes_down": 111,
        "bytes_up": 56,
        "num_rejected": 1,
        "seconds": 3.5,
        "phases": {"train": 4.0, "align": 0.5},
    }


def test_a_run_in_which_nothing_was_measured_has_a_summary(tmp_path: Path) -> None:
    summary = record(tmp_path, LINES[2:]).summary()
    assert summary["trained"] is summary["worst"] is summary["best_round"] is None
    assert summary["bytes_up"] == 1


def test_a_run_that_has_only_begun_is_at_round_zero(tmp_path: Path) -> None:
    assert record(tmp_path, []).summary() == {"round": 0}
    assert not RunRecord(tmp_path).is_finished


def test_a_run_is_finished_when_it_was_summed_up(tmp_path: Path) -> None:
    found = record(tmp_path)
    assert not found.is_finished
    (tmp_path / "summary.json").write_text("{}")
    assert found.is_finished
    assert found.config["rounds"] == 3


def test_folders_without_a_run_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"is not the folder of a run\n.*config\.toml"):
        _ = RunRecord(tmp_path).config
    (tmp_path / "config.toml").write_text("rounds = \n")
    with pytest.raises(SubflotError, match=r"config\.toml is damaged"):
        _ = RunRecord(tmp_path).config
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"roun')
    with pytest.raises(SubflotError, match=r"metrics\.jsonl is damaged"):
        _ = RunRecord(tmp_path).rounds


def test_of_a_run_that_was_cut_off_only_whole_rounds_count(tmp_path: Path) -> None:
    found = record(tmp_path)
    first = len(json.dumps(LINES[0])) + 1
    manifest = {"format": 1, "round": 1, "logs": {"metrics.jsonl": first}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"roun')
    assert found.rounds == LINES[:1]
    assert found.timing == []


def test_runs_are_found_at_any_depth_in_order(tmp_path: Path) -> None:
    for name in ("b/one", "a/two", "a/one/deep"):
        (tmp_path / name).mkdir(parents=True)
        record(tmp_path / name)
    (tmp_path / "empty").mkdir()
    found = [str(run.folder.relative_to(tmp_path)) for run in find_runs(tmp_path)]
    assert found == ["a/one/deep", "a/two", "b/one"]
