"""Who is there: which node of the grid is which client, and how much each can hold."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from subflot.algorithms.base import Client
from subflot.algorithms.check import MOST_EXAMPLES
from subflot.errors import SubflotError
from subflot.flower.client import CAPABILITIES
from subflot.flower.decode import LONGEST_FAULT, Refused, content_of
from subflot.flower.exchange import exchange
from subflot.flower.records import CONFIG
from subflot.flower.settings import FlowerSettings
from subflot.simulation.roster import Roster, rate_within
from subflot.task import Task
from subflot.texts import clean, write_text

NODES = "nodes.json"
LONGEST_NAME = 200
PAUSE = 0.5
ASK_AGAIN = 600.0
"""Seconds after which a node that gave no good answer is asked again."""


class Members:
    """The nodes that answered the one question that is put to each.

    Clients have numbers, which random streams and the history go by. In a simulation they are the
    parts of the data, and a roster gives the rates. Otherwise a node keeps the number that it got
    when it was first seen, by the name under which it was registered, also when it comes back. A
    name belongs to the key that first had it, and to one node at a time.
    """

    def __init__(
        self,
        grid: Grid,
        task: Task,
        folder: Path,
        settings: FlowerSettings,
        roster: Roster | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._grid, self._task, self._settings = grid, task, settings
        self._roster, self._say, self._path = roster, say, folder / NODES
        self._rates: dict[int, float | None] = {}
        self._counts: dict[int, tuple[int, int | None]] = {}
        self._nodes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._later: dict[int, float] = {}
        known = _read(self._path)
        self.run: str = "" if roster else known.get("run") or uuid4().hex
        """Tells this run from others on a device that takes part in several."""
        self._names: dict[str, int] = dict(known.get("clients", {}))
        self._keys: dict[str, str] = dict(known.get("keys", {}))
        """Name -> public key; files from before keys were noted name none."""
        self._refused: dict[str, str] = dict(known.get("refused", {}))

    def __call__(self, round: int) -> Sequence[Client]:
        """Return the clients that are there in a round; wait until there are enough."""
        least, told = self._settings.min_nodes, -1
        while len(there := self._refresh()) < least:
            if len(there) != told and not self._roster:
                told = len(there)
                self._say(f"waiting for nodes: {told} of {least} are there")
            time.sleep(PAUSE)
        if self._roster is None:
            return [Client(number, self._rates[number] or 0.0) for number in sorted(there)]
        return [client for client in self._roster(round) if client.id in there]

    def node(self, client: int) -> int:
        """Return the node that a client is at."""
        return self._nodes[client]

    def fault_of_counts(self, client: int, trained: int, tests: Iterable[int] = ()) -> str:
        """Say which count is more than what a client declared before anything hung on it."""
        num_examples, num_test = self._counts[client]
        if trained > num_examples:
            return f"it claims {trained} examples, and declared {num_examples}"
        for count in tests:
            if num_test is not None and count > num_test:
                return f"it claims {count} test examples, and declared {num_test}"
        return ""

    def _refresh(self) -> set[int]:
        """Meet nodes that are new; return the clients that can be reached."""
        nodes = {int(node.node_id): node for node in self._grid.get_nodes()}
        now = time.monotonic()
        # Who went away and is back may be asked at once.
        self._later = {node: when for node, when in self._later.items() if node in nodes}
        new = {
            number: node
            for number, node in nodes.items()
            if number not in self._numbers and self._later.get(number, now) <= now
        }
        if new:
            self._meet(new, nodes.keys())
            after = time.monotonic() + ASK_AGAIN
            self._later |= {node: after for node in new if node not in self._numbers}
        return {self._numbers[node] for node in nodes if node in self._numbers}

    def _meet(self, new: Mapping[int, Any], there: Set[int]) -> None:
        names = {node: _name(info) for node, info in new.items()}
        question = RecordDict({CONFIG: ConfigRecord({"version": 1})})
        timeout = self._settings.round_timeout
        kind = f"query.{CAPABILITIES}"
        messages = ((node, Message(question, node, kind, ttl=timeout)) for node in new)
        answers = dict(exchange(self._grid, messages, timeout))
        for node in new.keys() - answers.keys():
            self._say(f"node {names[node]} is left out: it gave no answer")
        # In the order of their names, so that it does not matter who is quick.
        for node in sorted(answers, key=lambda one: (names[one], new[one].registered_at, one)):
            try:
                rate, partition, counts = self._read(answers[node])
                number = partition if self._roster else self._number(names[node], new[node])
                self._seat(node, number, there)
            except SubflotError as error:
                why, hint = clean(str(error.args[0]), LONGEST_FAULT), error.hint
                told = f"{why}\n  hint: {hint}" if hint else why
                self._say(f"node {names[node]} is left out: {told}")
                continue
            self._rates[number], self._counts[number] = rate, counts
            if not self._roster:
                self._say(f"node {names[node]} is client {number}, pruning rate {rate or 0.0:g}")

    def _number(self, name: str, node: Any) -> int:
        """Return the number that goes with a name, if the node's key goes with it too."""
        key = node.public_key.hex()
        if self._keys.get(name, key) != key:
            self._refused[key] = f"it is called {name}, and that name belongs to another key"
            self._save()
            raise Refused(
                f"the name belongs to another key than {key[:16]}...",
                hint=f"register it under a name of its own; if the device has a new key, take "
                f"`{name}` out of `keys` in {self._path}",
            )
        if name not in self._names or (key and name not in self._keys):
            self._names.setdefault(name, len(self._names))
            if key:
                self._keys[name] = key
            self._save()
        return self._names[name]

    def _seat(self, node: int, number: int, there: Set[int]) -> None:
        """Let a client be at a node, unless it is at another one that is there."""
        if self._nodes.get(number, node) in there - {node}:
            raise Refused(
                f"client {number} is already at another node, which is there",
                hint="end one of the two, or register it under a name of its own",
            )
        self._numbers = {one: seat for one, seat in self._numbers.items() if seat != number}
        self._numbers[node], self._nodes[number] = number, node

    def _save(self) -> None:
        known = {"run": self.run, "clients": self._names, "keys": self._keys}
        if self._refused:
            known["refused"] = self._refused
        write_text(self._path, json.dumps(known, indent=1) + "\n")

    def _read(self, reply: Message | Refused) -> tuple[float | None, int, tuple[int, int | None]]:
        """Read a node's answer: its pruning rate, its part of the data, how much it holds."""
        config: dict[str, Any] = dict(content_of(reply).config_records.get(CONFIG, {}))
        count, partition = config.get("num_examples"), config.get("partition")
        if not isinstance(count, int) or not 0 < count < MOST_EXAMPLES:
            raise Refused(f"it has {count!r} examples")
        if not isinstance(partition, int) or (self._roster and partition < 0):
            raise Refused(f"its partition is {partition!r}")
        num_test = config.get("num_test")  # Devices of earlier versions do not say.
        if not isinstance(num_test, int | None) or (num_test or 0) < 0:
            raise Refused(f"it has {num_test!r} test examples")
        counts, budget = (count, num_test), config.get("budget")
        if isinstance(budget, int | float):
            return rate_within(self._task, budget, str(config.get("quantity"))), partition, counts
        rate = config.get("pruning_rate")
        if rate is not None and not (isinstance(rate, int | float) and 0 <= rate < 1):
            raise Refused(f"its pruning rate is {rate!r}, expected a share in [0, 1)")
        return rate, partition, counts


def _name(node: Any) -> str:
    """Return what a node is known by: its registered name, or else its key or its number."""
    return clean(str(node.name or node.public_key.hex() or node.node_id), LONGEST_NAME)


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise SubflotError(f"{path} is damaged: {error}", hint="restore the file") from None
    return found
