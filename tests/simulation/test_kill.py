"""A run that is killed again and again ends like one that was left in peace."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from federations import contents, differing

from subflot import cli
from subflot.experiments import RunConfig, run
from subflot.experiments.config import read_config

ROUNDS = 26
SETTINGS = f"""
name = "tiny"
algorithm = "subflot"
num_clients = 4
rounds = {ROUNDS}
epochs = 1
batch_size = 16
max_examples = 160
client_rates = [0.0, 0.25, 0.5, 0.75]
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for workers in /proc"),
]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(SETTINGS)
    return path


def arguments(config: Path, out: Path) -> list[str]:
    return ["run", str(config), "--out", str(out), "--workers", "2"]


def begin(config: Path, out: Path) -> int:
    """Start the command line in a process of its own; a fork spares it the imports."""
    pid = os.fork()
    if pid:
        return pid
    try:
        with (config.parent / "said.txt").open("a") as said:
            for stream in (1, 2):
                os.dup2(said.fileno(), stream)
            sys.argv = ["subflot", *arguments(config, out)]
            cli.main()
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    finally:
        os._exit(70)


def begin_anew(config: Path, out: Path) -> int:
    """The same in a new interpreter, as a user starts it."""
    with (config.parent / "said.txt").open("a") as said:
        command = [sys.executable, "-m", "subflot.cli", *arguments(config, out)]
        return subprocess.Popen(command, stdout=said, stderr=said).pid


def has_ended(pid: int) -> bool:
    """Whether a child of ours is over; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def workers_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


# ----- instants

Instant = Callable[[Path], bool]
"""Whether it has come, by what there is in the folder of the run."""


def round_of(folder: Path) -> int:
    try:
        return int(json.loads((folder / "manifest.json").read_text())["round"])
    except (FileNotFoundError, NotADirectoryError):
        return -1


def has(pattern: str) -> Instant:
    return lambda folder: any(folder.glob(pattern))


def new_state(folder: Path) -> bool:
    """The state of a round is written that does not count yet."""
    return (folder / f"state-{round_of(folder) + 1}.safetensors").exists()


def new_history(folder: Path) -> bool:
    return any(folder.glob(f"history/*-{round_of(folder) + 1}.safetensors"))


def new_line(folder: Path) -> bool:
    """A log is longer than what counts of it."""
    try:
        counted = json.loads((folder / "manifest.json").read_text())["logs"]
        return bool((folder / "metrics.jsonl").stat().st_size > counted.get("metrics.jsonl", 0))
    except FileNotFoundError:
        return False


def is_over(folder: Path) -> bool:
    """All rounds count, and nobody has summed them up yet."""
    return round_of(folder) == ROUNDS


def after(seconds: float) -> Instant:
    """So long after the first round that was saved since the start."""
    seen: list[tuple[int, float]] = []

    def has_come(folder: Path) -> bool:
        now = round_of(folder)
        if not seen or (len(seen) == 1 and now > seen[0][0]):
            seen.append((now, time.monotonic()))
        return len(seen) == 2 and time.monotonic() - seen[1][1] >= seconds

    return has_come


def kill_at(pid: int, folder: Path, instant: Instant) -> tuple[bool, list[int]]:
    """Kill a process at an instant; return whether it still ran, and the workers it had."""
    while not instant(folder):
        if has_ended(pid):
            os.waitpid(pid, 0)
            return False, []
        time.sleep(0.0005)  # Shorter than any write that waits for the disk.
    workers = workers_of(pid)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status), workers


def wait_until_dead(pids: list[int]) -> None:
    patience = time.monotonic() + 60
    while alive := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > patience:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
            pytest.fail(f"workers {alive} outlived the run")
        time.sleep(0.001)


def finish(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_run_killed_at_any_instant_ends_with_the_same_bits(tmp_path: Path, config: Path) -> None:
    settings = RunConfig.of(**read_config(config))
    # In this process, so that the compiled functions are loaded when it is forked.
    whole = run(settings, tmp_path / "whole", workers=1).folder
    folder = tmp_path / "killed" / "tiny" / settings.run_id
    draw = random.Random(20)
    delays = [after(draw.uniform(0, 0.4)) for _ in range(8)]
    instants: list[Instant] = [
        has("config.toml"),
        has("state-0.safetensors"),
        new_line,
        *(has(".manifest.json.*.part"), has("arriving/*"), new_history, new_state, new_line),
        *delays[:4],
        *(new_line, new_state, has(".manifest.json.*.part"), has("history/.*.part")),
        *delays[4:],
        is_over,
    ]
    num_killed, most_workers = 0, 0
    for number, instant in enumerate(instants):
        start = begin_anew if number % 9 == 3 else begin
        was_killed, workers = kill_at(start(config, tmp_path / "killed"), folder, instant)
        wait_until_dead(workers)
        num_killed += was_killed
        most_workers = max(most_workers, len(workers))
    said = (tmp_path / "said.txt").read_text()
    assert num_killed >= len(instants) - 2, said
    assert most_workers == 2
    assert finish(begin(config, tmp_path / "killed")) == 0, said
    assert differing(folder, whole) == []
    assert "error" not in said
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in whole.iterdir()}
    timing = (folder / "timing.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in timing] == list(range(1, ROUNDS + 1))
    one, other = (json.loads((run / "summary.json").read_text()) for run in (folder, whole))
    for summary in (one, other):  # How long it took is all that may differ.
        del summary["seconds"], summary["phases"], summary["checksums"]["timing.jsonl"]
    assert one == other
    assert contents(folder)["manifest"]["round"] == ROUNDS
