"""One client's model as a file that stands for itself, and back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from subflot.algorithms import make
from subflot.algorithms.base import Turn
from subflot.data.dataset import Dataset
from subflot.errors import SubflotError
from subflot.experiments.config import config_of
from subflot.experiments.runner import assemble
from subflot.models import find as find_model
from subflot.simulation.federation import Federation
from subflot.simulation.store import Store
from subflot.task import Task, weights_of
from subflot.training import measure
from subflot.weights import read_described, write_weights

KEY = "subflot"
"""The entry of a file's metadata that describes the model."""


@dataclass(frozen=True)
class Description:
    """What a model file says of itself, enough to rebuild the module and to use it."""

    model: str
    """A bundled network, or the FILE.py:Class that it was made from."""
    model_settings: dict[str, Any]
    algorithm: str
    algorithm_settings: dict[str, Any]
    classes: tuple[str, ...]
    input_shape: tuple[int, ...]
    input_type: str
    """As raw examples are stored: uint8 images, float32 signals, int64 tokens."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    client: int | None
    """None for the global model."""
    pruning_rate: float
    round: int
    accuracy: float | None
    """On the client's own test examples."""

    def prepared(self, inputs: NDArray[Any]) -> Tensor:
        """Turn raw examples into what the model takes, as they were in training."""
        fits = np.can_cast(inputs.dtype, self.input_type, casting="same_kind")
        if inputs.shape[1:] != self.input_shape or not fits:
            raise SubflotError(
                f"{inputs.dtype} examples of shape {inputs.shape[1:]} do not fit the model",
                hint=f"it takes {self.input_shape}, of type {self.input_type}",
            )
        labels = np.zeros(len(inputs), dtype=np.int64)
        raw = inputs.astype(self.input_type)
        data = Dataset("examples", raw, labels, self.classes, mean=self.mean, std=self.std)
        return data.tensors(np.arange(len(inputs)))[0]


def export(run: Path, client: int | None, path: Path, *, is_trusted: bool = False) -> Description:
    """Write a client's model of a run; with None the global model.

    It is the model as the client last trained it, where the method keeps it, and otherwise what the
    server would send. Norm statistics are recomputed on training examples.

    Args:
        run: the folder of the run.
        client: its number.
        path: what is written.
        is_trusted: code that the run names as its model may be run.
    """
    config = config_of(run, is_trusted=is_trusted)
    manifest = Store(run).manifest()
    if manifest is None or not manifest.round:
        raise SubflotError(f"{run} has no finished round yet")
    task, data, roster = assemble(config)
    federation = Federation(config.method, config.method.prepare(task), data, run)
    clients = {one.id: one for one in roster(manifest.round)}
    if client is not None and client not in clients:
        raise SubflotError(
            f"there is no client {client}", hint=f"there are those from 0 to {max(clients)}"
        )
    chosen = None if client is None else clients[client]
    turn = Turn(manifest.round + 1, config.rounds, config.seed)
    model = federation.model(manifest, chosen, turn)
    tests = data.test(chosen.id) if chosen else ()
    accuracy = measure(federation.task, model, tests).accuracy if tests else None
    dataset = data.dataset
    described = Description(
        model=config.model,
        model_settings=dict(config.model_settings),
        algorithm=config.algorithm,
        algorithm_settings=dict(config.algorithm_settings),
        classes=dataset.classes,
        input_shape=dataset.input_shape,
        input_type=str(dataset.inputs.dtype),
        mean=dataset.mean,
        std=dataset.std,
        client=client,
        pruning_rate=chosen.pruning_rate if chosen else 0.0,
        round=manifest.round,
        accuracy=accuracy,
    )
    write_weights(path, weights_of(model), {KEY: json.dumps(vars(described))})
    return described


def describe(path: Path | str) -> Description:
    """Read what a model file says of itself."""
    return _described(Path(path), read_described(Path(path))[1])


def load(path: Path | str, template: nn.Module | None = None) -> nn.Module:
    """Rebuild the module of a file that `subflot export` wrote, ready for inference.

    Args:
        path: the file.
        template: the full model it was cut from, if that is not a bundled one; no code is loaded
            from a path that a file names.
    """
    weights, metadata = read_described(Path(path))
    found = _described(Path(path), metadata)
    if template is None:
        if ":" in found.model:
            raise SubflotError(
                f"{path} is a part of {found.model}",
                hint="give the full model: load(path, template=Net())",
            )
        template = find_model(found.model).build(len(found.classes), **found.model_settings)
    example = found.prepared(np.zeros((2, *found.input_shape), dtype=found.input_type))
    method = make(found.algorithm, **found.algorithm_settings)
    return method.prepare(Task.of(template, example)).build(weights).eval()


def _described(path: Path, metadata: dict[str, str]) -> Description:
    try:
        found = json.loads(metadata[KEY])
        values = {f.name: found[f.name] for f in fields(Description)}
    except (KeyError, ValueError) as error:
        raise SubflotError(
            f"{path} does not say which model it is: {error}", hint="`subflot export` writes one"
        ) from None
    tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Description(**{**values, **tuples})


@torch.no_grad()
def predict(model: nn.Module, described: Description, inputs: NDArray[Any]) -> Tensor:
    """Return the probability of each class for raw examples, shape (examples, classes)."""
    prepared = described.prepared(inputs)
    return torch.cat([model(some).softmax(1) for some in prepared.split(256)])


def read_examples(described: Description, files: Sequence[Path]) -> NDArray[Any]:
    """Read raw examples from .npy arrays and, for a model of images, from pictures."""
    from subflot.data.images import decode, is_image
    from subflot.data.settings import ImageSettings

    found = []
    for file in files:
        try:
            if is_image(file.name) and described.input_type == "uint8":
                channels, size, _ = described.input_shape
                found.append(
                    decode(file.read_bytes(), ImageSettings(size, channels), file.name)[None]
                )
            else:
                found.append(np.load(file, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise SubflotError(
                f"cannot read examples from {file}: {error}",
                hint="give .npy arrays of raw examples, or pictures for a model of images",
            ) from None
    return np.concatenate(found)
