"""Local training against plain PyTorch, and the clients that break careless loops."""

from typing import Any

import pytest
import torch
from federations import LOCAL, by_autograd, tiny_data, tiny_task
from hypothesis import given
from hypothesis import strategies as st
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.testing import assert_close

from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import LocalTraining, Task
from subflot.training import batches, train_locally
from subflot.weights import Weights


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some(count: int) -> Examples:
    whole = tiny_data().train(1)
    return Examples(whole.inputs[:count], whole.labels[:count])


# ----- batches


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 3))
def test_every_example_is_in_one_batch_of_each_epoch(
    num_examples: int, batch_size: int, epochs: int
) -> None:
    found = list(batches(num_examples, batch_size, epochs, stream()))
    each = -(-num_examples // batch_size)
    if num_examples % batch_size == 1 and num_examples > 1 and batch_size > 1:
        each -= 1
    assert len(found) == each * epochs
    for epoch in range(epochs):
        mine = torch.cat(found[epoch * each : (epoch + 1) * each])
        assert mine.sort().values.tolist() == list(range(num_examples))


@given(st.integers(2, 60), st.integers(2, 20))
def test_no_batch_holds_a_single_example(num_examples: int, batch_size: int) -> None:
    sizes = [len(batch) for batch in batches(num_examples, batch_size, 1, stream())]
    assert min(sizes) > 1
    assert max(sizes) <= batch_size + 1
    assert set(sizes[:-1]) <= {batch_size}


def test_epochs_have_orders_of_their_own() -> None:
    first, second = batches(30, 30, 2, stream())
    assert first.tolist() != second.tolist() != list(range(30))


# ----- one step by hand


class Scales(nn.Module):
    """Two weights: the logits are the input times each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -0.5]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def scales(local: LocalTraining) -> Task:
    from subflot.channels import ChannelMap

    return Task(Scales(), ChannelMap({"weight": (None,)}, {}), torch.ones(1, 1), local)


ONE = Examples(torch.ones(4, 1), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("pull", "decay", "expected"),
    [
        # softmax of (0.5, -0.5) is (0.7310586, 0.2689414); the gradient is (-, +) 0.2689414.
        (0.0, 0.0, [0.52689414, -0.52689414]),
        # 2 * (weight - 0) is (1, -1).
        (2.0, 0.0, [0.42689414, -0.42689414]),
        # Half of the weight is (0.25, -0.25).
        (0.0, 0.5, [0.50189414, -0.50189414]),
        (2.0, 0.5, [0.40189414, -0.40189414]),
    ],
)
def test_one_step_by_hand(pull: float, decay: float, expected: list[float]) -> None:
    task = scales(LocalTraining(1, 4, 0.1, weight_decay=decay))
    start = {"weight": torch.tensor([0.5, -0.5])}
    zero = {"weight": torch.zeros(2)}
    trained = train_locally(task, start, ONE, stream(), pull=pull, anchor=zero)
    assert_close(trained.weights["weight"], torch.tensor(expected), **FLOAT32)
    assert trained.loss == pytest.approx(0.31326169)  # -log 0.7310586, before the step


def test_gradients_are_shortened_after_the_pull_was_added() -> None:
    task = scales(LocalTraining(1, 4, 0.1, max_norm=0.5))
    start = {"weight": torch.tensor([0.5, -0.5])}
    zero = {"weight": torch.zeros(2)}
    trained = train_locally(task, start, ONE, stream(), pull=2.0, anchor=zero)
    # The gradient (0.731, -0.731) is longer than 0.5; what is left of it is 0.5 / sqrt 2 each.
    step = 0.1 * 0.5 / 2**0.5
    expected = torch.tensor([0.5 - step, -0.5 + step])
    assert_close(trained.weights["weight"], expected, **FLOAT32)


# ----- many steps against autograd


@pytest.mark.parametrize("pull", [0.0, 1.5])
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.01}],
)
def test_the_pull_is_the_gradient_of_the_penalty(settings: dict[str, float], pull: float) -> None:
    task = tiny_task(LocalTraining(3, 5, 0.05, **settings))
    weights = task.narrow(task.initial, 0.5)
    examples = tiny_data().train(2)
    trained = train_locally(task, weights, examples, stream(4), pull=pull)
    expected = by_autograd(task, weights, examples, stream(4), pull, weights)
    for name, tensor in expected.items():
        # Sums of twelve steps, taken in another order.
        assert_close(trained.weights[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_anchor_may_lie_elsewhere() -> None:
    task = tiny_task()
    elsewhere = {name: tensor + 1 for name, tensor in task.initial.items()}
    examples = tiny_data().train(2)
    trained = train_locally(task, task.initial, examples, stream(), pull=0.5, anchor=elsewhere)
    expected = by_autograd(task, task.initial, examples, stream(), 0.5, elsewhere)
    for name, tensor in expected.items():
        assert_close(trained.weights[name], tensor, rtol=1e-4, atol=1e-5)


def test_an_objective_takes_the_place_of_the_loss() -> None:
    task = tiny_task()
    weights = task.initial

    def doubled(model: nn.Module, batch: Examples) -> Tensor:
        return 2 * F.cross_entropy(model(batch.inputs), batch.labels)

    half = tiny_task(LocalTraining(1, 8, LOCAL.learning_rate / 2))
    one = train_locally(half, weights, some(10), stream(), objective=doubled)
    plain = train_locally(task, weights, some(10), stream())
    for name, tensor in plain.weights.items():
        assert_close(one.weights[name], tensor, **FLOAT32)


def test_training_leaves_its_start_and_the_template_alone() -> None:
    task = tiny_task()
    start = {name: tensor.clone() for name, tensor in task.initial.items()}
    train_locally(task, start, some(10), stream(), pull=1.0)
    for name, tensor in task.initial.items():
        assert torch.equal(start[name], tensor)
        assert torch.equal(task.template.state_dict()[name], tensor)


def test_without_epochs_nothing_moves() -> None:
    task = tiny_task(LocalTraining(epochs=0))
    trained = train_locally(task, task.initial, some(5), stream())
    assert trained.loss == 0
    for name, tensor in task.initial.items():
        assert_close(trained.weights[name], tensor, **EXACT)


def test_frozen_parameters_stay() -> None:
    task = tiny_task()
    task.template.get_parameter("conv.weight").requires_grad_(False)
    trained = train_locally(task, task.initial, some(10), stream(), pull=0.5)
    assert torch.equal(trained.weights["conv.weight"], task.initial["conv.weight"])
    assert not torch.equal(trained.weights["head.bias"], task.initial["head.bias"])


# ----- dropout, and the stream of everybody


def test_dropout_follows_the_stream_it_is_given() -> None:
    task = tiny_task(dropout=0.5)

    def trained(seed: int) -> Weights:
        torch.rand(seed + 1)  # Whatever else was drawn before.
        return train_locally(task, task.initial, some(8), stream(seed)).weights

    one, again, other = trained(0), trained(0), trained(1)
    assert all(torch.equal(one[name], tensor) for name, tensor in again.items())
    # One batch of all examples: nothing but dropout tells the seeds apart by more than rounding.
    assert (one["hidden.weight"] - other["hidden.weight"]).abs().max() > 1e-4


def test_the_global_stream_goes_on_as_if_nothing_was_trained() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    task = tiny_task(dropout=0.5)
    train_locally(task, task.initial, some(8), stream())
    assert torch.equal(torch.rand(2), expected)


# ----- clients of few examples


def test_a_client_smaller_than_a_batch_takes_one_step_on_all_it_has() -> None:
    task = tiny_task(LocalTraining(1, 256, 0.1))
    examples = some(5)
    trained = train_locally(task, task.initial, examples, stream()).weights
    model = task.build(task.initial).train()
    F.cross_entropy(model(examples.inputs), examples.labels).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert_close(trained[name], parameter.detach() - 0.1 * parameter.grad, **FLOAT32)


def test_a_single_example_trains_as_if_it_stood_there_twice() -> None:
    task = tiny_task(LocalTraining(2, 8, 0.1))
    alone = train_locally(task, task.initial, some(1), stream()).weights
    twice = Examples(some(1).inputs.repeat(2, 1, 1, 1), some(1).labels.repeat(2))
    expected = train_locally(task, task.initial, twice, stream()).weights
    for name, tensor in expected.items():
        assert_close(alone[name], tensor, **EXACT)
        assert tensor.isfinite().all()


def test_a_single_example_trains_a_norm_that_sees_one_value_per_channel() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = Task.of(model, torch.zeros(2, 3), LocalTraining(2, 8, 0.1))
    one = Examples(torch.ones(1, 3), torch.zeros(1, dtype=torch.int64))
    trained = train_locally(task, task.initial, one, stream()).weights
    assert all(tensor.isfinite().all() for tensor in trained.values())


def test_batches_of_one_that_a_norm_cannot_take_are_explained() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    task = Task.of(model, torch.zeros(2, 3), LocalTraining(1, 1, 0.1))
    three = Examples(torch.ones(3, 3), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SubflotError, match=r"\(batch_size=1\)\n  hint: set batch_size to 2"):
        train_locally(task, task.initial, three, stream())


def test_a_client_without_examples_is_told_so() -> None:
    task = tiny_task()
    with pytest.raises(SubflotError, match="a client without examples cannot train"):
        train_locally(task, task.initial, some(0), stream())


def test_a_client_of_one_class_learns_it() -> None:
    task = tiny_task(LocalTraining(30, 4, 0.1))
    whole = tiny_data().train(1)
    label = int(whole.labels[0])
    mine = whole.labels == label
    trained = train_locally(
        task, task.initial, Examples(whole.inputs[mine], whole.labels[mine]), stream()
    )
    model = task.build(trained.weights).train()
    assert (model(whole.inputs[mine]).argmax(1) == label).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"max_norm": float("inf")}, "max_norm is inf"),
        ({"learning_rate": "0.1"}, r"learning_rate is '0\.1'\n.*a positive number"),
        ({"epochs": 1.5}, r"epochs is 1\.5\n.*a whole number"),
        ({"epochs": True}, "epochs is True"),
    ],
)
def test_settings_that_cannot_train_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SubflotError, match=message):
        LocalTraining(**settings)


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(SubflotError, match=rf"device is '{device}': (.|\n)*hint: `cpu`, or `cuda`"):
        Task.of(nn.Linear(3, 2), torch.zeros(2, 3), device=device)
