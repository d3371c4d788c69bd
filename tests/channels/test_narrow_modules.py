"""A narrower module is a real module, and computes what is left of the full one."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from networks import CASES
from tolerances import DOUBLE, EXACT
from torch import Tensor, nn
from traced import traced

from subflot import build, put, take
from subflot.channels.keep import largest, prefix
from subflot.models import MODELS

RATES = [0.0, 0.25, 0.5, 0.75]

FLATTENED = {
    ("harcnn", "classifier.0"): 64,
    ("digit5cnn", "classifier.0"): 128,
    ("digits-cnn", "classifier.0"): 32,
}
"""Channels in front of the linear layers that follow a flatten, read off the architectures."""


@contextmanager
def only_first_channels_reach_consumers(name: str, model: nn.Module, rate: float) -> Iterator[None]:
    """Zero what a prefix cut drops, where it enters each layer; knows nothing of channel maps."""

    def left(count: int) -> int:
        return math.ceil(round((1 - rate) * count, 9))

    handles = []
    consumers = [m for m in model.named_modules() if isinstance(m[1], nn.Conv2d | nn.Linear)]
    is_embedded = any(isinstance(m, nn.Embedding) for m in model.modules())
    for layer, module in consumers if is_embedded else consumers[1:]:

        def drop(module: nn.Module, args: tuple[Tensor, ...], layer: str = layer) -> Tensor:
            entering = args[0].clone()
            channels = FLATTENED.get((name, layer), entering.shape[1])
            entering[:, left(channels) * (entering.shape[1] // channels) :] = 0
            return entering

        handles.append(module.register_forward_pre_hook(drop))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", MODELS)
def test_narrow_output_is_the_full_one_with_dropped_channels_removed_at_every_consumer(
    name: str, rate: float
) -> None:
    model, channels, example = traced(name)
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, rate)))
    with torch.no_grad():
        with only_first_channels_reach_consumers(name, model, rate):
            expected = model(*example)
        assert rate == 0 or not torch.allclose(expected, model(*example))
        torch.testing.assert_close(narrow(*example), expected, **DOUBLE)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if not case.mixes_channels])
def test_narrow_output_is_the_full_one_with_zeros_for_what_was_cut(name: str, rate: float) -> None:
    model, channels, example = traced(name)
    kept = largest(channels, rate, model.state_dict())
    part = take(model.state_dict(), channels, kept)
    values, _ = put(part, model.state_dict(), channels, kept)
    zeroed = build(model, channels, values)
    narrow: Any = build(model, channels, part)
    with torch.no_grad():
        torch.testing.assert_close(narrow(*example), zeroed(*example), **DOUBLE)


@pytest.mark.parametrize("name", [*CASES, "digits-cnn", "mobilenetv2"])
def test_a_narrow_module_has_the_same_class_and_loads_trains_and_leaves_the_template_alone(
    name: str,
) -> None:
    model, channels, example = traced(name)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    part = take(model.state_dict(), channels, prefix(channels, 0.5))
    narrow: Any = build(model, channels, part)
    assert type(narrow) is type(model)
    narrow.load_state_dict(part, strict=True)
    narrow.train()
    optimiser = torch.optim.SGD(narrow.parameters(), lr=0.1)
    out = narrow(*example)
    sum(o.square().mean() for o in (out if isinstance(out, tuple) else (out,))).backward()
    for parameter in narrow.parameters():
        assert parameter.grad is not None
        assert parameter.grad.shape == parameter.shape
    optimiser.step()
    for tensor, value in model.state_dict().items():
        torch.testing.assert_close(value, before[tensor], **EXACT)
        if value.numel() > 1 and channels.axes[tensor] and value.is_floating_point():
            assert part[tensor].data_ptr() != narrow.state_dict()[tensor].data_ptr()


@pytest.mark.parametrize("name", [*CASES, "resnet18"])
def test_no_layer_of_a_narrow_module_states_another_size_than_its_weights(name: str) -> None:
    model, channels, _ = traced(name)
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    for module in narrow.modules():
        if isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == tuple(module.weight.shape)
        if isinstance(module, nn.Conv2d):
            inputs = module.in_channels // module.groups
            assert (module.out_channels, inputs) == tuple(module.weight.shape[:2])
        if isinstance(module, nn.BatchNorm2d):
            assert module.num_features == len(module.weight)
        if isinstance(module, nn.LayerNorm):
            assert module.normalized_shape == tuple(module.weight.shape)
        if isinstance(module, nn.GroupNorm):
            assert module.num_channels == len(module.weight)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            assert module.embedding_dim == module.weight.shape[1]


@pytest.mark.parametrize("name", ["squeeze and excite", "u-net", "own attention", "mobilenetv2"])
def test_a_narrow_module_exports(name: str) -> None:
    model, channels, example = traced(name)
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    exported = torch.export.export(narrow, example).module()
    with torch.no_grad():
        torch.testing.assert_close(exported(*example), narrow(*example), **DOUBLE)


def test_tied_weights_stay_tied() -> None:
    model, channels, _ = traced("tied")
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.5)))
    assert narrow.head.weight is narrow.words.weight
    assert tuple(narrow.words.weight.shape) == (20, 6)


def test_heads_stay_and_their_dimension_shrinks_with_the_width() -> None:
    model, channels, _ = traced("transformer")
    narrow: Any = build(model, channels, take(model.state_dict(), channels, prefix(channels, 0.3)))
    attention = narrow.encoder.layers[0].self_attn
    # 6 entries per head leave ceil(4.2) = 5; four heads make a width of 20.
    assert (attention.num_heads, attention.embed_dim) == (4, 20)
    assert tuple(attention.in_proj_weight.shape) == (60, 20)
