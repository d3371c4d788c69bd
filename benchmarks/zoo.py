"""Architectures from public zoos, traced and cut to half: what goes, whether it is right, CPU time.

Of every architecture a small instance without trained weights is traced, cut to half and checked:
its outputs against the full model with the dropped channels set to zero, all channels permuted,
and one training step. Zeros are left out of account in torch's own norms and attention alone: a
model that counts channels by hand, in a norm of its own for one, differs there without being cut
wrongly. It needs what the project does not depend on:

    pip install -c constraints.txt timm torchvision transformers

An architecture whose package is missing is left out. Names as arguments choose a few of them.
"""

import copy
import importlib
import importlib.util
import json
import math
import signal
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from subflot import ChannelMap, SubflotError, build, put, take, trace
from subflot.channels.example import arguments, moved, tensors_in
from subflot.channels.keep import prefix

CLASSES = 11
LIMIT = 60
"""CPU seconds that tracing may take."""
TOLERANCE = 1e-6
"""Largest relative difference that rounding explains: some norms compute in single precision
whatever the weights are."""

Example = Any
Make = Callable[[], tuple[nn.Module, Example]]

TORCHVISION = [
    *("resnet18", "vgg11", "mobilenet_v2", "mobilenet_v3_small", "squeezenet1_1"),
    *("shufflenet_v2_x0_5", "densenet121", "efficientnet_b0", "convnext_tiny", "swin_t"),
]
TIMM = [
    *("resnet10t", "seresnet33ts", "regnety_002", "res2net50_14w_8s", "skresnet18", "dla46_c"),
    *("ghostnet_050", "rexnet_100", "mixnet_s", "cs3darknet_s", "efficientvit_b0"),
    *("mobilevit_xxs", "mobilevitv2_050", "convnextv2_atto", "inception_next_atto"),
    *("fasternet_t0", "poolformer_s12", "edgenext_xx_small", "pvt_v2_b0", "repvit_m0_9"),
]
PATCHES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 3},
    "deit_tiny_distilled_patch16_224": {"depth": 3},
    "mixer_s32_224": {},
    "cait_xxs24_224": {"depth": 3, "embed_dim": 96},
    "xcit_nano_12_p16_224": {"depth": 3},
}
"""Transformers of timm that are told the size of an image, and what makes them small."""
TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": CLASSES,
}
GROUPED = {**TEXT, "num_key_value_heads": 2}
GPT = {
    "vocab_size": 99,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "use_cache": False,
    "pad_token_id": 0,
    "num_labels": CLASSES,
}
TRANSFORMERS: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": TEXT,
    "RobertaForSequenceClassification": TEXT,
    "ElectraForSequenceClassification": {**TEXT, "embedding_size": 24},
    "AlbertForSequenceClassification": {**TEXT, "embedding_size": 16},
    "FNetForSequenceClassification": TEXT,
    "MPNetForSequenceClassification": TEXT,
    "GPT2LMHeadModel": GPT,
    "LlamaForCausalLM": GROUPED,
    "MistralForCausalLM": GROUPED,
    "Qwen2ForCausalLM": GROUPED,
    "GemmaForCausalLM": {**GROUPED, "head_dim": 8},
    "BloomForCausalLM": {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4},
}


def architectures() -> dict[str, Make]:
    """All whose packages are installed, by name."""
    found: dict[str, Make] = {}
    if has("torchvision"):
        declare_operators()
        for name in TORCHVISION:
            found[f"torchvision/{name}"] = partial(_image_network, "torchvision", name)
    if has("timm"):
        for name in TIMM:
            found[f"timm/{name}"] = partial(_image_network, "timm", name)
        for name, sizes in PATCHES.items():
            found[f"timm/{name}"] = partial(_image_network, "timm", name, img_size=64, **sizes)
    if has("transformers"):
        for name, settings in TRANSFORMERS.items():
            found[f"transformers/{name}"] = partial(_text_network, name, settings)
    return found


