"""FlexFL: silent layers are narrowed more, and small models teach large ones."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from rounds import (
    CLIENTS,
    FULL_CLIENTS,
    RATES,
    linear_task,
    parameters_of,
    play,
    tiny_examples,
    tiny_task,
)
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from traced import traced

from subflot.algorithms.base import Client, ClientContext, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.flexfl import (
    POOL,
    TEACHERS,
    ZEROS,
    FlexFL,
    Teacher,
    divergence,
    make_pool,
    percentage_of_zeros,
    stages,
    wanted_shares,
)
from subflot.algorithms.widths import (
    as_pool,
    as_sizes,
    budget_of,
    first_channels,
    is_inside,
    num_parameters,
)
from subflot.channels import take
from subflot.errors import SubflotError
from subflot.models import MODELS
from subflot.task import Task

TASK = replace(tiny_task(), proxy=tiny_examples(5, 20))
TURN = Turn(1, 1, 0)
METHOD = FlexFL(proxy_epochs=2)
WHOLE = {space: TASK.channels.sizes[space] for space in TASK.channels.prunable}
ZERO = dict.fromkeys(WHOLE, 0.0)


# ----- how wide each layer should be


def test_zeros_are_counted_where_the_next_layer_reads() -> None:
    task = linear_task(2, 2, 3, 1)
    first, second = task.channels.prunable
    weights = {
        **task.initial,
        "0.weight": torch.eye(2),
        "0.bias": torch.zeros(2),
        "2.weight": torch.zeros(3, 2),
        "2.bias": torch.full((3,), -1.0),
    }
    # Of four entries one is not silenced by the rectifier; behind it all are.
    zeros = percentage_of_zeros(task, weights, torch.tensor([[1.0, -1.0], [-1.0, -1.0]]))
    assert zeros == {first: 0.75, second: 1.0}


def test_zeros_of_a_stage_are_the_mean_over_the_layers_that_read_it() -> None:
    zeros = percentage_of_zeros(TASK, TASK.initial, tiny_examples(3, 10).inputs)
    assert zeros["stem"] == zeros["inner"] != zeros["hidden"]
    assert all(0 <= share <= 1 for share in zeros.values())


def test_what_is_never_rectified_does_not_count_in_its_stage() -> None:
    class Bottleneck(nn.Module):
        """Between the blocks nothing is rectified, as in MobileNetV2."""

        def __init__(self) -> None:
            super().__init__()
            self.stem, self.expand = nn.Linear(3, 4), nn.Linear(4, 6)
            self.shrink, self.head = nn.Linear(6, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            x = x + self.shrink(torch.relu(self.expand(x)))
            logits: Tensor = self.head(x)
            return logits

    torch.manual_seed(0)
    net, inputs = Bottleneck(), torch.randn(10, 3)
    task = Task.of(net, inputs)
    hidden = torch.relu(net.expand(net.stem(inputs)))
    share = (hidden == 0).float().mean().item()
    assert 0.1 < share < 0.9
    zeros = percentage_of_zeros(task, task.initial, inputs)
    assert zeros == {"stem": pytest.approx(share), "expand": pytest.approx(share)}


def test_a_network_that_rectifies_nothing_has_no_zeros() -> None:
    model, channels, example = traced("own attention")
    task = Task(model, channels, example[0])
    assert set(percentage_of_zeros(task, task.initial, example[0]).values()) == {0.0}


def test_a_residual_sum_is_one_stage_with_the_layers_in_its_blocks() -> None:
    assert stages(TASK.channels) == [("stem", "inner"), ("hidden",)]
    net = MODELS["resnet18"]
    channels = Task.of(net.model(), net.example()).channels
    assert [len(stage) for stage in stages(channels)] == [3, 3, 3, 3]
    assert [stage[0] for stage in stages(channels)] == [
        "conv1",
        "layer2.0.conv1",
        "layer3.0.conv1",
        "layer4.0.conv1",
    ]


def test_silent_and_large_layers_are_wanted_less_by_hand() -> None:
    # Weights that make the stages: 8 * 9 + 4 * 72 + 8 * 36 = 648, and 12 * 32 = 384.
    shares = wanted_shares(TASK, {"stem": 0.5, "inner": 0.5, "hidden": 0.5})
    assert shares["stem"] == shares["inner"] == 0.5
    assert shares["hidden"] == pytest.approx(1 - 0.5 * math.log(384) / math.log(648))
    more = wanted_shares(TASK, {"stem": 0.5, "inner": 0.5, "hidden": 0.6})
    assert more["hidden"] < shares["hidden"]


def test_layers_wanted_alike_are_narrowed_alike() -> None:
    task = linear_task(8, 8, 8, 8, 2)
    for silence in (0.0, 0.3):
        shares = wanted_shares(task, dict.fromkeys(task.channels.prunable, silence))
        for sizes in make_pool(task, shares, [0.75, 0.5]):
            assert len(set(sizes.values())) == 1


def test_members_are_nested_and_as_large_as_their_budgets_allow() -> None:
    shares = {"stem": 0.6, "inner": 0.6, "hidden": 0.9}
    pool = make_pool(TASK, shares, [0.75, 0.5, 0.25])
    counts = [num_parameters(TASK, sizes) for sizes in pool]
    assert counts == sorted(set(counts))
    assert pool[-1] == WHOLE
    for sizes, larger in pairwise(pool):
        assert is_inside(sizes, larger)
    for sizes, count, rate in zip(pool, counts, (0.75, 0.5, 0.25), strict=False):
        assert count <= budget_of(TASK, rate)
        assert sizes["hidden"] / 12 >= sizes["stem"] / 8
        # A channel more for each space is beyond the budget.
        wider = {space: min(WHOLE[space], size + 1) for space, size in sizes.items()}
        assert num_parameters(TASK, wider) > budget_of(TASK, rate)


def test_a_layer_that_is_always_silent_keeps_a_channel() -> None:
    pool = make_pool(TASK, {"stem": 0.9, "inner": 0.9, "hidden": 0.0}, [0.5])
    assert pool[0]["hidden"] == 1


def test_without_proxy_data_the_error_says_what_to_set() -> None:
    with pytest.raises(SubflotError, match="needs examples on the server") as caught:
        METHOD.start(tiny_task(), CLIENTS, Turn(0, 1, 0))
    assert "proxy_share" in caught.value.hint


def test_the_preparation_depends_on_the_seed_and_leaves_the_model_as_it_was() -> None:
    one, same, other = (METHOD.start(TASK, CLIENTS, Turn(0, 1, seed)) for seed in (0, 0, 1))
    torch.testing.assert_close(one.weights, dict(TASK.initial), **EXACT)
    assert torch.equal(one.extras[ZEROS], same.extras[ZEROS])
    assert not torch.equal(one.extras[ZEROS], other.extras[ZEROS])
    longer = FlexFL(proxy_epochs=6).start(TASK, CLIENTS, Turn(0, 1, 0))
    assert not torch.equal(one.extras[ZEROS], longer.extras[ZEROS])


def test_a_single_proxy_example_is_enough() -> None:
    task = replace(TASK, proxy=tiny_examples(0, 1))
    zeros = METHOD.start(task, CLIENTS, Turn(0, 1, 0)).extras[ZEROS]
    assert zeros.isfinite().all()


# ----- distillation


def test_divergence_by_hand() -> None:
    logits, taught = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0) * 2, 0.0]])
    # At temperature 2 the teacher says 3/4 and 1/4, the model a half each; mean over two classes.
    kl = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(divergence(logits, [taught], 2.0)) == pytest.approx(4 * kl / 2, rel=1e-5)
    both = divergence(logits, [taught, logits], 2.0)
    assert float(both) == pytest.approx(4 * kl / 2 / 2, rel=1e-5)


def test_a_teacher_follows_the_model_that_holds_it() -> None:
    sizes = {"stem": 4, "inner": 2, "hidden": 5}
    x = tiny_examples(0).inputs
    model = TASK.build(TASK.initial).train()
    teacher = Teacher(TASK, TASK.channels, sizes, TASK.initial)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    now = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    part = TASK.build(take(now, TASK.channels, first_channels(sizes))).train()
    torch.testing.assert_close(teacher.logits(model, x), part(x).detach(), **FLOAT32)
    torch.testing.assert_close(dict(model.state_dict()), now, **EXACT)


def test_a_teacher_drops_nothing() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)]
    task = Task.of(nn.Sequential(*layers), torch.randn(2, 5))
    model, x = task.build(task.initial).train(), torch.randn(6, 5)
    teacher = Teacher(task, task.channels, dict(task.channels.sizes), task.initial)
    answers = [teacher.logits(model, x) for _ in range(2)]
    model[3].eval()  # type: ignore[index]
    # Normalised by the batch, as a model in training is.
    for answer in answers:
        torch.testing.assert_close(answer, model(x).detach(), **FLOAT32)


def test_a_model_that_is_its_own_teacher_is_not_pulled() -> None:
    x = tiny_examples(0).inputs
    model = TASK.build(TASK.initial).train()
    taught = Teacher(TASK, TASK.channels, WHOLE, TASK.initial).logits(model, x)
    assert abs(divergence(model(x), [taught], 3.0).item()) < 1e-7


def test_the_loss_and_its_gradient_take_the_teachers_as_they_are() -> None:
    task = TASK
    pool = as_pool(
        task.channels,
        [{"stem": 2, "inner": 1, "hidden": 3}, {"stem": 4, "inner": 2, "hidden": 6}, WHOLE],
    )
    state = State(task.initial, {POOL: pool})
    examples, client = tiny_examples(1), Client(1)
    download = METHOD.download(task, state, client, TURN)
    assert len(download.extras[TEACHERS]) == 2
    context = ClientContext(client, examples, {}, TURN)
    objective = METHOD.objective(task, download, context)
    assert objective is not None
    model, second = (task.build(task.initial).train() for _ in range(2))
    objective(model, examples).backward()

    def constant(row: Tensor) -> Tensor:
        part = take(task.initial, task.channels, first_channels(as_sizes(task.channels, row)))
        answer: Tensor = task.build(part).train()(examples.inputs)
        return answer.detach()

    logits = second(examples.inputs)
    loss = F.cross_entropy(logits, examples.labels)
    for row in pool[:2]:
        wanted = F.softmax(constant(row) / 3, 1)
        apart = wanted * (wanted.log() - F.log_softmax(logits / 3, 1))
        loss = loss + 10 / 2 * 9 * apart.mean()
    loss.backward()
    for one, other in zip(model.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_clients_get_the_largest_member_that_fits_and_the_smaller_ones_as_teachers() -> None:
    state, parts = play(METHOD, TASK)
    pool = [as_sizes(TASK.channels, row) for row in state.extras[POOL]]
    for part in parts:
        rate = part.client.pruning_rate
        place = (0.75, 0.5, 0.25, 0.0).index(rate)
        assert {space: len(index) for space, index in part.upload.kept.items()} == pool[place]
        assert TASK.cost(part.upload.weights).parameters <= parameters_of(TASK, rate)
        teachers = part.download.extras.get(TEACHERS, ())
        assert [as_sizes(TASK.channels, row) for row in teachers] == pool[:place]


def test_without_distillation_a_client_trains_as_ever() -> None:
    silent = FlexFL(proxy_epochs=2, distillation_weight=0.0)
    state, parts = play(silent, TASK)
    assert all(not part.download.extras for part in parts)
    taught, _ = play(METHOD, TASK)
    assert not torch.equal(state.weights["head.bias"], taught.weights["head.bias"])


def test_full_clients_reproduce_fedavg_to_the_bit_and_need_no_proxy() -> None:
    flexible, _ = play(METHOD, tiny_task(), FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(flexible.weights, plain.weights, **EXACT)


def test_a_client_whose_rate_rose_above_all_members_stays_within_its_budget() -> None:
    state = METHOD.start(TASK, CLIENTS[:2], Turn(0, 1, 0))
    kept = METHOD.kept(TASK, state, CLIENTS[3], TURN)
    sizes = {space: len(index) for space, index in kept.items()}
    assert num_parameters(TASK, sizes) <= budget_of(TASK, RATES[3])


def test_a_temperature_of_zero_is_refused() -> None:
    with pytest.raises(SubflotError, match="temperature is 0"):
        FlexFL(temperature=0)
