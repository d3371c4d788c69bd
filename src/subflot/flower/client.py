"""The client app: it says what it can hold, trains what it receives, and measures."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.clientapp.typing import Mod

from subflot.algorithms.base import Algorithm, ClientContext
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.flower.memory import recall, remember
from subflot.flower.records import (
    CONFIG,
    METRICS,
    answer_records,
    measurement_metrics,
    read_invitation,
    read_weights,
)
from subflot.flower.settings import FlowerSettings
from subflot.simulation.federation import measure_on
from subflot.simulation.part import do_part
from subflot.task import Task

CAPABILITIES = "capabilities"


@dataclass(frozen=True)
class Device:
    """What a client holds: the method's task, its examples, and how much it can bear."""

    algorithm: Algorithm
    task: Callable[[], Task]
    """Gives the task, prepared by the method; it takes time, and not every message needs it."""
    train: Examples
    test: Examples
    validation: Examples | None
    calibration: Callable[[], Examples]
    """Gives what the global model's norm statistics are recomputed on."""
    folder: Path
    """Where it remembers."""
    pruning_rate: float | None = None
    """What it asks for; None if the server decides, or if it names a budget."""
    budget: float | None = None
    """Instead: the most that its model may have of a quantity."""
    quantity: str = "parameters"
    partition: int = -1
    """Which part of a divided data set it holds; negative if its examples are its own."""
    num_threads: int = 1
    """Sums over one thread have one order, and results are those of any other engine."""


Load = Callable[[Context], Device]


def client_app(load: Load, settings: FlowerSettings | None = None) -> ClientApp:
    """Make the client app of a run; `load` is called for every message."""
    app = ClientApp()

    @app.query(CAPABILITIES)
    def capabilities(message: Message, context: Context) -> Message:
        return Message(capability_records(load(context)), reply_to=message)

    chosen = settings or FlowerSettings()

    @app.train(mods=_mods(chosen))
    def train(message: Message, context: Context) -> Message:
        return Message(_train(load(context), message.content, chosen.privacy), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(_evaluate(load(context), message.content), reply_to=message)

    return app


def capability_records(device: Device) -> RecordDict:
    """Write what a server may know of a device."""
    config: dict[str, int | float | str] = {
        "partition": device.partition,
        "num_examples": len(device.train),
        "num_test": len(device.test),
    }
    if device.pruning_rate is not None:
        config["pruning_rate"] = device.pruning_rate
    elif device.budget is not None:
        config |= {"budget": device.budget, "quantity": device.quantity}
    return RecordDict({CONFIG: ConfigRecord(dict(config))})


def _mods(settings: FlowerSettings) -> list[Mod]:
    """Return what Flower does to a message between us and the wire."""
    if settings.privacy == "clipping":
        return [fixedclipping_mod]
    if settings.privacy == "local-dp":
        return [
            LocalDpMod(
                settings.clipping_norm, settings.sensitivity, settings.epsilon, settings.delta
            )
        ]
    return []


def _train(device: Device, records: RecordDict, privacy: str = "") -> RecordDict:
    torch.set_num_threads(device.num_threads)
    invitation, download = read_invitation(records)
    client, turn = invitation.client, invitation.turn
    place = device.folder / invitation.run
    context = ClientContext(
        client,
        device.train,
        recall(place, client.id, invitation.remembered),
        turn,
        device.validation,
    )
    answer = do_part(
        device.algorithm, device.task(), download, context, device.test, invitation.is_measured
    )
    if privacy == "local-dp" and answer.upload.extras:
        raise SubflotError(
            f"{device.algorithm.name} sends {', '.join(answer.upload.extras)} beside its weights, "
            "to which local-dp adds no noise",
            hint="choose another method",
        )
    remember(place, client.id, turn.round, answer.memory, invitation.remembered)
    return answer_records(answer, download)


def _evaluate(device: Device, records: RecordDict) -> RecordDict:
    torch.set_num_threads(device.num_threads)
    tests = {0: device.test}
    found = measure_on(device.task(), read_weights(records), device.calibration(), tests)
    if not found:
        return RecordDict({})
    return RecordDict({METRICS: MetricRecord(dict(measurement_metrics(found[0])))})
