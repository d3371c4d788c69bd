"""DepthFL: parts by depth, and exits that teach each other."""

import math
from dataclasses import replace
from functools import cache

import pytest
import torch
from chains import chain_task
from hypothesis import given
from hypothesis import strategies as st
from quadratics import context_of
from rounds import CLASSES, CLIENTS, FULL_CLIENTS, play, tiny_examples, tiny_task
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.base import Client, Download, Turn
from subflot.algorithms.depthfl import DepthFL, by_parameters, mutual_distillation, ramp
from subflot.algorithms.exits import (
    ExitTask,
    cuts_of,
    exits_of,
    num_parameters,
    with_exits,
)
from subflot.algorithms.fedavg import FedAvg
from subflot.errors import SubflotError
from subflot.task import Task

TURN = Turn(1, 10, 0)


@cache
def prepared(method: DepthFL) -> ExitTask:
    """Four layers of growing width, with the exits of a method."""
    return with_exits(method.prepare(chain_task(4, 8, 12, 16)))


# ----- sizes


@pytest.mark.parametrize(("rate", "depth"), [(0.0, 4), (0.25, 3), (0.5, 2), (0.75, 1)])
def test_as_in_the_paper_depth_goes_with_width(rate: float, depth: int) -> None:
    method = DepthFL(sizing="paper")
    task = prepared(method)
    assert task.num_exits == 4
    assert method.size(task, rate) == (depth, 0.0)
    download = method.download(task, method.start(task, [], Turn(0, 1, 0)), Client(0, rate), TURN)
    assert download.weights.keys() == task.names(depth)
    assert download.metrics == {"depth": depth, "width": 1.0}


@given(st.floats(0.01, 0.95))
def test_within_a_budget_a_client_gets_the_deepest_part_that_fits(rate: float) -> None:
    method = DepthFL()
    task = prepared(method)
    depth, narrowed = method.size(task, rate)
    budget = task.budget(rate)
    if narrowed:
        assert depth == 1
        assert num_parameters(task, task.names(1), 0.0) > budget
    assert num_parameters(task, task.names(depth), narrowed) <= budget
    if depth < task.num_exits:
        assert num_parameters(task, task.names(depth + 1), 0.0) > budget


def test_exits_lie_where_parts_with_their_heads_just_fit_the_widths() -> None:
    task = chain_task(12, 4, 16, 6)
    cuts = cuts_of(task)
    # Kernels, biases and norms up to each cut, and heads of three classes, by hand.
    whole = frozenset(task.channels.axes)
    assert [num_parameters(task, cut.tensors, 0.0) for cut in cuts] == [144, 588, 1212]
    assert [CLASSES * (cut.num_channels + 1) for cut in cuts] == [39, 15, 51]
    assert [num_parameters(task, whole, rate) for rate in (0.75, 0.5, 0.25)] == [201, 591, 1293]
    # 144 + 39 fits 201. 588 + 39 + 15 does not fit 591. Nor does 1212 + 39 + 51 fit 1293, where
    # the second cut is taken.
    chosen = by_parameters(task, cuts, 4)
    assert [one.cut for one in chosen] == [cuts[0], cuts[1]]
    # With 201 - 144 left the first head has no room for more. The second's 4 channels become 8 by
    # 36 + 16 + 8 and 36 + 32 + 16, read at 4 x 4 positions: with 387 in the linear layer 531.
    assert [(one.growth, one.grid) for one in chosen] == [(0, 1), (2, 4)]
    assert chosen[1].num_parameters(CLASSES) == 531 <= 1293 - 588 - 39


def test_where_the_first_layer_holds_most_parameters_it_is_narrowed() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(100, 8), nn.Linear(8, 8)
            self.classifier = nn.Linear(8, 3)

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.classifier(self.hidden(self.embedding(tokens).mean(1)))
            return logits

    torch.manual_seed(0)
    method = DepthFL()
    task = with_exits(method.prepare(Task.of(Words(), torch.randint(100, (2, 5)))))
    # 400 + 4 * 3 + 3 of 100 * 4 + 16 + 4 + 15 parameters.
    assert method.size(task, 0.5) == (1, 0.5)
    assert num_parameters(task, task.names(1), 0.5) == 415
    assert task.budget(0.5) == 435


# ----- the round


