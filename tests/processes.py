"""Programs that a test starts and that are gone when it ends, whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

BIN = Path(sys.executable).parent
MARK = "SUBFLOT_TEST"
"""In the environment of all that a test starts."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def pids_with(*words: str, file: str = "cmdline") -> list[int]:
    """Processes on whose command line, or in whose environment, all words stand."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                line = (folder / file).read_bytes().decode(errors="replace")
            except OSError:  # It is over, or not ours.
                continue
            if all(word in line for word in words):
                found.append(int(folder.name))
    return found


class Programs:
    """Starts programs in sessions of their own; each says what it has to say to a file."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._mark = f"{MARK}={folder}\0"
        own = {"PATH": f"{BIN}:{os.environ['PATH']}", MARK: str(folder)}
        self.environment = {**os.environ, **own, **environment}
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, *command: str | Path) -> subprocess.Popen[bytes]:
        """Start a program; what it says is added to `name`.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def call(self, name: str, *command: str | Path) -> str:
        """Run a program to its end; it must do well."""
        process = self.start(name, *command)
        assert process.wait() == 0, self.said(name)
        return self.said(name)

    def said(self, name: str) -> str:
        """What a program said so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def running(self) -> list[int]:
        """What was started, and what that started in turn, however far removed."""
        return [pid for pid in pids_with(self._mark, file="environ") if pid != os.getpid()]

    def end(self) -> None:
        """Kill all of it."""
        for process in self._running:
            kill_group(process)
        for pid in self.running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its children, without a chance to say goodbye."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(is_so: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    """Wait until something is so; `check` may find that it never will."""
    while not is_so():
        check()
        time.sleep(0.2)
