"""`subflot run`, `resume` and `algorithms` as a user meets them, also when things go wrong."""

import errno
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from commands import Command
from federations import contents, differing, metrics_of
from made_files import without_checksums

from subflot.algorithms.base import ClientContext, Download, Memory, Upload
from subflot.algorithms.subflot import SubFLOT
from subflot.cli.watch import Watch
from subflot.experiments import RunConfig
from subflot.simulation import Round
from subflot.task import Task

SETTINGS = """
name = "tiny"
algorithm = "subflot"
num_clients = 3
rounds = 3
epochs = 1
batch_size = 16
max_examples = 120
"""


@pytest.fixture
def subflot(subflot: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Call it in a folder with a small file of runs."""
    (tmp_path / "tiny.toml").write_text(SETTINGS)
    monkeypatch.chdir(tmp_path)
    return subflot


def fails(outcome: tuple[int, str, str], error: str, hint: str) -> None:
    """One error and one hint, and nothing that looks like a fault of the program."""
    code, out, err = outcome
    lines = [line for line in err.splitlines() if not line.startswith("subflot: round ")]
    assert code == 2, err
    assert out == ""
    assert lines[0].startswith("error: "), err
    assert error in lines[0]
    assert hint in err
    assert sum(line.startswith(("error: ", "hint: ")) for line in lines) <= 2
    assert "Traceback" not in err
    assert "should not happen" not in err


RUN = ("run", "tiny.toml", "--workers", "1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing disturbed."""
    from subflot.experiments import RunConfig, run
    from subflot.experiments.config import read_config

    place = tmp_path_factory.mktemp("whole")
    (place / "tiny.toml").write_text(SETTINGS)
    config = RunConfig.of(**read_config(place / "tiny.toml"))
    return run(config, place / config.run_id, workers=1).folder


def folder_of(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    return folder


# ----- as it should go


def test_a_run_is_recorded_summed_up_and_not_run_twice(
    subflot: Command, tmp_path: Path, whole: Path
) -> None:
    code, out, err = subflot(*RUN)
    assert code == 0
    assert "tiny: last round, means over clients" in out
    assert [line for line in err.splitlines() if "round 3/3" in line]
    assert folder_of(tmp_path).name == whole.name
    assert differing(folder_of(tmp_path), whole) == []
    code, again, err = subflot(*RUN)
    assert (code, again) == (0, out)
    assert "is finished; --force runs it again" in err
    assert "round" not in err.replace("rounds", "")


def test_several_methods_and_seeds_are_told_as_json(subflot: Command) -> None:
    args = ("--algorithms", "local,heterofl", "--seeds", "0,1", "--set", "rounds=1", "--json")
    code, out, _ = subflot(*RUN, *args)
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [(run["seed"], run["algorithm"]) for run in runs] == [
        (0, "local"),
        (0, "heterofl"),
        (1, "local"),
        (1, "heterofl"),
    ]
    assert all(run["round"] == 1 and run["trained"] is not None for run in runs)


def test_a_dry_run_runs_nothing(subflot: Command, tmp_path: Path) -> None:
    code, out, _ = subflot("run", "quickstart", "--dry-run")
    assert code == 0
    assert "(to run)" in out
    assert 'partition = "dirichlet"' in out
    assert not (tmp_path / "runs").exists()


def test_methods_are_listed_with_papers_and_settings(subflot: Command) -> None:
    _, out, _ = subflot("algorithms", "--json")
    listed = json.loads(out)
    assert listed["subflot"]["settings"]["global_share"] == 0.5
    assert listed["fedavg"]["ignores_budgets"] is True
    assert "arXiv:1812.06127" in listed["fedprox"]["paper"]
    code, out, _ = subflot("algorithms")
    assert code == 0
    assert "proximal_weight=0.01" in out


# ----- settings that cannot be


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["--set", "learning_rat=1"], "unknown setting `learning_rat`", "`learning_rate`"),
        (["--set", "global_shar=1"], "unknown setting `global_shar`", "`global_share`"),
        (["--set", "pruning_rates=[0, 1.0]"], "pruning_rates is [0.0, 1.0]", "lies in [0, 1)"),
        (["--set", "pruning_rates=1.0"], "pruning_rates is [1.0]", "lies in [0, 1)"),
        (["--set", "num_clients=-3"], "num_clients is -3", "at least 0"),
        (["--set", "num_clients=121"], "121 clients", "120"),
        (["--set", "per_round=4"], "per_round is 4", "there are 3 clients"),
        (["--set", "rounds=0"], "rounds is 0", "at least 1"),
        (["--set", "learning_rate=fast"], "learning_rate is 'fast'", "float"),
        (["--set", "extract=prefx"], "unknown extract `prefx`", "`prefix`"),
        (["--set", "rounds"], "`rounds` sets nothing", "key=value"),
        (["--set", "algorithm=7"], "algorithm is 7", "str"),
        (["--set", "device=gpu"], "device is 'gpu'", "`cpu`"),
        (["--set", "data=cifar"], "unknown data set `cifar`", "did you mean"),
        (["--set", "model=harcnn"], "harcnn cannot take inputs of shape (1, 8, 8)", ""),
        (["--set", "model=missing.py:Net"], "missing.py", ""),
        (["--algorithms", "fedavgg"], "unknown algorithm `fedavgg`", "`fedavg`"),
        (["--seeds", "one"], "`one` are no seeds", "0,1,2"),
        (["--out", "tiny.toml"], "cannot write to tiny.toml", "another folder"),
    ],
)
def test_a_mistake_in_the_settings_is_one_clear_error(
    args: list[str], error: str, hint: str, subflot: Command, tmp_path: Path
) -> None:
    fails(subflot(*RUN, *args), error, hint)
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_data_that_are_not_here_are_reported_before_anything_is_run(
    subflot: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path / "none"))
    outcome = subflot("run", "har", "--algorithms", "local")
    fails(outcome, "data set `har`: ", "`subflot data get har` fetches")
    assert not (tmp_path / "runs").exists()


