"""Early exits on any model: where it is cut, what a part computes, what it costs."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from rounds import arrival
from tolerances import EXACT
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.averaging import owner_average
from subflot.algorithms.exits import (
    ExitNetwork,
    ExitTask,
    add_exits,
    behind_shares,
    cuts_of,
    exits_of,
    num_parameters,
    with_exits,
)
from subflot.algorithms.heads import Exit, exits_behind
from subflot.channels.blocks import find_cuts
from subflot.errors import SubflotError
from subflot.models import MODELS
from subflot.task import Task
from subflot.training import recalibrate


class Residual(nn.Module):
    """A sum around two convolutions, behind an activation that works in place."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        # In place, on what the module before returned.
        x = F.relu_(x)
        out: Tensor = x + self.second(F.relu(self.norm(self.first(x))))
        return out


class Stem(nn.Module):
    """A model whose forward does more than calling modules."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.register_buffer("offset", torch.full((1,), 0.5))
        self.blocks = nn.ModuleList(Residual(6) for _ in range(2))
        self.hidden = nn.Linear(6 * 4, 8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images - self.offset)
        for block in self.blocks:
            x = block(x)
        x = F.max_pool2d(x, 2).flatten(1) * self.scale
        logits: Tensor = self.classifier(F.relu(self.hidden(x)))
        return logits


class Tokens(nn.Module):
    """Channels last: tokens, their embeddings, a layer on each, the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.each = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU())
        self.hidden = nn.Linear(8, 8)
        self.classifier = nn.Linear(8, 3)
        self.blocks: tuple[str, ...] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.classifier(
            F.relu(self.hidden(self.each(self.embedding(tokens)))).mean(1)
        )
        return logits


def images(count: int) -> Tensor:
    return torch.randn(count, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def tokens(count: int) -> Tensor:
    return torch.randint(11, (count, 5), generator=torch.Generator().manual_seed(0))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], list[str]]] = {
    "stem": (Stem, images, ["stem", "blocks.0", "blocks.1"]),
    "tokens": (Tokens, tokens, ["embedding", "each"]),
    "harcnn": (
        MODELS["harcnn"].model,
        MODELS["harcnn"].example,
        ["features.2", "features", "classifier.1"],
    ),
    "digits-cnn": (
        MODELS["digits-cnn"].model,
        MODELS["digits-cnn"].example,
        ["features.3", "features"],
    ),
}


@cache
def case(name: str) -> tuple[ExitTask, Tensor]:
    model, example, _ = CASES[name]
    torch.manual_seed(0)
    task = Task.of(model(), example(2))
    return add_exits(task, strong(task), takes_mean=False), example(5)


def strong(task: Task) -> list[Exit]:
    """The strongest head behind every cut."""
    return [exits_behind(cut)[0] for cut in cuts_of(task)]


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_cut_behind_its_layers_and_blocks(name: str) -> None:
    model, example, expected = CASES[name]
    assert [cut.module for cut in find_cuts(model(), example(2))] == expected


def test_a_resnet_is_cut_behind_the_blocks_that_it_names() -> None:
    network = MODELS["resnet18"]
    cuts = find_cuts(network.model(), network.example())
    blocks = [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]
    # Behind the last there is only the classifier.
    assert [cut.module for cut in cuts] == blocks[:-1]
    assert [cut.num_channels for cut in cuts] == [64, 64, 128, 128, 256, 256, 512]
    assert all(not name.startswith(("layer2", "fc")) for name in cuts[1].tensors)
    assert {"bn1.running_mean", "layer1.1.bn2.num_batches_tracked"} <= cuts[1].tensors


def test_a_part_has_what_was_used_up_to_it_and_nothing_else() -> None:
    stem, first, _ = find_cuts(Stem(), images(2))
    # The scale belongs to the model itself, but is used behind the blocks.
    assert stem.tensors == {"stem.weight", "stem.bias", "offset"}
    assert "blocks.0.norm.running_var" in first.tensors
    assert not any(name.startswith("blocks.1") for name in first.tensors)


