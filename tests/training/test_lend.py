"""Modules that are lent and come back clean."""

import pickle

import pytest
import torch
from federations import tiny_task
from torch import nn

from subflot.task import Task, shapes, weights_of
from subflot.weights import Weights


def holds(model: nn.Module, weights: Weights) -> bool:
    return all(torch.equal(tensor, weights[name]) for name, tensor in weights_of(model).items())


def changed(weights: Weights, by: float) -> dict[str, torch.Tensor]:
    return {name: tensor + int(by) for name, tensor in weights.items()}


def test_a_module_comes_again_with_the_weights_that_are_asked_for() -> None:
    task = tiny_task()
    for rate in (0.0, 0.5):
        first = task.narrow(task.initial, rate)
        with task.lend(first) as model:
            assert holds(model, first)
        with task.lend(changed(first, 1)) as again:
            assert again is model
            assert holds(again, changed(first, 1))


def test_it_comes_back_without_gradients() -> None:
    task = tiny_task()
    with task.lend(task.initial) as model:
        model(torch.randn(3, 1, 8, 8)).sum().backward()
        assert model.get_parameter("head.weight").grad is not None
    with task.lend(task.initial) as model:
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(parameter.requires_grad for parameter in model.parameters())


def test_what_the_borrower_does_to_it_does_not_reach_the_weights() -> None:
    task = tiny_task()
    for _ in range(2):  # Built the first time, lent again the second.
        mine = changed(task.initial, 0)
        with task.lend(mine) as model, torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.fill_(7)
        assert all(torch.equal(tensor, task.initial[name]) for name, tensor in mine.items())


def test_two_at_once_are_two() -> None:
    task = tiny_task()
    other = changed(task.initial, 1)
    with task.lend(task.initial) as one, task.lend(other) as two:
        assert one is not two
        assert holds(one, task.initial)
        assert holds(two, other)


def test_after_an_error_the_module_is_not_lent_again() -> None:
    task = tiny_task()

    def broken() -> None:
        with task.lend(task.initial) as model:
            model.get_parameter("head.weight").requires_grad_(False)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    with task.lend(task.initial) as model:
        assert model.get_parameter("head.weight").requires_grad
        assert holds(model, task.initial)


def test_another_process_gets_the_task_without_the_pool() -> None:
    task = tiny_task()
    with task.lend(task.initial):
        pass
    there: Task = pickle.loads(pickle.dumps(task))
    assert there._idle == {}
    assert len(task._idle) == 1
    assert all(torch.equal(tensor, there.initial[name]) for name, tensor in task.initial.items())


def test_widths_are_told_apart_by_shapes() -> None:
    task = tiny_task()
    found = {shapes(task.narrow(task.initial, rate)) for rate in (0, 0.25, 0.5, 0.75)}
    assert len(found) == 4


def test_cost_is_that_of_the_width() -> None:
    task = tiny_task()
    # Of 4 and 8 channels, 2 and 4 stay: 2 * 9 + 2, norm 2 + 2, 4 * 18 + 4, 10 * 4 + 10.
    assert task.cost(task.narrow(task.initial, 0.5)).parameters == 20 + 4 + 76 + 50
    assert task.cost(task.initial).parameters == 40 + 8 + 8 * 36 + 8 + 90
