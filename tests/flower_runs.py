"""The tiny federation on Flower, in one process."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from federations import CLIENTS, tiny_data, tiny_task
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from subflot.algorithms import Algorithm
from subflot.algorithms.base import Client
from subflot.data.federated import FederatedData
from subflot.flower.client import Device, client_app
from subflot.flower.local_grid import LocalGrid
from subflot.flower.server import serve
from subflot.flower.settings import FlowerSettings
from subflot.simulation.federation import calibration_of
from subflot.simulation.roster import Roster

PARTS = [{"partition-id": number} for number in range(len(CLIENTS))]
Change = Callable[[int, int, Message], Message | None]
"""Partition, round and an honest reply -> what is sent instead; None for nothing."""


class OddGrid(LocalGrid):
    """Nodes with names, of which some are away in some rounds or send what they like."""

    def __init__(
        self,
        app: ClientApp,
        names: Mapping[int, str] | None = None,
        away: Callable[[int, int], bool] = lambda part, round: False,
        change: Change = lambda part, round, reply: reply,
        keys: Mapping[int, bytes] | None = None,
    ) -> None:
        super().__init__(app, PARTS)
        self.keys = keys or {}
        self.names, self.away, self.change = names or {}, away, change
        self.round, self.asked = 1, [0] * len(PARTS)

    def get_nodes(self) -> Iterable[NodeInfo]:
        there = [node for node in self.get_node_ids() if not self.away(node - 2, self.round)]
        return [
            NodeInfo(
                node_id=node,
                name=self.names.get(node - 2, ""),
                public_key=self.keys.get(node - 2, b""),
                registered_at=f"2026-01-0{9 - node}",  # The last is the oldest.
            )
            for node in there
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        numbers = []
        for message in messages:
            part = message.metadata.dst_node_id - 2
            is_train = message.metadata.message_type == "train"
            self.asked[part] += message.metadata.message_type.startswith("query")
            (number,) = super().push_messages([message])
            if is_train:
                round = int(message.metadata.group_id)
                self.round = round + 1
                reply = self.change(part, round, self._replies.pop(number))
                if reply is not None:
                    self._replies[number] = reply
            numbers.append(number)
        return numbers


def devices(algorithm: Algorithm, folder: Path, data: FederatedData) -> Callable[[Context], Device]:
    """Clients that each hold a part of the data, and remember in a folder."""
    task = algorithm.prepare(tiny_task())

    def load(context: Context) -> Device:
        part = int(context.node_config["partition-id"])
        validation = data.validation(part)
        return Device(
            algorithm,
            lambda: task,
            data.train(part),
            data.test(part),
            validation if len(validation) else None,
            lambda: calibration_of(data),
            folder,
            partition=part,
        )

    return load


def app_of(
    algorithm: Algorithm,
    folder: Path,
    *,
    data: FederatedData | None = None,
    settings: FlowerSettings | None = None,
    **changes: Any,
) -> ClientApp:
    """The client app of the tiny federation; changes are made to every device."""
    load = devices(algorithm, folder, data or tiny_data())
    return client_app(lambda context: replace(load(context), **changes), settings)


def run_on_grid(
    algorithm: Algorithm,
    folder: Path,
    *,
    rounds: int = 3,
    stop_after: int | None = None,
    clients: Sequence[Client] | Roster | None = CLIENTS,
    data: FederatedData | None = None,
    settings: FlowerSettings | None = None,
    grid: LocalGrid | None = None,
    **more: Any,
) -> Path:
    """Run a method on a grid in this process, or the beginning of it, into a folder."""
    held = data or tiny_data()
    app = app_of(algorithm, folder, data=held, settings=settings)
    parts = [{"partition-id": number} for number in range(held.num_clients)]
    roster = clients if callable(clients) or clients is None else (lambda _: clients)
    for done in serve(
        grid or LocalGrid(app, parts),
        algorithm,
        tiny_task(),
        folder,
        rounds=rounds,
        settings=settings,
        roster=roster,
        **more,
    ):
        if done.round == stop_after:
            break
    return folder
