"""Simulations on Ray, as users start them: the same results as the built-in engine, offline."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from federations import contents, metrics_of
from processes import Programs, free_ports, wait_for

from subflot.data.source import data_root
from subflot.experiments import RunConfig, run
from subflot.experiments.config import read_config
from subflot.flower import OFFLINE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc"),
]

# What Flower would reach for on the internet is not there.
NOWHERE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
LOOPBACK = {"NO_PROXY": "127.0.0.1,localhost"}
SETTINGS = """
algorithm = "fedfomo-sub"
num_clients = 3
rounds = 2
epochs = 1
batch_size = 16
max_examples = 120
"""
ENGINE = ("flower.toml", "nodes.json", "environment.json", ".lock")
"""What an engine says of itself."""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    started = Programs(tmp_path, {**OFFLINE, **NOWHERE, **LOOPBACK, "NO_COLOR": "1"})
    try:
        yield started
    finally:
        started.end()


def compare(there: Path, here: Path) -> None:
    """Models, history, memories and metrics, byte for byte."""
    ours, theirs = contents(here), contents(there)
    names = (ours.keys() | theirs.keys()) - set(ENGINE)
    assert [name for name in sorted(names) if ours.get(name) != theirs.get(name)] == []


def test_flwr_run_with_twenty_clients_equals_the_built_in_engine(
    programs: Programs, tmp_path: Path
) -> None:
    if not data_root().is_dir():
        pytest.skip(f"no real data in {data_root()}")
    home, ports = tmp_path / "app", free_ports(2)
    sets = "algorithm=subflot-partial data=har partition=dirichlet num_clients=20 rounds=2"
    more = "epochs=1 max_examples=600 evaluate_every=1"
    changes = [f"--set={pair}" for pair in f"{sets} {more}".split()]
    programs.call("new", "subflot", "flower", "new", home, *changes)
    programs.environment["FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"] = str(ports[0])
    programs.environment["FLWR_LOCAL_CONTROL_API_PORT"] = str(ports[1])
    nodes = "num-supernodes=20 client-resources-num-cpus=1 init-args-num-cpus=2"
    said = programs.call(
        "run", home / "flwr.sh", "run", ".", "local", "--stream", "--federation-config", nodes
    )
    (folder,) = (home / "runs").iterdir()
    assert "round 2/2" in said
    config = RunConfig.of(**read_config(folder / "config.toml"))
    compare(folder, run(config, tmp_path / "own", workers=1).folder)
    assert len(metrics_of(folder)[-1]["clients"]["client"]) == 20
    assert metrics_of(folder)[-1]["global"]["num_examples"] > 0


def test_the_engine_flower_starts_ray_goes_on_and_leaves_nothing_running(
    programs: Programs, tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(SETTINGS)
    words = ("run", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "runs"))
    said = programs.call("run", "subflot", *words, "--engine", "flower", "--workers", "2")
    assert "round 2/2" in said
    assert "Traceback" not in said
    (folder,) = (path.parent for path in (tmp_path / "runs").rglob("manifest.json"))
    config = RunConfig.of(**read_config(folder / "config.toml"))
    compare(folder, run(config, tmp_path / "own", workers=1).folder)
    wait_for(lambda: programs.running() == [])  # Ray's own processes take a moment.
