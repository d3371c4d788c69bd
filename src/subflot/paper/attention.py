"""Where submodels look: Grad-CAM of what OTP and other prunings give a client, beside its history.

Paper of the maps: "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based
Localization", ICCV 2017.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from subflot.algorithms.base import Client, State, Turn
from subflot.algorithms.subflot import SubFLOT
from subflot.channels import take
from subflot.channels.keep import largest, prefix, random
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.runner import assemble, run
from subflot.results import RunRecord
from subflot.simulation.store import Store
from subflot.task import Task
from subflot.training.evaluate import recalibrate
from subflot.weights import Weights

HISTORY = "history"
KINDS = {
    HISTORY: "historical model",
    "otp": "OTP",
    "aligned": "OTP before fusion",
    "position": "fixed position",
    "magnitude": "magnitude",
    "random": "random",
}
"""What is compared: the client's last model, and submodels of the global model cut anew."""
LEAST_SIDE = 4
"""Maps of fewer pixels a side show nothing; a deeper layer with them is passed over."""
BATCH = 64


@dataclass(frozen=True)
class Attention:
    """Maps of one client, by kind of model: (images, height, width), from 0 to 1 each."""

    run: str
    client: int
    examples: Examples
    maps: Mapping[str, Tensor]

    @property
    def is_seen(self) -> Tensor:
        """In which images the historical model sees something."""
        return self.maps[HISTORY].flatten(1).any(1)


def submodels(
    task: Task, method: SubFLOT, state: State, client: Client, turn: Turn
) -> dict[str, Weights]:
    """Cut the client's next submodel in every way; its history comes first."""
    rate, channels, whole = client.pruning_rate, task.channels, state.weights
    history = method.reference(task, state, client, turn)
    return {
        HISTORY: method.scaled(task, state, history, turn),
        "otp": method.download(task, state, client, turn).weights,
        "aligned": replace(method, global_share=1.0).download(task, state, client, turn).weights,
        "position": take(whole, channels, prefix(channels, rate)),
        "magnitude": take(whole, channels, largest(channels, rate, whole)),
        "random": take(whole, channels, random(channels, rate, turn.generator("cam", client.id))),
    }


def attend(config: RunConfig, folder: Path) -> Iterator[Attention]:
    """Make the maps of every client of a finished SubFLOT run, on all its test images.

    The models of the run must still be in its folder. Norm statistics are recomputed on the
    client's training images, as before every measurement. Each map explains the true class.
    """
    method = config.method
    if not isinstance(method, SubFLOT):
        raise SubflotError(f"{config.algorithm} keeps no history", hint="take subflot")
    store = Store(folder)
    manifest = store.manifest()
    if manifest is None:
        raise SubflotError(f"the models of {folder} are gone", hint="run it again with --force")
    task, data, roster = assemble(config)
    state = store.state(manifest)
    turn = Turn(manifest.round + 1, config.rounds + 1, config.seed)
    for client in roster(turn.round):
        examples = data.test(client.id)
        if client.id not in state.history or not len(examples):
            continue
        inputs = data.train(client.id).inputs
        maps = {}
        for kind, weights in submodels(task, method, state, client, turn).items():
            with task.lend(weights) as model:
                recalibrate(task, model, inputs)
                maps[kind] = grad_cam(model.eval(), examples)
        yield Attention(config.run_id, client.id, examples, maps)


def grad_cam(model: nn.Module, examples: Examples) -> Tensor:
    """Return a map for each image, at the size of the layer, scaled to a largest value of 1.

    A map of zeros, where nothing speaks for the class, stays as it is.
    """
    try:
        from captum.attr import LayerGradCam
    except ImportError:
        raise SubflotError("Grad-CAM needs captum", hint="pip install 'subflot[explain]'") from None
    explain = LayerGradCam(model, last_layer(model, examples.inputs[:1]))
    found = []
    for inputs, labels in zip(
        examples.inputs.split(BATCH), examples.labels.split(BATCH), strict=True
    ):
        found.append(explain.attribute(inputs, labels, relu_attributions=True).detach()[:, 0])
    maps = torch.cat(found)
    most = maps.amax((1, 2), keepdim=True)
    return torch.where(most > 0, maps / most.clamp(min=torch.finfo(maps.dtype).tiny), maps)


