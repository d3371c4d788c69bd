"""The folder of a run: what the server knows between rounds, consistent at every instant.

A round writes new files and changes none. It counts from the moment that the manifest, which
names the files that belong together, is replaced; until then the round before stands. Logs only
grow, and the manifest says how far they count.

    manifest.json                  the last round that is whole, and its files
    state-12.safetensors           the server's model and extras
    history/7-12.safetensors       what client 7 uploaded in round 12, and its channels
    memory/7-12.safetensors        what client 7 remembers since round 12
    arriving/                      uploads of the present round
    metrics.jsonl, timing.jsonl    logs
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from subflot.algorithms.base import Memory, Place, State
from subflot.channels import Channels
from subflot.errors import SubflotError
from subflot.results import (
    BEGUN,
    CONFIG,
    ENVIRONMENT,
    MANIFEST,
    RESTORE,
    manifest_text,
    read_checked,
    read_manifest,
)
from subflot.texts import checksum, sync, write_text
from subflot.weights import Weights, read_weights, write_weights

Found = TypeVar("Found")
PER_CLIENT = ("history", "memory")
CHANNELS = "channels/"
"""What the names of tensors that are indices of channels begin with, beside weights."""
LOGS = "*.jsonl"
FORGETTING = ".forgetting.json"
"""What the manifest is called while models are removed on purpose."""
FIXED = (CONFIG, ENVIRONMENT)
"""Written before the first round, and never again."""


@dataclass(frozen=True)
class Manifest:
    """Which round is whole, and which files belong to it."""

    round: int
    history: Mapping[str, str] = field(default_factory=dict)
    """Client -> file of its last upload."""
    memory: Mapping[str, str] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)
    """Log -> bytes that count."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """Log, or file that never changes -> by what its damage shows. Those of tensors hold theirs."""

    @property
    def state(self) -> str:
        """The file of the server's state."""
        return f"state-{self.round}.safetensors"


