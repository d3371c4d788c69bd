"""What the run in a folder was begun with, so that nothing else goes on there.

begun.json                     of the method, the task, the data and the clients: what counts
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from subflot.algorithms.base import Algorithm, Client
from subflot.data.federated import FederatedData
from subflot.errors import SubflotError
from subflot.results import BEGUN
from subflot.task import Task, shapes
from subflot.texts import write_text
from subflot.weights import Weights

MOST_BYTES = 2**30
"""Of inputs that take more, evenly spaced examples tell the data apart."""


def begun_with(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    clients: Sequence[Client],
    *,
    per_round: int | None,
    seed: int,
    models: Mapping[int, Weights] | None = None,
) -> dict[str, str]:
    """Describe what a run is made of, each part in words that can be compared.

    The weights of the start do not count, for a run that goes on does not look at them; neither
    does the number of rounds, so that a run can be made longer.

    Args:
        algorithm: the method.
        task: as the method prepared it.
        data: what each client holds.
        clients: who there is in the first round.
        per_round: clients that take part in a round.
        seed: of all that is drawn.
        models: what clients bring; None says nothing of them.
    """
    settings: dict[str, Any] = asdict(algorithm) if is_dataclass(algorithm) else {}
    loss = getattr(task.loss, "__qualname__", type(task.loss).__name__)
    later = f", version {algorithm.version}" if algorithm.version != 1 else ""
    found = {
        "method": f"{algorithm.name}{later}",
        **{f"{algorithm.name} {name}": value for name, value in settings.items()},
        "model": f"{type(task.template).__name__} of shapes {_digest(shapes(task.initial))}",
        **asdict(task.local),
        "loss": loss,
        "data": f"`{data.dataset.name}`, {len(data.dataset)} examples {_fingerprint(data)}",
        "clients": f"{len(clients)}, pruning rates {_rates(clients)}",
        "per_round": per_round,
        "seed": seed,
    }
    if models is not None:
        found["models"] = f"{len(models)} {_digest_of(models)}" if models else "none"
    return {name: str(value) for name, value in found.items()}


def claim(folder: Path, begun: dict[str, str], *, is_new: bool) -> None:
    """Note what a new run is begun with; one that was begun otherwise must not go on.

    A folder without such a note is older than these notes, and goes on.
    """
    path = folder / BEGUN
    if is_new:
        write_text(path, json.dumps(begun, indent=1) + "\n")
        return
    try:
        there = json.loads(path.read_text())
        odd = [name for name in begun if there.get(name, begun[name]) != begun[name]]
    except FileNotFoundError:
        return
    except (ValueError, AttributeError) as error:
        raise SubflotError(
            f"{path} is damaged: {error}", hint="restore the file, or name another folder"
        ) from None
    if odd:
        said = "; ".join(f"{name} was {there[name]}, is {begun[name]}" for name in odd[:3])
        raise SubflotError(
            f"{folder} holds a run that was begun with other settings: {said}",
            hint="go on with what it was begun with, or name another folder",
        )


def _rates(clients: Sequence[Client]) -> str:
    rates = [client.pruning_rate for client in sorted(clients, key=lambda client: client.id)]
    shown = ", ".join(f"{rate:g}" for rate in rates[:8])
    return shown if len(rates) <= 8 else f"{shown}, ... {_digest(rates)}"


def _fingerprint(data: FederatedData) -> str:
    dataset, seen = data.dataset, sha256()
    step = 1 + dataset.inputs.nbytes // MOST_BYTES
    for array in (dataset.inputs[::step], dataset.labels):
        seen.update(f"{array.dtype} {array.shape}".encode())
        seen.update(np.ascontiguousarray(array).data)
    for shares in data.shares:
        for part in (shares.train, shares.validation, shares.test):
            seen.update(f"{len(part)}".encode())
            seen.update(np.ascontiguousarray(part, dtype=np.int64).data)
    return seen.hexdigest()[:10]


def _digest_of(models: Mapping[int, Weights]) -> str:
    seen = sha256()
    for client in sorted(models):
        for name, tensor in sorted(models[client].items()):
            seen.update(f"{client} {name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            seen.update(flat.view(torch.uint8).numpy().data)
    return seen.hexdigest()[:10]


def _digest(value: Any) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:10]