def last_layer(model: nn.Module, example: Tensor) -> nn.Module:
    """Find the last convolution whose output is large enough to look at, else the very last."""
    seen: list[tuple[nn.Module, int]] = []
    hooks = [
        module.register_forward_hook(lambda m, _, out: seen.append((m, min(out.shape[2:]))))
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    ]
    try:
        with torch.no_grad():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        raise SubflotError(
            f"{type(model).__name__} has no convolution to explain", hint="take a model of images"
        )
    large = [module for module, side in seen if side >= LEAST_SIDE]
    return large[-1] if large else seen[-1][0]


def similarity(maps: Tensor, others: Tensor) -> Tensor:
    """Return the cosine between two maps of each image, from 0 to 1; a map of zeros is like none.

    Example:
        >>> similarity(torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[3.0, 4.0]]]))
        tensor([0.6000])
    """
    return torch.cosine_similarity(maps.flatten(1), others.flatten(1), dim=1)


def attention(
    folders: Sequence[Path], arrays: Path, *, workers: int | None = None
) -> dict[str, Any]:
    """Compare the maps of finished runs; a run without its models is run again.

    Args:
        folders: of the runs.
        arrays: file, .npz, for the pictures, which are of the first run.
        workers: processes, if a run has to be run again.
    """
    found: list[Attention] = []
    for folder in folders:
        config = RunConfig.of(**RunRecord(folder).config)
        if Store(folder).manifest() is None:
            run(config, folder, workers=workers, force=True)
        found += attend(config, folder)
    content = describe(found)
    arrays.parent.mkdir(parents=True, exist_ok=True)
    first = [one for one in found if one.run == found[0].run]
    np.savez_compressed(arrays, allow_pickle=False, **pictures(first))
    return content


def describe(found: Sequence[Attention]) -> dict[str, Any]:
    """Sum up how similar each kind's maps are to the historical model's, over all test images."""
    if not found:
        raise SubflotError("no client has a historical model and test images")
    each = {
        kind: torch.cat([similarity(one.maps[HISTORY], one.maps[kind]) for one in found])
        for kind in KINDS
        if kind != HISTORY
    }
    return {
        "name": "attention",
        "title": "Where submodels look, beside the client's last model (Grad-CAM)",
        "num_images": len(each["otp"]),
        "num_empty": sum(int((~one.is_seen).sum()) for one in found),
        "kinds": KINDS,
        "similarity": {
            kind: {"mean": float(values.mean()), "deviation": float(values.std())}
            for kind, values in each.items()
        },
        "clients": [
            {
                "run": one.run,
                "client": one.client,
                **{
                    kind: float(similarity(one.maps[HISTORY], one.maps[kind]).mean())
                    for kind in each
                },
            }
            for one in found
        ],
    }


def pictures(found: Sequence[Attention], count: int = 4) -> dict[str, NDArray[Any]]:
    """Pick a test image of some clients for drawing: the image, and the maps of each kind.

    It is the client's first image in which the historical model sees something, if there is one.

    Returns:
        arrays by name: `images`, (count, height, width, channels) from 0 to 1, and for each kind
        (count, rows, columns).
    """
    chosen = found[:: max(1, len(found) // count)][:count]
    places = [int(one.is_seen.float().argmax()) for one in chosen]
    images = torch.stack(
        [one.examples.inputs[place] for one, place in zip(chosen, places, strict=True)]
    )
    images = (images - images.amin((1, 2, 3), keepdim=True)) / (
        images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True)
    ).clamp(min=1e-6)
    shown = {
        kind: torch.stack(
            [one.maps[kind][place] for one, place in zip(chosen, places, strict=True)]
        ).numpy()
        for kind in KINDS
    }
    return {"images": images.permute(0, 2, 3, 1).numpy().astype(np.float32), **shown}