def test_flower_that_is_not_installed_is_named_with_its_extra(
    subflot: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "subflot.experiments.flower", raising=False)
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    outcome = subflot(*RUN, "--engine", "flower")
    fails(outcome, "Flower is not installed", "pip install 'subflot[flower-sim]'")


def test_files_and_presets_that_are_not_there_are_named(subflot: Command) -> None:
    fails(subflot("run", "none.toml"), "cannot read none.toml: No such file", "")
    fails(subflot("run", "quickstrt"), "unknown preset `quickstrt`", "`quickstart`")
    fails(subflot("resume", "nowhere"), "nowhere is not the folder of a run", "config.toml")


# ----- a model of one's own

NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
"""


def test_a_model_whose_file_was_edited_is_run_anew(subflot: Command, tmp_path: Path) -> None:
    args = (*RUN, "--set", "model=net.py:Net", "--set", "rounds=1", "--json")
    (tmp_path / "net.py").write_text(NET.replace("WIDTH", "16"))
    first = json.loads(subflot(*args)[1])["runs"][0]
    (tmp_path / "net.py").write_text(NET.replace("WIDTH", "8"))
    second = json.loads(subflot(*args)[1])["runs"][0]
    assert second["run"] != first["run"]
    assert second["parameters"] < first["parameters"]


def test_a_run_whose_model_was_edited_is_not_resumed(
    subflot: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text(NET.replace("WIDTH", "16"))
    folder = interrupted(subflot, monkeypatch, tmp_path, "--set", "model=net.py:Net")
    (tmp_path / "net.py").write_text(NET.replace("WIDTH", "8"))
    resume = ("resume", str(folder), "--workers", "1", "--trust")
    fails(subflot(*resume), "net.py has changed since the run began", "put the file back as it was")
    (tmp_path / "net.py").write_text(NET.replace("WIDTH", "16"))
    assert subflot(*resume)[0] == 0


@pytest.mark.parametrize("model", ["{folder}/net.py:Net", "received.net:Net"])
@pytest.mark.parametrize("is_old", [True, False])
def test_no_code_of_a_received_folder_is_run_unless_it_is_trusted(
    model: str, is_old: bool, subflot: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not that of the packages in which a module is looked for."""
    monkeypatch.syspath_prepend(str(tmp_path))
    code = f"open({str(tmp_path / 'was-run')!r}, 'w')\n"
    folder = tmp_path / "received"
    folder.mkdir()
    for name in ("__init__.py", "net.py"):
        (folder / name).write_text(code)
    own = model.format(folder=folder)
    config = RunConfig.of(
        name="tiny", model=own, model_digest=sha256(code.encode()).hexdigest()[:10]
    )
    lines = [one for one in config.toml().splitlines() if not (is_old and "_digest" in one)]
    (folder / "config.toml").write_text("\n".join(lines))
    for command in (("resume", str(folder)), ("export", str(folder), "--client", "0")):
        fails(subflot(*command), f"would run code: its model is {own}", "--trust")
    subflot("report", str(folder))
    assert not (tmp_path / "was-run").exists()
    if not is_old and model[0] == "{":
        subflot("resume", str(folder), "--workers", "1", "--trust")
        assert (tmp_path / "was-run").exists()


# ----- folders that are not as they were left


