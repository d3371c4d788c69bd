"""The tiny federation on Flower, in one process."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from federations import CLIENTS, tiny_data, tiny_task
from flwr.app import Context
from flwr.clientapp import ClientApp

from subflot.algorithms import Algorithm
from subflot.algorithms.base import Client
from subflot.data.federated import FederatedData
from subflot.flower.client import Device, client_app
from subflot.flower.local_grid import LocalGrid
from subflot.flower.server import serve
from subflot.flower.settings import FlowerSettings
from subflot.simulation.federation import calibration_of
from subflot.simulation.roster import Roster


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
