"""Real processes: a SuperLink with TLS, nodes with keys, and all that can go wrong with them."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import final_state, metrics_of
from network import Network, started
from processes import kill_group, pids_with, wait_for

from subflot.algorithms.base import Client
from subflot.data.source import data_root
from subflot.experiments import RunConfig
from subflot.experiments.config import read_config
from subflot.experiments.runner import assemble
from subflot.simulation import simulate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc"),
]

ROUNDS = 5
SETTINGS = {
    "algorithm": "subflot",
    "data": "har",
    "num_clients": 4,
    "partition": "iid",
    "rounds": ROUNDS,
    "epochs": 1,
    "max_examples": 240,
    "evaluate_every": 1,
    "flower.min_uploads": 2,
    "flower.measure_global": "false",
    "flower.round_timeout": 40,
}
ACCEPTED = {1: {0, 1, 2}, 2: {0, 3}, 3: {0, 2}, 4: {0, 1, 2}, 5: {0, 1, 2, 3}}
"""Client 1 is killed in round 2 and back in round 4; client 2 is late in round 2; client 3 sends
what it should not in rounds 1, 3 and 4."""
TAMPERED = '''
"""The client app of the run, and nodes that misbehave in some rounds."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp

from subflot.experiments.flower import app_of_clients

honest = app_of_clients(Path(__file__).parent)
app = ClientApp()


@app.query("capabilities")
def capabilities(message, context):
    return honest(message, context)


@app.train()
def train(message, context):
    round = message.content["config"]["round"]
    reply = honest(message, context)
    part = context.node_config["partition-id"]
    arrays = reply.content["arrays"]
    first = next(iter(arrays))
    if (part, round) == (2, 2):
        while not list(Path(RUNS).glob("*/state-2.safetensors")):
            time.sleep(0.2)
    if (part, round) == (3, 1):
        arrays[first] = Array(np.full_like(arrays[first].numpy(), np.nan))
    if (part, round) == (3, 3):
        arrays[first] = Array(arrays[first].numpy()[:-1])
    if (part, round) == (3, 4):
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (100000000000,), }"
        header = header.ljust(117) + b"\\n"
        data = b"\\x93NUMPY\\x01\\x00" + len(header).to_bytes(2, "little") + header
        arrays[first] = Array("float32", (100000000000,), "numpy.ndarray", data)
    return reply
'''


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if not data_root().is_dir():
        pytest.skip(f"no real data in {data_root()}")
    sets = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    with started(tmp_path, *sets) as found:
        runs = f"RUNS = {str(found.home / 'runs')!r}\n"
        (found.home / "federation" / "client_app.py").write_text(TAMPERED + runs)
        yield found


def test_devices_join_fail_lie_and_come_back(network: Network, tmp_path: Path) -> None:
    programs, home = network.programs, network.home
    network.superlink()
    for number in range(5):
        assert network.node(number).wait() == 1  # It makes its key, and says how to register it.
        if number < 4:
            key, name = f"keys/site-{number}.pub", f"site-{number}"
            told = programs.said(name)
            assert f"./flwr.sh supernode register {key} devices --name {name}" in told
            programs.call("register", home / "flwr.sh", *told.split("./flwr.sh ")[1].split())
    nodes = [network.node(number) for number in range(4)]
    stranger = network.node(4)
    wait_for(lambda: "Failed to activate SuperNode" in programs.said("site-4"))
    kill_group(stranger)
    for number in range(4):
        wait_for(lambda name=f"site-{number}": "SuperNode ID" in programs.said(name))  # type: ignore[misc]

    # Rounds 1 to 3; then the server is killed, and the device that was killed comes back.
    first = network.run(3)

    def lives() -> None:
        assert first.poll() is None, programs.said("run")

    wait_for(lambda: network.manifest["round"] >= 1, lives)
    kill_group(nodes[1])
    wait_for(lambda: network.manifest["round"] >= 3, lives)
    (server,) = pids_with("flwr-serverapp", str(network.control_port))
    os.kill(server, signal.SIGKILL)
    network.node(1)
    wait_for(lambda: programs.said("site-1").count("SuperNode ID") == 2)
    second = network.run(4)
    wait_for(lambda: list((home / "runs").glob("*/summary.json")) != [], lambda: None)
    second.wait()

    (folder,) = (home / "runs").iterdir()
    lines = metrics_of(folder)
    assert [line["round"] for line in lines] == list(range(1, ROUNDS + 1))
    faults = {
        (line["round"], client): fault
        for line in lines
        if line["num_rejected"]
        for client, fault in pairs(line, "fault")
        if fault
    }
    assert "NaN" in faults.pop((1, 3))
    assert faults.pop((2, 1)) in ("no answer before the deadline", "its node is gone")
    assert faults.pop((2, 2)) == "no answer before the deadline"
    assert "has shape" in faults.pop((3, 3))
    assert "has shape (100000000000,)" in faults.pop((4, 3))
    faults.pop((3, 1), None)  # Where the SuperLink still believed in it.
    assert faults == {}
    # Nobody else took part.
    names = json.loads((folder / "nodes.json").read_text())["clients"]
    assert names == {f"site-{number}": number for number in range(4)}
    assert "SuperNode ID" not in programs.said("site-4"), "an unregistered node was let in"
    compare(folder, lines, tmp_path / "own")


def compare(folder: Path, lines: list[dict[str, Any]], own: Path) -> None:
    """The built-in simulator with the clients that were accepted ends with the same weights."""
    rates = {c: r for line in lines for c, r in pairs(line, "pruning_rate")}
    assert len(set(rates.values())) == 4
    config = RunConfig.of(**read_config(folder / "config.toml"))
    task, data, _ = assemble(config)

    def clients(round: int) -> list[Client]:
        return [Client(number, rates[number]) for number in sorted(ACCEPTED[round])]

    rounds = list(
        simulate(config.method, task, data, clients, rounds=ROUNDS, folder=own, workers=1)
    )
    there, here = final_state(folder), rounds[-1].state
    assert there.weights.keys() == here.weights.keys()
    assert all(torch.equal(tensor, here.weights[name]) for name, tensor in there.weights.items())
    assert there.history.keys() == here.history.keys()
    for client in here.history:
        last = here.history[client]
        assert all(torch.equal(t, last[n]) for n, t in there.history[client].items())


def pairs(line: dict[str, Any], column: str) -> list[tuple[int, Any]]:
    return list(zip(line["clients"]["client"], line["clients"][column], strict=True))
