"""A SuperLink with TLS and nodes with keys, as real processes in the folder of an app."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import Programs, free_ports, wait_for

from subflot.flower import OFFLINE

PUBLIC = "127.0.0.2"
"""Where devices and strangers reach the server; 127.0.0.1 is the server's own."""
BUDGETS = (
    "pruning-rate=0.0",
    'budget=1000000 quantity="parameters"',
    'budget=2000000 quantity="bytes"',
    "pruning-rate=0.75",
)


@dataclass(frozen=True)
class Network:
    """A SuperLink and its nodes, in an app folder."""

    programs: Programs
    home: Path
    port: int
    control_port: int
    node_ports: list[int]

    def superlink(self) -> None:
        ports = (str(self.port), str(self.control_port))
        self.programs.start("superlink", self.home / "superlink.sh", PUBLIC, *ports)
        wait_for(lambda: "devices can join" in self.programs.said("superlink"))

    def node(self, number: int) -> subprocess.Popen[bytes]:
        place = self.programs.folder / f"device-{number}"
        config = f'partition-id={number} {BUDGETS[number % 4]} home="{place}"'
        address, own = f"{PUBLIC}:{self.port}", str(self.node_ports[number])
        script = self.home / "node.sh"
        return self.programs.start(f"site-{number}", script, f"site-{number}", address, own, config)

    def run(self, least: int) -> subprocess.Popen[bytes]:
        more = f'devices=true set="flower.min_nodes={least}"'
        return self.programs.start(
            "run", self.home / "flwr.sh", "run", ".", "devices", "--stream", "--run-config", more
        )

    @property
    def manifest(self) -> dict[str, Any]:
        found = list((self.home / "runs").glob("*/manifest.json"))
        return json.loads(found[0].read_text()) if found else {"round": -1}


@contextmanager
def started(folder: Path, *sets: str) -> Iterator[Network]:
    """A new app with certificates, of which nothing runs yet; all is gone at the end."""
    home = folder / "app"
    port, control_port, *node_ports = free_ports(7)
    programs = Programs(folder, {**OFFLINE, "NO_COLOR": "1"})
    try:
        programs.call("new", "subflot", "flower", "new", home, *sets)
        connections = home / ".flwr" / "config.toml"
        connections.write_text(connections.read_text().replace("9501", str(control_port)))
        programs.call("certificates", home / "certificates.sh", PUBLIC)
        yield Network(programs, home, port, control_port, node_ports)
    finally:
        programs.end()
