"""Messages of a method as Flower records.

A message has one ArrayRecord, which Flower's privacy mods work on: the fractional weights. Whole
numbers among the weights, indices of channels and extras travel in the one ConfigRecord, as
safetensors; what was counted and measured in the one MetricRecord.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors.torch import load, save
from torch import Tensor

from subflot.algorithms.base import Client, Download, Turn
from subflot.errors import SubflotError
from subflot.simulation.part import Answer
from subflot.simulation.server import is_told
from subflot.training import Measurement
from subflot.weights import Weights

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
CLIPPING_NORM = "clipping_norm"
"""What Flower's clipping looks for in the ConfigRecord."""
NUMPY_TYPES: Mapping[torch.dtype, str] = {
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
}
"""The fractional types that an Array can hold."""


@dataclass(frozen=True)
class Invitation:
    """What a client is told beside its download."""

    run: str
    """Tells runs apart on a device that takes part in several; empty in a simulation."""
    client: Client
    turn: Turn
    remembered: int
    """The round after which the client last remembered something that counts; 0 for never."""
    is_measured: bool


def invitation_records(
    invitation: Invitation, download: Download, clipping_norm: float | None = None
) -> RecordDict:
    """Write an invitation and its download."""
    client, turn = invitation.client, invitation.turn
    config: dict[str, Any] = {
        "run": invitation.run,
        "client": client.id,
        "pruning_rate": float(client.pruning_rate),
        "offer": -1 if client.offer is None else client.offer,
        "round": turn.round,
        "rounds": turn.rounds,
        "seed": turn.seed,
        "remembered": invitation.remembered,
        "is_measured": invitation.is_measured,
        "kept": packed(download.kept),
        "extras": packed(download.extras),
    }
    if clipping_norm is not None:
        config[CLIPPING_NORM] = clipping_norm
    return weights_records(download.weights, config)


def read_invitation(records: RecordDict) -> tuple[Invitation, Download]:
    """Read what `invitation_records` wrote; the server is trusted, but for names of folders."""
    config: dict[str, Any] = dict(records.config_records[CONFIG])
    if not re.fullmatch("[0-9a-f]*", config["run"]):
        raise SubflotError(f"the run is called {config['run']!r}", hint="expected letters a to f")
    offer = config["offer"]
    invitation = Invitation(
        config["run"],
        Client(config["client"], config["pruning_rate"], None if offer < 0 else offer),
        Turn(config["round"], config["rounds"], config["seed"]),
        config["remembered"],
        config["is_measured"],
    )
    download = Download(read_weights(records), unpacked(config["kept"]), unpacked(config["extras"]))
    return invitation, download


def answer_records(answer: Answer, download: Download) -> RecordDict:
    """Write what a client made of its download; what it remembers stays where it is."""
    upload = answer.upload
    known = is_told(download.kept, upload.kept)
    # Flower's mods want the order in which the arrays were sent.
    order = [name for name in download.weights if name in upload.weights]
    order += [name for name in upload.weights if name not in download.weights]
    records = weights_records(
        {name: upload.weights[name] for name in order},
        {
            "names": list(upload.weights),  # Sums over tensors go by their order.
            "is_told": known,
            "kept": b"" if known else packed(upload.kept),
            "extras": packed(upload.extras),
            "is_remembering": bool(answer.memory),
        },
    )
    found: dict[str, int | float] = {
        "num_examples": upload.num_examples,
        "parameters": answer.parameters,
        "multiply_adds": answer.multiply_adds,
    }
    for name, one in (("trained", answer.trained), ("extracted", answer.extracted)):
        if one is not None:
            found |= measurement_metrics(one, f"{name}.")
    found |= {f"seconds.{phase}": value for phase, value in answer.seconds.items()}
    found |= {f"metrics.{name}": value for name, value in upload.metrics.items()}
    records[METRICS] = MetricRecord(dict(found))
    return records


def measurement_metrics(one: Measurement, prefix: str = "") -> dict[str, int | float]:
    """Write a measurement as numbers."""
    return {f"{prefix}{name}": value for name, value in vars(one).items()}


def weights_records(weights: Weights, config: Mapping[str, Any]) -> RecordDict:
    """Write weights, and what goes with them."""
    fractions = {n: t for n, t in weights.items() if t.is_floating_point()}
    for name, tensor in fractions.items():
        if tensor.dtype not in NUMPY_TYPES:
            raise SubflotError(
                f"tensor `{name}` is {tensor.dtype}, which Flower cannot send",
                hint="use float32, float64 or float16",
            )
    arrays = {n: Array(t.detach().cpu().contiguous().numpy()) for n, t in fractions.items()}
    whole = {n: t for n, t in weights.items() if n not in fractions}
    own = {"names": list(weights), "whole": packed(whole), **config}
    return RecordDict({ARRAYS: ArrayRecord(arrays), CONFIG: ConfigRecord(own)})


def read_weights(records: RecordDict) -> dict[str, Tensor]:
    """Read what `weights_records` wrote, from one who is trusted."""
    config: dict[str, Any] = dict(records.config_records[CONFIG])
    arrays = records.array_records[ARRAYS]
    found = {name: torch.from_numpy(array.numpy()) for name, array in arrays.items()}
    found |= unpacked(config["whole"])
    return {name: found[name] for name in config["names"]}


def packed(tensors: Weights) -> bytes:
    """Write named tensors of any type into bytes."""
    # Numbered, since the format keeps no order; copied, since it takes none that share memory.
    numbered = {f"{i:06d}/{name}": tensor for i, (name, tensor) in enumerate(tensors.items())}
    return save({n: t.detach().cpu().contiguous().clone() for n, t in numbered.items()})


def unpacked(data: bytes) -> dict[str, Tensor]:
    """Undo `packed`; bytes of another kind are an error."""
    found = load(data) if data else {}
    return {name.partition("/")[2]: found[name] for name in sorted(found)}