def test_what_lies_deeper_than_every_client_is_left_to_the_bit() -> None:
    method, narrow = DepthFL(sizing="paper"), [c for c in CLIENTS if c.pruning_rate >= 0.5]
    plain = chain_task(4, 8, 12, 16)
    task = with_exits(method.prepare(plain))
    state, parts = play(method, plain, narrow)
    assert [set(part.upload.weights) for part in parts] == [task.names(2), task.names(1)]
    for name, tensor in task.initial.items():
        if name not in task.names(2):
            torch.testing.assert_close(state.weights[name], tensor, **EXACT)
        elif name.endswith("weight"):
            assert not torch.equal(state.weights[name], tensor)


def test_a_block_is_averaged_over_the_clients_that_hold_it() -> None:
    method, plain = DepthFL(sizing="paper"), chain_task(4, 8, 12, 16)
    state, parts = play(method, plain, CLIENTS[2:])
    two, one = (part.upload for part in parts)
    name = "body.0.weight"
    total = two.num_examples + one.num_examples
    shared = two.weights[name] * two.num_examples + one.weights[name] * one.num_examples
    torch.testing.assert_close(state.weights[name], shared / total, **FLOAT32)
    torch.testing.assert_close(
        state.weights["body.3.weight"], two.weights["body.3.weight"], **FLOAT32
    )


def test_without_early_exits_it_is_fedavg() -> None:
    own, _ = play(DepthFL(exits=1), tiny_task(), FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), tiny_task(), FULL_CLIENTS, rounds=2)
    assert own.weights.keys() == plain.weights.keys()
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(own.weights[name], tensor, **EXACT)


# ----- the loss


def test_the_loss_is_the_sum_over_exits_and_what_they_teach_each_other() -> None:
    method = DepthFL(sizing="paper", distillation=0.7)
    task = prepared(method)
    examples, turn = tiny_examples(0, 5), Turn(3, 20, 0)
    objective = method.objective(task, Download({}), replace(context_of(examples), turn=turn))
    # Heads start close to each other; these disagree.
    louder = {n: t * (100 if ".linear." in n else 1) for n, t in task.initial.items()}
    weights, _ = task.part(louder, 3, 0.0)
    with task.lend(weights) as model:
        model.eval()
        found = objective(model, examples)
        logits = [each.detach() for each in exits_of(model, examples.inputs)]
    assert len(logits) == 3
    cross = sum(float(F.cross_entropy(each, examples.labels)) for each in logits)
    taught = sum(
        float((p * (p.log() - q.log())).sum(1).mean())
        for i, p in enumerate(each.softmax(1) for each in logits)
        for j, q in enumerate(each.softmax(1) for each in logits)
        if i != j
    )
    assert taught > 0.1
    weight = 0.7 * math.exp(-5 * (1 - 2 / 6) ** 2) / 2
    assert float(found.detach()) == pytest.approx(cross + weight * taught, rel=1e-5)


def test_a_model_answers_with_the_mean_of_its_exits_or_with_the_deepest() -> None:
    inputs = tiny_examples(0, 5).inputs
    for ensemble in (True, False):
        task = prepared(DepthFL(sizing="paper", ensemble=ensemble))
        with task.lend(task.part(task.initial, 2, 0.0)[0]) as model:
            shallow, deep = exits_of(model.eval(), inputs)
            expected = (shallow + deep) / 2 if ensemble else deep
            torch.testing.assert_close(model(inputs), expected, **FLOAT32)


def test_exits_that_agree_and_single_exits_teach_nothing() -> None:
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert float(mutual_distillation([logits, logits + 2, logits])) == pytest.approx(0, abs=1e-6)
    assert float(mutual_distillation([logits])) == 0


def test_who_teaches_gets_no_gradient() -> None:
    draw = torch.Generator().manual_seed(0)
    one, other = (torch.randn(4, 3, generator=draw, requires_grad=True) for _ in range(2))
    mutual_distillation([one, other]).backward()
    # Learning alone moves it: the slope of a divergence is (softmax - wanted) / batch.
    expected = (one.softmax(1) - other.softmax(1)) / 4
    assert one.grad is not None
    torch.testing.assert_close(one.grad, expected.detach(), **FLOAT32)


@pytest.mark.parametrize(("rounds", "length"), [(1000, 300), (100, 30), (2, 1)])
def test_the_weight_of_teaching_rises_to_one_and_stays(rounds: int, length: int) -> None:
    weights = [ramp(Turn(number, rounds, 0)) for number in range(1, rounds + 1)]
    assert weights[0] == pytest.approx(math.exp(-5))
    assert weights == sorted(weights)
    assert weights[length:] == [1.0] * (rounds - length)
    assert all(weight < 1 for weight in weights[:length])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SubflotError, match="exits is 0"):
        DepthFL(exits=0)
    with pytest.raises(SubflotError, match="distillation is -1"):
        DepthFL(distillation=-1)