def test_channels_are_found_in_front_of_positions_and_behind_them() -> None:
    assert [(c.num_channels, c.axis) for c in find_cuts(Stem(), images(2))] == [(6, 1)] * 3
    assert [(c.num_channels, c.axis) for c in find_cuts(Tokens(), tokens(2))] == [(6, 2), (8, 2)]


def test_a_layer_that_runs_twice_or_is_shared_is_no_end() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.middle = nn.Linear(4, 4), nn.Linear(4, 4)
            self.hidden, self.classifier = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            again: Tensor = self.layer(torch.relu(self.middle(torch.relu(self.layer(x)))))
            logits: Tensor = self.classifier(torch.relu(self.hidden(again)))
            return logits

    assert find_cuts(Twice(), torch.randn(2, 4)) == []


def test_finding_cuts_changes_nothing_in_the_model() -> None:
    model = Stem()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    find_cuts(model, images(2))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, before[name], **EXACT)


@pytest.mark.parametrize("is_training", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_part_computes_the_exits_of_the_whole(name: str, is_training: bool) -> None:
    task, inputs = case(name)
    with task.lend(task.initial) as whole:
        expected = exits_of(whole.train(is_training), inputs)
    assert len(expected) == task.num_exits
    for depth in range(1, task.num_exits + 1):
        weights, _ = task.part(task.initial, depth, 0.0)
        with task.lend(weights) as part:
            found = exits_of(part.train(is_training), inputs)
            answer = part.eval()(inputs)
        assert len(found) == depth
        for mine, theirs in zip(found, expected, strict=False):
            torch.testing.assert_close(mine, theirs, **EXACT)
        assert answer.shape == expected[0].shape


def test_the_smallest_head_is_the_mean_over_positions_and_a_linear_layer() -> None:
    for name, positions in (("stem", (2, 3)), ("tokens", (1,))):
        whole, inputs = case(name)
        assert whole.plain is not None
        smallest = [exits_behind(cut)[-1] for cut in cuts_of(whole.plain)]
        task = add_exits(whole.plain, smallest, takes_mean=False)
        with task.lend(task.initial) as model:
            assert isinstance(model, ExitNetwork)
            seen: list[Tensor] = []
            module = model.body.get_submodule(model.places[0])
            hook = module.register_forward_hook(
                lambda m, i, out, seen=seen: seen.append(out.clone())
            )
            found = exits_of(model.eval(), inputs)[0]
            hook.remove()
        weight, bias = (task.initial[f"heads.0.linear.{part}"] for part in ("weight", "bias"))
        expected = seen[0].mean(positions) @ weight.T + bias
        assert (seen[0] < 0).any()
        torch.testing.assert_close(found, expected)


def test_heads_are_drawn_alike_every_time_and_leave_the_global_stream_alone() -> None:
    task, _ = case("stem")
    assert task.plain is not None
    torch.manual_seed(7)
    before = torch.get_rng_state()
    again = add_exits(task.plain, strong(task.plain), takes_mean=False)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [again.initial[f"heads.{n}.linear.weight"] for n in range(3)]
    assert torch.equal(weights[0], task.initial["heads.0.linear.weight"])
    assert not torch.equal(weights[0], weights[1])


@pytest.mark.parametrize("rate", [0.0, 0.5, 0.75])
@pytest.mark.parametrize("name", CASES)
def test_every_part_can_be_built_at_every_width_trained_and_counted(name: str, rate: float) -> None:
    task, inputs = case(name)
    for depth in range(1, task.num_exits + 1):
        weights, kept = task.part(task.initial, depth, rate)
        assert task.cost(weights).parameters == num_parameters(task, task.names(depth), rate)
        with task.lend(weights) as model:
            torch.stack(exits_of(model.train(), inputs)).sum().backward()
            assert all(p.grad is not None for p in model.parameters())
            recalibrate(task, model, inputs)
        assert set(kept) == (set(task.channels.prunable) if rate else set())


def test_a_module_of_some_depth_is_lent_again_with_other_weights() -> None:
    task, _ = case("stem")
    weights, _ = task.part(task.initial, 2, 0.5)
    with task.lend(weights) as first:
        pass
    doubled = {name: tensor * 2 for name, tensor in weights.items()}
    with task.lend(doubled) as second:
        assert second is first
        for name, tensor in second.state_dict().items():
            torch.testing.assert_close(tensor, doubled[name], **EXACT)


def test_the_model_answers_with_its_deepest_exit_or_the_mean_of_all() -> None:
    last, inputs = case("stem")
    assert last.plain is not None
    mean = add_exits(last.plain, strong(last.plain), takes_mean=True)
    assert isinstance(mean.template, ExitNetwork)
    for task in (last, mean):
        with task.lend(task.part(task.initial, 2, 0.0)[0]) as part:
            exits = exits_of(part.eval(), inputs)
            wanted = exits[-1] if task is last else (exits[0] + exits[1]) / 2
            torch.testing.assert_close(part(inputs), wanted)


def test_budgets_are_those_of_the_model_without_exits() -> None:
    task, _ = case("harcnn")
    assert task.plain is not None
    for rate in (0.0, 0.25, 0.5, 0.75):
        narrow = task.plain.narrow(task.plain.initial, rate)
        assert task.budget(rate) == task.plain.cost(narrow).parameters


def test_the_widest_part_within_a_budget_fits_and_the_next_wider_does_not() -> None:
    task, _ = case("harcnn")
    for depth in range(1, task.num_exits + 1):
        budget = task.budget(0.75)
        rate = task.width_within(depth, budget)
        assert rate is not None
        assert num_parameters(task, task.names(depth), rate) <= budget
        assert not rate or num_parameters(task, task.names(depth), rate - 1 / 32) > budget
    assert task.width_within(1, 3) is None


def test_cuts_nearest_to_shares_of_the_blocks_are_taken_once() -> None:
    cuts = find_cuts(MODELS["resnet18"].model(), MODELS["resnet18"].example())
    assert [c.module for c in behind_shares(cuts, (0.25, 0.5, 0.75))] == [
        *("layer1.1", "layer2.1", "layer3.1")
    ]
    assert [c.module for c in behind_shares(cuts, (0.56, 0.7, 0.85))] == [
        *("layer2.1", "layer3.1", "layer4.0")
    ]
    assert behind_shares(cuts[:1], (0.2, 0.9)) == cuts[:1]


def test_tensors_that_some_clients_lack_are_averaged_over_the_others() -> None:
    task, _ = case("stem")
    ones = {name: torch.ones_like(t) for name, t in task.initial.items()}
    short, kept = task.part({n: 2 * t for n, t in ones.items()}, 1, 0.0)
    whole = {name: 6 * tensor for name, tensor in ones.items()}
    after = owner_average(ones, task.channels, [arrival(short, 3, kept), arrival(whole, 1)])
    assert (after["body.stem.weight"] == 3).all()
    assert (after["heads.0.linear.weight"] == 3).all()
    assert (after["heads.1.linear.weight"] == 6).all()
    assert (after["body.classifier.weight"] == 6).all()
    alone = owner_average(ones, task.channels, [arrival(short, 3, kept)])
    for name in task.names(task.num_exits) - task.names(1):
        torch.testing.assert_close(alone[name], ones[name], **EXACT)


def test_without_cuts_the_model_stays_as_it_is() -> None:
    torch.manual_seed(0)
    plain = Task.of(Stem(), images(2))
    task = add_exits(plain, [], takes_mean=True)
    assert task.template is plain.template
    assert task.num_exits == 1
    assert task.initial.keys() == plain.initial.keys()


def test_what_cannot_be_cut_is_said() -> None:
    task = Task.of(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), torch.randn(2, 4))
    with pytest.raises(SubflotError, match="Sequential has no place for an early exit"):
        cuts_of(task)
    with pytest.raises(SubflotError, match="the model has no exits"):
        with_exits(task)
    model = Tokens()
    model.blocks = ("each.7",)
    with pytest.raises(SubflotError, match=r"names the block `each\.7`"):
        find_cuts(model, tokens(2))


def test_a_model_that_returns_no_tensor_is_refused() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    with pytest.raises(SubflotError, match="Pair returns a tuple"):
        find_cuts(Pair(), torch.randn(2, 4))