def _image_network(package: str, name: str, **settings: Any) -> tuple[nn.Module, Example]:
    zoo = importlib.import_module(package)
    make = zoo.create_model if package == "timm" else zoo.models.get_model
    return make(name, num_classes=CLASSES, **settings), torch.randn(2, 3, 64, 64)


def _text_network(name: str, settings: dict[str, Any]) -> tuple[nn.Module, Example]:
    kind = getattr(importlib.import_module("transformers"), name)
    return kind(kind.config_class(**settings)), {"input_ids": torch.randint(3, 99, (2, 12))}


def declare_operators() -> None:
    """Let torchvision be imported where the operators it was compiled with do not load."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)


def has(package: str) -> bool:
    """Whether a package is installed."""
    return importlib.util.find_spec(package) is not None


class TooLong(BaseException):
    """Tracing has used up its time."""


def _ring(*_: object) -> None:
    raise TooLong


class Counting(TorchFunctionMode):
    """Lets operations that count channels count those alone whose weights are not zero."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("layer_norm", "rms_norm"):
            return (_layer_norm if name == "layer_norm" else _rms_norm)(*args, **kwargs)
        if name == "scaled_dot_product_attention" and kwargs.get("scale") is None:
            alive = int((args[0] != 0).flatten(0, -2).any(0).sum())
            kwargs["scale"] = max(1, alive) ** -0.5
        return func(*args, **kwargs)


def _layer_norm(
    x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: object
) -> Tensor:
    alive = (torch.ones(shape) if weight is None else weight != 0).to(x.dtype)
    mean = (x * alive).sum(-1, keepdim=True) / alive.sum()
    return _rms_norm(x - mean, shape, alive if weight is None else weight, eps) + (
        0 if bias is None else bias
    )


def _rms_norm(x: Tensor, shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    alive = (torch.ones(shape) if weight is None else weight != 0).to(x.dtype)
    square = (x * alive).square().sum(-1, keepdim=True) / alive.sum()
    least = torch.finfo(x.dtype).eps if eps is None else eps
    return x * alive / (square + least).sqrt() * (alive if weight is None else weight)


def outputs(model: nn.Module, example: Example) -> list[Tensor]:
    """All numbers that a model returns in evaluation."""
    args, kwargs = arguments(moved(example, dtype=torch.float64))
    with torch.no_grad():
        return [t for t in tensors_in(model.eval()(*args, **kwargs)) if t.is_floating_point()]


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    """The largest difference of two outputs, relative to the largest entry."""
    if [t.shape for t in one] != [t.shape for t in other]:
        return math.inf
    pairs = zip(one, other, strict=True)
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in pairs)


