"""Measuring against plain loops, and statistics against sums by hand."""

import pytest
import torch
from federations import digits, tiny_data, tiny_task
from tolerances import EXACT, FLOAT32
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.testing import assert_close

from subflot.data.federated import Examples
from subflot.task import Task, weights_of
from subflot.training import measure, recalibrate
from subflot.training.evaluate import BATCH, Measurement


def many(count: int) -> Examples:
    return Examples(*digits(count).tensors(range(count)))


@torch.no_grad()
def test_measuring_equals_a_plain_loop() -> None:
    task, examples = tiny_task(), many(BATCH + 30)
    model = task.build(task.initial).eval()
    num_correct, loss = 0, 0.0
    for image, label in zip(examples.inputs, examples.labels, strict=True):
        logits = model(image[None])
        num_correct += int(logits.argmax()) == int(label)
        loss += float(F.cross_entropy(logits, label[None]))
    found = measure(task, model, examples)
    assert found.num_examples == BATCH + 30
    assert found.num_correct == num_correct
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert 0 < found.accuracy == num_correct / (BATCH + 30) < 1


def test_measuring_turns_dropout_off_and_changes_no_weight() -> None:
    task, examples = tiny_task(dropout=0.9), many(50)
    model = task.build(task.initial).train()
    assert measure(task, model, examples) == measure(task, model, examples)
    for name, tensor in weights_of(model).items():
        assert_close(tensor, task.initial[name], **EXACT)


def test_accuracy_is_a_share() -> None:
    assert Measurement(8, 6, 1.0).accuracy == 0.75


# ----- running statistics


def by_hand(task: Task, parts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and spread of what the convolution puts out: of each batch, then their plain mean."""
    weight, bias = task.initial["conv.weight"].double(), task.initial["conv.bias"].double()
    seen = [F.conv2d(part.double(), weight, bias, stride=2) for part in parts]
    means = [out.mean((0, 2, 3)) for out in seen]
    spreads = [out.var((0, 2, 3), correction=1) for out in seen]
    return torch.stack(means).mean(0).float(), torch.stack(spreads).mean(0).float()


@pytest.mark.parametrize("count", [40, BATCH, BATCH + 1, BATCH + 40])
def test_statistics_are_those_of_one_pass(count: int) -> None:
    task, inputs = tiny_task(), many(count).inputs
    with task.lend(task.initial) as model:
        recalibrate(task, model, inputs)
        norm = model.get_submodule("norm")
        assert isinstance(norm, nn.BatchNorm2d)
        # One example left over joins the batch before it.
        parts = [inputs] if count <= BATCH + 1 else list(inputs.split(BATCH))
        mean, spread = by_hand(task, parts)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert_close(norm.running_mean, mean, **FLOAT32)
        assert_close(norm.running_var, spread, **FLOAT32)


def test_statistics_of_before_are_forgotten() -> None:
    task, inputs = tiny_task(), many(30).inputs
    spoilt = dict(task.initial)
    spoilt["norm.running_mean"] = torch.full((4,), float("nan"))
    spoilt["norm.running_var"] = torch.full((4,), 1e6)
    found = []
    for weights in (task.initial, spoilt):
        with task.lend(weights) as model:
            recalibrate(task, model, inputs)
            found.append(weights_of(model))
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_measuring_twice_gives_the_same_numbers() -> None:
    task, data = tiny_task(), tiny_data()
    found = []
    for _ in range(2):
        with task.lend(task.narrow(task.initial, 0.5)) as model:
            for _ in range(2):
                recalibrate(task, model, data.train(1).inputs)
                found.append(measure(task, model, data.test(1)))
    assert len(set(found)) == 1


def test_recalibrating_changes_statistics_alone_and_leaves_the_norm_as_it_was() -> None:
    task = tiny_task()
    with task.lend(task.initial) as model:
        recalibrate(task, model, many(30).inputs)
        norm = model.get_submodule("norm")
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.momentum == 0.1
        assert not model.training
        assert not norm.training
        for name, tensor in weights_of(model).items():
            if "running" not in name and "num_batches" not in name:
                assert torch.equal(tensor, task.initial[name])


def test_one_input_has_statistics_too() -> None:
    task, inputs = tiny_task(), many(1).inputs
    with task.lend(task.initial) as model:
        recalibrate(task, model, inputs)
        mean, spread = by_hand(task, [inputs.repeat(2, 1, 1, 1)])
        state = weights_of(model)
    assert_close(state["norm.running_mean"], mean, **FLOAT32)
    assert_close(state["norm.running_var"], spread, **FLOAT32)


def test_without_inputs_or_without_norms_nothing_happens() -> None:
    task = tiny_task()
    with task.lend(task.initial) as model:
        recalibrate(task, model, many(4).inputs[:0])
        assert all(torch.equal(t, task.initial[n]) for n, t in weights_of(model).items())
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).train()
    recalibrate(task, plain, many(4).inputs)
    assert plain.training