class _ClientFiles(Mapping[int, Found]):
    """What belongs to each client, read from its file when it is asked for."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self._folder, self._files = folder, files

    def __contains__(self, client: object) -> bool:
        return str(client) in self._files

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(map(int, self._files)))

    def __len__(self) -> int:
        return len(self._files)


class History(_ClientFiles[Weights]):
    """Client -> the weights that it last uploaded."""

    def __getitem__(self, client: int) -> Weights:
        found = _read(self._folder / self._files[str(client)])
        return {name: tensor for name, tensor in found.items() if not name.startswith(CHANNELS)}


class Places(_ClientFiles[Place]):
    """Client -> where its last upload was merged."""

    def __getitem__(self, client: int) -> Place:
        file = self._files[str(client)]
        return Place(round_of(file), joined(_read(self._folder / file)).get(CHANNELS[:-1], {}))


class Store:
    """Reads and writes the folder of a run. Several processes may read; one commits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ----- reading, in any process

    def manifest(self) -> Manifest | None:
        """Return the last whole round; None before the first commit."""
        found = read_manifest(self.folder)
        try:
            return None if found is None else Manifest(**found)
        except TypeError as error:
            path = self.folder / MANIFEST
            raise SubflotError(f"{path} is damaged: {error}", hint=RESTORE) from None

    def state(self, manifest: Manifest) -> State:
        """Read the server's state after the manifest's round."""
        parts = joined(_read(self.folder / manifest.state))
        return self.with_clients(State(parts.get("weights", {}), parts.get("extras", {})), manifest)

    def with_clients(self, state: State, manifest: Manifest) -> State:
        """Add what is kept of each client."""
        files = self.folder, manifest.history
        return replace(state, history=History(*files), places=Places(*files))

    def memory(self, manifest: Manifest, client: int) -> Memory:
        """Read what a client remembers; nothing if it never took part."""
        file = manifest.memory.get(str(client))
        return _read(self.folder / file) if file else {}

    def arriving(self, client: int) -> Path:
        """Where a client's upload waits to be merged."""
        return self.folder / "arriving" / f"{client}.safetensors"

    def keep(
        self, kind: str, client: int, round: int, weights: Weights, channels: Channels | None = None
    ) -> str:
        """Write what belongs to a client; it counts once a manifest names the file."""
        file = file_of(kind, client, round)
        named = {f"{CHANNELS}{space}": index for space, index in (channels or {}).items()}
        write_weights(self.folder / file, {**weights, **named})
        return file

    # ----- writing, in the process that owns the run

    def open(self) -> Manifest | None:
        """Prepare the folder and throw away what no manifest names."""
        for name in (*PER_CLIENT, "arriving"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        manifest = self.manifest()
        if manifest is None:
            self._check_lost()
        self._sweep(manifest or Manifest(-1))
        counted = manifest.logs if manifest else {}
        for name in {**counted, **manifest.checksums} if manifest else ():
            try:
                read_checked(self.folder / name, vars(manifest))
            except FileNotFoundError:
                raise SubflotError(f"{self.folder / name} is gone", hint=RESTORE) from None
        for path in self.folder.glob(LOGS):  # Also those of which nothing counts yet.
            os.truncate(path, counted.get(path.name, 0))
        return manifest

    def _check_lost(self) -> None:
        """Refuse to begin anew on rounds that only lack their manifest."""
        done = [state_round(path) for path in self.folder.glob("state-*.safetensors")]
        if max(done, default=0) > 0 and not (self.folder / FORGETTING).exists():
            raise SubflotError(f"{self.folder / MANIFEST} is gone", hint=RESTORE)

    def write(self, manifest: Manifest, state: State) -> None:
        """Write the state of a round that does not count yet."""
        stored = flattened({"weights": state.weights, "extras": state.extras})
        write_weights(self.folder / manifest.state, stored)

    def commit(self, manifest: Manifest, lines: Mapping[str, Any]) -> Manifest:
        """Make a round count: its state, its logs' new lines, and the files that it names."""
        try:
            sums = {**self._fixed(), **manifest.checksums}
            logs = {}
            for log, line in lines.items():
                logs[log], sums[log] = self._append(log, line, sums.get(log))
            for name in PER_CLIENT:
                sync(self.folder / name)
        except OSError as error:
            raise SubflotError(f"cannot write to {self.folder}: {error}") from None
        whole = Manifest(manifest.round, manifest.history, manifest.memory, logs, sums)
        write_text(self.folder / MANIFEST, manifest_text(vars(whole)))
        self._sweep(whole)
        return whole

    def _append(self, log: str, line: Any, before: str | None) -> tuple[int, str]:
        """Add a line to a log; return the log's length and, from that before, its checksum."""
        path = self.folder / log
        if before is None:  # The first line, or the run began before logs had checksums.
            before = checksum(path.read_bytes() if path.exists() else b"")
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        with path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            return file.tell(), checksum(data, before)

    def _fixed(self) -> dict[str, str]:
        paths = [self.folder / name for name in FIXED]
        return {path.name: checksum(path.read_bytes()) for path in paths if path.is_file()}

    def _sweep(self, manifest: Manifest) -> None:
        """Remove files of rounds that are over or never became whole."""
        named = {manifest.state, *manifest.history.values(), *manifest.memory.values()}
        found = [*self.folder.glob("state-*.safetensors"), *self.folder.glob(".*.part")]
        for name in (*PER_CLIENT, "arriving"):
            found += (self.folder / name).iterdir()
        for path in (*found, self.folder / FORGETTING):
            if str(path.relative_to(self.folder)) not in named:
                path.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, torch.Tensor]:
    try:
        return read_weights(path)
    except SubflotError as error:
        raise SubflotError(f"a checkpoint is damaged: {error}", hint=RESTORE) from None


def file_of(kind: str, client: int, round: int) -> str:
    """Name the file of what belongs to a client since a round."""
    return f"{kind}/{client}-{round}.safetensors"


def state_round(path: Path) -> int:
    """Return the round in the name of a file of the server's state; -1 if it has none.

    Example:
        >>> state_round(Path("run/state-12.safetensors"))
        12
    """
    number = path.stem.partition("-")[2]
    return int(number) if number.isdecimal() else -1


def round_of(file: str) -> int:
    """Return the round in the name of a client's file.

    Example:
        >>> round_of(file_of("memory", 7, 12))
        12
    """
    return int(Path(file).stem.partition("-")[2])


def flattened(parts: Mapping[str, Weights]) -> Weights:
    """Put groups of named tensors into one."""
    return {f"{part}/{name}": t for part, tensors in parts.items() for name, t in tensors.items()}


def joined(flat: Weights) -> dict[str, dict[str, torch.Tensor]]:
    """Undo `flattened`; groups without tensors are gone."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in flat.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = tensor
    return parts


def clear(folder: Path) -> None:
    """Remove what a run left, and nothing else."""
    forget(folder)
    for path in folder.glob(LOGS):
        path.unlink(missing_ok=True)


def forget(folder: Path) -> None:
    """Remove the models that a run left; its record stays."""
    if (folder / MANIFEST).exists():  # First: without it nothing else counts.
        (folder / MANIFEST).replace(folder / FORGETTING)
    (folder / BEGUN).unlink(missing_ok=True)
    for name in (*PER_CLIENT, "arriving"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in folder.glob("state-*.safetensors"):
        path.unlink(missing_ok=True)
    (folder / FORGETTING).unlink(missing_ok=True)