def stir(model: nn.Module) -> None:
    """Make no two channels of norms and biases alike, for that would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(0.1 + 0.3 * torch.rand(tensor.shape, generator=generator))


def permuted(weights: dict[str, Tensor], channels: ChannelMap) -> dict[str, Tensor]:
    """All channels in another order; the places are worked out here once more."""
    generator = torch.Generator().manual_seed(2)
    order = {s: torch.randperm(channels.sizes[s], generator=generator) for s in channels.prunable}
    new = {}
    for name, tensor in weights.items():
        for axis, segments in enumerate(channels.axes[name]):
            if segments is None:
                continue
            places = torch.arange(tensor.shape[axis])
            pieces = places.split([segment.size(channels.sizes) for segment in segments])
            moved_pieces = [
                piece.view(s.copies, -1, s.repeat)[:, order[s.space]].flatten()
                if s.space in order
                else piece
                for piece, s in zip(pieces, segments, strict=True)
            ]
            tensor = tensor.index_select(axis, torch.cat(moved_pieces))
        new[name] = tensor
    return new


def trains(model: nn.Module, example: Example) -> bool:
    """Whether one step changes the weights and leaves them finite."""
    args, kwargs = arguments(example)
    before = [p.detach().clone() for p in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-3)
    out = tensors_in(model.train()(*args, **kwargs))
    loss = sum(t.square().mean() for t in out if t.requires_grad)
    assert isinstance(loss, Tensor)
    loss.backward()
    optimiser.step()
    after = [p.detach() for p in model.parameters()]
    is_finite = all(bool(torch.isfinite(p).all()) for p in after)
    return is_finite and not all(map(torch.equal, before, after))


def checked(model: nn.Module, example: Example, channels: ChannelMap) -> dict[str, Any]:
    """What is left at half the width, and whether it is right."""
    kept = prefix(channels, 0.5)
    total = sum(p.numel() for p in model.parameters())
    small = build(model, channels, take(model.state_dict(), channels, kept))
    whole = copy.deepcopy(model).double()
    stir(whole)
    weights = {n: t for n, t in whole.state_dict().items() if isinstance(t, Tensor)}
    narrow = take(weights, channels, kept)
    zeroed = build(whole, channels, put(narrow, weights, channels, kept)[0])
    expected = outputs(whole, example)
    with Counting():
        with_zeros = outputs(zeroed, example)
    in_order = outputs(build(whole, channels, permuted(weights, channels)), example)
    return {
        "lost": 1 - sum(p.numel() for p in small.parameters()) / total,
        "zeros": difference(outputs(build(whole, channels, narrow), example), with_zeros),
        "permutation": difference(expected, in_order),
        "trains": trains(small, example),
    }


def forward_seconds(model: nn.Module, example: Example) -> float:
    """CPU time of one forward pass in evaluation."""
    args, kwargs = arguments(example)
    model.eval()
    times = []
    with torch.no_grad():
        for _ in range(4):  # The first allocates.
            start = time.process_time()
            model(*args, **kwargs)
            times.append(time.process_time() - start)
    return statistics.median(times[1:])


def measured(make: Make) -> dict[str, Any]:
    """Trace one architecture, cut it and check it."""
    torch.manual_seed(0)
    model, example = make()
    forward = forward_seconds(model, example)
    row: dict[str, Any] = {}
    start = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        channels = trace(model, example)
    except (SubflotError, TooLong) as error:
        return {**row, "traced": False, "why": str(error) or f"took more than {LIMIT} s"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        row["seconds"] = time.process_time() - start
        row["passes"] = row["seconds"] / forward
    return {**row, "traced": True, **checked(model, example, channels)}


def main() -> None:
    """Print a line per architecture and a summary."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _ring)
    rows = {}
    for name, make in architectures().items():
        if sys.argv[1:] and not any(part in name for part in sys.argv[1:]):
            continue
        row = rows[name] = measured(make)
        time_taken = f"{row['seconds']:5.1f} s = {row['passes']:5.0f} passes"
        rest = "not traced: " + row.get("why", "").partition("\n")[0]
        if row["traced"]:
            trains_or_not = "trains" if row["trains"] else "DOES NOT TRAIN"
            differences = f"zeros {row['zeros']:.0e}, permutation {row['permutation']:.0e}"
            rest = f"{row['lost']:.0%} lost, {differences}, {trains_or_not}"
        print(f"{name:48} {time_taken}  {rest}", flush=True)
    if not rows:
        print("none of the packages is installed: timm, torchvision, transformers")
        print(json.dumps({"architectures": 0}))
        return
    traced = [row for row in rows.values() if row["traced"]]
    summary = {
        "architectures": len(rows),
        "traced": len(traced),
        "permutation_holds": sum(row["permutation"] < TOLERANCE for row in traced),
        "equals_zeros": sum(row["zeros"] < TOLERANCE for row in traced),
        "trains": sum(row["trains"] for row in traced),
        "median_share_lost": statistics.median([row["lost"] for row in traced] or [0.0]),
        "median_passes": statistics.median(row["passes"] for row in rows.values()),
        "max_seconds": max(row["seconds"] for row in rows.values()),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