@pytest.fixture
def stopped(subflot: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run that was interrupted after its second round."""
    return interrupted(subflot, monkeypatch, tmp_path)


def interrupted(
    subflot: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *args: str
) -> Path:
    show = Watch.__call__

    def stop(watch: Watch, done: Round) -> None:
        show(watch, done)
        if done.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Watch, "__call__", stop)
        code, _, err = subflot(*RUN, *args)
    folder = folder_of(tmp_path)
    assert code == 130
    assert "stopped; 2 of 3 rounds of subflot are saved" in err
    assert f"to go on: subflot resume {folder.relative_to(tmp_path)}" in err
    return folder


def test_an_interrupted_run_is_resumed(subflot: Command, stopped: Path, whole: Path) -> None:
    code, out, err = subflot("resume", str(stopped), "--workers", "1")
    assert code == 0
    assert "round 3/3" in err
    assert "round 2/3" not in err
    assert "subflot" in out
    assert differing(stopped, whole) == []


def test_a_folder_of_other_settings_is_refused(subflot: Command, stopped: Path) -> None:
    without_checksums(stopped)
    path = stopped / "config.toml"
    path.write_text(path.read_text().replace("batch_size = 16", "batch_size = 8"))
    fails(subflot(*RUN), "holds a run of other settings: batch_size", "--force")
    assert len(metrics_of(stopped)) == 2


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "state": (lambda run: os.truncate(run / "state-2.safetensors", 99), "checkpoint is damaged"),
    "history": (
        lambda run: os.truncate(next(run.glob("history/1-2.*")), 99),
        "checkpoint is damaged",
    ),
    "a lost history": (
        lambda run: next(run.glob("history/1-2.*")).unlink(),
        "checkpoint is damaged: there is no file",
    ),
    "manifest": (lambda run: os.truncate(run / "manifest.json", 20), "manifest.json is damaged"),
    "log": (lambda run: os.truncate(run / "metrics.jsonl", 20), "metrics.jsonl is shorter than"),
    "settings": (
        lambda run: (run / "config.toml").write_text("rounds = ["),
        "config.toml is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_is_one_clear_error_and_can_be_run_anew(
    damage: str, subflot: Command, stopped: Path, whole: Path
) -> None:
    hurt, error = DAMAGES[damage]
    hurt(stopped)
    fails(subflot(*RUN), error, "" if damage == "settings" else "--force")
    code, _, _ = subflot(*RUN, "--force")
    assert code == 0
    assert differing(stopped, whole) == []


def test_a_folder_in_use_is_refused_and_free_again_afterwards(
    subflot: Command, stopped: Path, whole: Path
) -> None:
    code = f"""
import fcntl, sys
lock = open({str(stopped / ".lock")!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        fails(subflot(*RUN), "is in use by another process", "wait for it")
        assert len(metrics_of(stopped)) == 2
        other.communicate("")
    assert subflot(*RUN)[0] == 0
    assert differing(stopped, whole) == []


# ----- what may happen on the way


@pytest.mark.parametrize("left", [0, 4, 6, 8])
def test_a_full_disk_costs_one_round_at_most(
    left: int, subflot: Command, stopped: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls, fsync = contents(stopped), iter(range(left)), os.fsync

    def full(descriptor: int) -> None:
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        outcome = subflot(*RUN)
    fails(outcome, "cannot write", "")
    assert "No space left on device" in outcome[2]
    counted = json.loads((stopped / "manifest.json").read_text())
    assert counted["round"] == before["manifest"]["round"] == 2
    assert subflot(*RUN)[0] == 0
    assert differing(stopped, whole) == []


def test_a_killed_worker_costs_one_round_at_most(
    subflot: Command, tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = SubFLOT.train

    def killed(
        self: SubFLOT, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        if context.turn.round == 2 and context.client.id == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(self, task, download, context)

    with monkeypatch.context() as patch:
        patch.setattr(SubFLOT, "train", killed)
        outcome = subflot("run", "tiny.toml", "--workers", "2")
    fails(outcome, "a worker process was killed", "fewer --workers")
    assert len(metrics_of(folder_of(tmp_path))) == 1
    assert subflot("run", "tiny.toml", "--workers", "2")[0] == 0
    assert differing(folder_of(tmp_path), whole) == []


def test_a_method_that_fails_does_not_stop_the_others(subflot: Command, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(SETTINGS + "[for.fedavg]\nlearning_rate = 1e30\n")
    args = (*RUN, "--algorithms", "heterofl,fedavg,local")
    code, out, err = subflot(*args)
    assert code == 1
    assert "heterofl" in out
    assert "local" in out
    assert "fedavg" not in out
    last = err.splitlines()[-1]
    assert last.startswith("failed: fedavg: round ")
    assert "has 0 good uploads of 3: client" in last
    code, out, _ = subflot(*args, "--json")
    found = json.loads(out)
    assert code == 1
    assert [run["algorithm"] for run in found["runs"]] == ["heterofl", "local"]
    assert list(found["failures"]) == ["fedavg"]


def test_where_all_fail_there_is_no_table_and_every_reason(subflot: Command) -> None:
    args = ("--algorithms", "fedavg,local", "--set", "learning_rate=1e30")
    code, out, err = subflot(*RUN, *args)
    assert (code, out) == (1, "")
    assert [line.partition(": round ")[0] for line in err.splitlines()[-2:]] == [
        "failed: fedavg",
        "failed: local",
    ]


def test_a_method_that_no_learning_rate_fits_does_not_stop_the_others(
    subflot: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.toml").write_text(SETTINGS + "[tune]\nlearning_rate = [0.1]\ntrials = 2\n")
    train = SubFLOT.train

    def broken(self: SubFLOT, *args: Any) -> tuple[Upload, Memory]:
        upload, memory = train(self, *args)
        return replace(upload, weights={n: t * math.nan for n, t in upload.weights.items()}), memory

    monkeypatch.setattr(SubFLOT, "train", broken)
    code, out, err = subflot(*RUN, "--algorithms", "subflot,local", "--set", "rounds=1")
    assert code == 1
    assert "local" in out
    assert "subflot, on validation examples: 0.1: failed; 0.033: failed" in err
    assert "tiny: subflot none (2 trials, all failed); local 0." in " ".join(out.split())
    assert err.splitlines()[-1].startswith("failed: subflot: no learning rate works: round 1 has")


def test_training_that_diverges_says_what_to_do(subflot: Command) -> None:
    outcome = subflot(*RUN, "--set", "learning_rate=1e30")
    fails(outcome, "has 0 good uploads of 3: client", "learning_rate")


def test_several_seeds_are_one_line_with_their_spread(subflot: Command, tmp_path: Path) -> None:
    args = ("--seeds", "3,4,5", "--algorithms", "fedavg,local", "--set", "rounds=1")
    code, out, _ = subflot(*RUN, *args, "--markdown")
    assert code == 0
    head, ruler, fedavg, local, _, caption, _, meaning = out.splitlines()
    assert head.startswith("| algorithm | seeds | trained | Δ fedavg |")
    assert ruler.count("---:") == head.count("|") - 2
    found = [
        json.loads((folder / "summary.json").read_text())["trained"]
        for folder in sorted((tmp_path / "runs" / "tiny").iterdir())
        if folder.name.startswith("local")
    ]
    mean = sum(found) / 3
    spread = math.sqrt(sum((one - mean) ** 2 for one in found) / 2)
    assert local.startswith(f"| local | 3,4,5 | {100 * mean:.2f} ± {100 * spread:.2f} % |")
    assert fedavg.startswith("| fedavg \\* | 3,4,5 |")
    assert caption.startswith("\\* ignores budgets")
    assert meaning.endswith(
        "over clients within each seed, not over seeds; † where it excludes zero"
    )
    told = json.loads(subflot(*RUN, *args, "--json")[1])
    assert told["reference"] == "fedavg"
    assert told["paired"]["local"]["seeds"] == [3, 4, 5]
    difference = 100 * (mean - sum(run["trained"] for run in told["runs"][::2]) / 3)
    assert told["paired"]["local"]["mean"] == pytest.approx(difference)
    assert f" | {difference:+.2f}" in local
    code, table, _ = subflot(*RUN, *args)
    assert "local" in table
    assert "*" in table


def test_ctrl_c_says_how_to_go_on(subflot: Command, tmp_path: Path) -> None:
    args = ("--set", "rounds=15", "--workers", "2")
    running = subprocess.Popen(
        [sys.executable, "-m", "subflot.cli", "run", "tiny.toml", "--out", "stopped", *args],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # Where the tests run in the background, signals from the keyboard are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert running.stderr is not None
    assert "round 1/15" in running.stderr.readline()
    running.send_signal(signal.SIGINT)
    said = running.stderr.read()
    assert running.wait() == 130
    assert "rounds of subflot are saved" in said
    assert "Traceback" not in said
    hint = said.splitlines()[-1]
    assert hint.startswith("to go on: subflot resume ")
    code, _, _ = subflot("resume", hint.rpartition(" ")[2], "--workers", "1")
    assert code == 0
    assert subflot("run", "tiny.toml", "--out", "whole", *args)[0] == 0
    one, other = (next((tmp_path / out / "tiny").iterdir()) for out in ("stopped", "whole"))
    assert differing(one, other) == []


def test_a_lock_does_not_outlive_its_process(stopped: Path) -> None:
    with (stopped / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
