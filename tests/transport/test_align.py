"""Laws of alignment on every network, and one case by hand for each kind of layer."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from networks import CASES
from tolerances import DOUBLE, EXACT
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from traced import traced

from subflot import ChannelMap, SubflotError, build, take, trace
from subflot.channels.keep import prefix, random
from subflot.models import MODELS
from subflot.transport import RunningMean, align, fuse

EVERY = [*CASES, *(name for name in MODELS if name not in ("digit5cnn", "fasttext"))]


def permuted(weights: dict[str, Tensor], channels: ChannelMap, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    order = {s: torch.randperm(channels.sizes[s], generator=generator) for s in channels.prunable}
    return take(weights, channels, order)


def widened(weights: dict[str, Tensor], channels: ChannelMap, times: int) -> dict[str, Tensor]:
    """Every channel `times` over, and what reads them divided, so that the function stays."""
    order = {s: torch.arange(channels.sizes[s]).repeat_interleave(times) for s in channels.prunable}
    wide = take(weights, channels, order)
    for name, axis in channels.inputs:
        segments = channels.axes[name][axis] or ()
        if any(segment.space in order for segment in segments):
            assert all(segment.space in order for segment in segments)
            wide[name] = wide[name] / times
    return wide


@pytest.mark.parametrize("residual", ["average", "joint"])
@pytest.mark.parametrize("name", EVERY)
def test_a_permuted_copy_is_aligned_to_zero_distance(name: str, residual: Any) -> None:
    model, channels, _ = traced(name)
    target = permuted(model.state_dict(), channels, seed=1)
    aligned = align(model.state_dict(), target, channels, residual=residual)
    for tensor, value in target.items():
        torch.testing.assert_close(aligned.weights[tensor], value, **EXACT)
    for plans in aligned.plans.values():
        for plan in plans.values():
            # Means over a permuted axis differ by rounding, which the joint rule may meet.
            assert plan.cost <= (0 if residual == "average" else 1e-12)
            assert plan.is_optimal


# Layer norm over copies, group norm and heads compute something else than over the originals.
DUPLICABLE = [
    *("dense blocks", "u-net", "squeeze and excite", "text cnn", "two inputs", "auxiliary"),
    *("vgg11", "vgg11-plain", "resnet18", "mobilenetv2", "harcnn", "digits-cnn"),
]


@pytest.mark.parametrize("times", [2, 3])
@pytest.mark.parametrize("name", DUPLICABLE)
def test_duplicated_channels_merge_back_and_with_sum_the_function_stays(
    name: str, times: int
) -> None:
    model, channels, example = traced(name)
    wide = widened(model.state_dict(), channels, times)
    back = align(wide, model.state_dict(), channels, input_map="sum", residual="joint")
    with torch.no_grad():
        expected = model(*example)
        torch.testing.assert_close(build(model, channels, wide)(*example), expected, **DOUBLE)
        torch.testing.assert_close(
            build(model, channels, back.weights)(*example), expected, **DOUBLE
        )


@pytest.mark.parametrize("rate", [0.5, 0.75])
@pytest.mark.parametrize("name", ["vgg11", "vgg11-plain", "resnet18", "harcnn", "digits-cnn"])
def test_client_to_global_and_back_is_the_identity(name: str, rate: float) -> None:
    model, channels, _ = traced(name)
    generator = torch.Generator().manual_seed(2)
    client = take(model.state_dict(), channels, random(channels, rate, generator))
    client = {
        n: t + 0.01 * torch.rand(t.shape, generator=generator, dtype=t.dtype)
        if t.is_floating_point()
        else t
        for n, t in client.items()
    }
    wide = align(client, model.state_dict(), channels, residual="joint").weights
    back = align(wide, client, channels, residual="joint").weights
    for tensor, value in client.items():
        torch.testing.assert_close(back[tensor], value, **DOUBLE)


@pytest.mark.parametrize("residual", ["average", "joint"])
@pytest.mark.parametrize("name", ["vgg11", "digits-cnn", "u-net", "dense blocks", "lstm"])
def test_a_partial_plan_gives_a_true_submodel(name: str, residual: Any) -> None:
    model, channels, _ = traced(name)
    weights = model.state_dict()
    shuffled = permuted(weights, channels, seed=3)
    client = take(shuffled, channels, prefix(channels, 0.5))
    client = {n: 1.01 * t if t.is_floating_point() else t for n, t in client.items()}
    aligned = align(weights, client, channels, plan="partial", residual=residual)
    kept = {}
    for space, plans in aligned.plans.items():
        chosen = {tuple(plan.source[np.argsort(plan.target)]) for plan in plans.values()}
        assert len(chosen) == 1
        kept[space] = torch.tensor(chosen.pop())
        assert len(kept[space].unique()) == len(kept[space])
    for tensor, value in take(weights, channels, kept).items():
        torch.testing.assert_close(aligned.weights[tensor], value, **EXACT)


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2", "transformer", "shuffle"])
def test_every_width_is_carried_to_every_other_with_the_average_over_branches(name: str) -> None:
    model, channels, example = traced(name)
    weights = model.state_dict()
    shapes = {}
    for rate in (0.0, 0.25, 0.5):
        shapes[rate] = take(weights, channels, prefix(channels, rate))
    for one, other in itertools.product(shapes.values(), repeat=2):
        aligned = align(one, other, channels).weights
        with torch.no_grad():
            assert build(model, channels, aligned)(*example).isfinite().all()
        assert {n: t.shape for n, t in aligned.items()} == {n: t.shape for n, t in other.items()}


def test_the_class_axis_never_moves() -> None:
    model, channels, _ = traced("digits-cnn")
    weights = dict(model.state_dict())
    target = dict(weights)
    head = [name for name in weights if name.startswith("classifier")][-2:]
    for name in head:  # Classes in another order would match the target better.
        target[name] = weights[name].flip(0)
    aligned = align(weights, target, channels).weights
    for name in head:
        torch.testing.assert_close(aligned[name], weights[name], **EXACT)


# --- by hand ------------------------------------------------------------------------------------


def best_plan(source: list[Any], target: list[Any]) -> list[list[int]]:
    """For each target the sources that go to it, by trying all ways (targets divide sources)."""
    room = len(source) // len(target)
    slots = [t for t in range(len(target)) for _ in range(room)]

    def cost(ways: tuple[int, ...]) -> float:
        return sum(float(torch.dist(source[s], target[t])) for s, t in enumerate(ways))

    best = min(set(itertools.permutations(slots)), key=cost)
    return [[s for s, t in enumerate(best) if t == target_] for target_ in range(len(target))]


def mean(rows: Tensor, plan: list[list[int]], axis: int = 0) -> Tensor:
    """Average the merged channels along an axis, one by one."""
    parts = [sum(rows.select(axis, s) for s in merged) / len(merged) for merged in plan]
    return torch.stack([torch.as_tensor(part) for part in parts], axis)


def drawn(like: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Random numbers in the place of every fraction."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in like.items()
    }


def pair(
    model: nn.Module, example: Tensor
) -> tuple[ChannelMap, dict[str, Tensor], dict[str, Tensor]]:
    """A map, random weights of full width, and others of half the width."""
    channels = trace(model, example)
    half = take(model.state_dict(), channels, prefix(channels, 0.5))
    return channels, drawn(model.state_dict(), 4), drawn(half, 5)


def check(got: dict[str, Tensor], **expected: Tensor) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(got[name.replace("__", ".")], value, **DOUBLE)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)
        self.depthwise = nn.Conv2d(4, 4, 2, groups=4)
        self.head = nn.Linear(4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.depthwise(F.relu(self.norm(self.first(x)))).flatten(1))


def test_convolution_batch_norm_depthwise_and_flatten_by_hand() -> None:
    channels, full, half = pair(Convolutions(), torch.randn(2, 2, 5, 5))
    got = align(full, half, channels).weights
    plan = best_plan(list(full["first.weight"]), list(half["first.weight"]))
    blocks = full["head.weight"].view(3, 4, 4)
    check(
        got,
        first__weight=mean(full["first.weight"], plan),
        first__bias=mean(full["first.bias"], plan),
        norm__weight=mean(full["norm.weight"], plan),
        norm__bias=mean(full["norm.bias"], plan),
        norm__running_mean=mean(full["norm.running_mean"], plan),
        norm__running_var=mean(full["norm.running_var"], plan),
        depthwise__weight=mean(full["depthwise.weight"], plan),
        depthwise__bias=mean(full["depthwise.bias"], plan),
        head__weight=mean(blocks, plan, axis=1).flatten(1),
        head__bias=full["head.bias"],
    )
    adding = align(full, half, channels, input_map="sum").weights
    check(adding, head__weight=2 * mean(blocks, plan, axis=1).flatten(1))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Linear(3, 4), nn.Linear(4, 6)
        self.outer, self.head = nn.Linear(6, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.outer(F.relu(self.inner(x))))


def test_the_average_over_residual_branches_by_hand() -> None:
    channels, full, half = pair(Residual(), torch.randn(2, 3))
    got = align(full, half, channels).weights
    stem = best_plan(list(full["stem.weight"]), list(half["stem.weight"]))
    entered = mean(full["inner.weight"], stem, axis=1)
    inner = best_plan(list(entered), list(half["inner.weight"]))
    left = mean(full["outer.weight"], inner, axis=1)
    outer = best_plan(list(left), list(half["outer.weight"]))
    assert stem != outer
    both = (mean(full["head.weight"], stem, 1) + mean(full["head.weight"], outer, 1)) / 2
    check(
        got,
        stem__weight=mean(full["stem.weight"], stem),
        inner__weight=mean(entered, inner),
        outer__weight=mean(left, outer),
        outer__bias=mean(full["outer.bias"], outer),
        head__weight=both,
    )


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens).mean(1))


def test_embedding_by_hand() -> None:
    channels, full, half = pair(Bag(), torch.tensor([[0, 1], [2, 4]]))
    got = align(full, half, channels).weights
    plan = best_plan(list(full["words.weight"].T), list(half["words.weight"].T))
    check(
        got,
        words__weight=mean(full["words.weight"], plan, axis=1),
        head__weight=mean(full["head.weight"], plan, axis=1),
    )


# --- fuse and merge -----------------------------------------------------------------------------


def test_fuse_mixes_fractions_and_keeps_the_clients_counters() -> None:
    ours = {"w": torch.tensor([2.0, 4.0]), "n": torch.tensor(7)}
    theirs = {"w": torch.tensor([4.0, 0.0]), "n": torch.tensor(9)}
    fused = fuse(theirs, ours, global_share=0.25)
    assert fused["w"].tolist() == [2.5, 3.0]
    assert int(fused["n"]) == 7
    with pytest.raises(SubflotError, match="between 0 and 1"):
        fuse(theirs, ours, global_share=1.5)


def test_the_running_mean_is_the_weighted_mean_and_leaves_what_it_is_given() -> None:
    generator = torch.Generator().manual_seed(5)
    models = [{"w": torch.rand(3, generator=generator)} for _ in range(4)]
    before = [m["w"].clone() for m in models]
    running = RunningMean()
    for model, weight in zip(models, (1, 2, 3, 4), strict=True):
        running.add(model, weight)
    expected = sum(w * m["w"] for w, m in zip((0.1, 0.2, 0.3, 0.4), models, strict=True))
    torch.testing.assert_close(running.result()["w"], expected)
    assert all(torch.equal(m["w"], b) for m, b in zip(models, before, strict=True))
    with pytest.raises(SubflotError, match="different tensors"):
        running.add({"v": torch.zeros(3)}, 1)
    with pytest.raises(SubflotError, match="cannot be merged"):
        running.add(models[0], 0)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_norms_of_mixed_precision_are_carried_each_in_its_own_and_own_their_memory(
    rate: float,
) -> None:
    model, channels, _ = traced("vgg11")
    source = dict(model.state_dict())
    kept = random(channels, rate, torch.Generator().manual_seed(0))
    target = take({n: 1.1 * t if t.ndim > 1 else t for n, t in source.items()}, channels, kept)
    odd = next(name for name in source if name.endswith("running_mean"))
    plain = align(source, target, channels).weights
    mixed = align({**source, odd: source[odd].float()}, target, channels).weights
    assert mixed[odd].dtype == torch.float32 != plain[odd].dtype
    torch.testing.assert_close(mixed[odd], plain[odd].float())
    for name, tensor in mixed.items():
        if source[name].is_floating_point():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes


def test_nan_names_the_layer() -> None:
    model, channels, _ = traced("digits-cnn")
    broken = dict(model.state_dict())
    broken["features.4.weight"] = broken["features.4.weight"] * float("nan")
    with pytest.raises(SubflotError, match=r"features\.4\.weight"):
        align(broken, model.state_dict(), channels)
    with pytest.raises(SubflotError, match="unknown residual"):
        align(broken, broken, channels, residual="mean")  # type: ignore[arg-type]
