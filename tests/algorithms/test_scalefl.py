"""ScaleFL: parts by depth and width, and exits that imitate the deepest."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from chains import chain_task
from hypothesis import given
from hypothesis import strategies as st
from quadratics import context_of
from rounds import CLIENTS, FULL_CLIENTS, RATES, play, tiny_examples, tiny_task
from tolerances import EXACT, FLOAT32
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.base import Client, Download, Turn
from subflot.algorithms.exits import ExitTask, exits_of, num_parameters, with_exits
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.scalefl import ScaleFL, deeper_count_more, imitation
from subflot.algorithms.scaler import scaled
from subflot.errors import SubflotError

LATE = Turn(9, 10, 0)


@cache
def prepared() -> ExitTask:
    return with_exits(ScaleFL().prepare(chain_task(4, 8, 8, 12, 12, 16)))


def test_exits_lie_in_the_later_half() -> None:
    # Six blocks: 0.56, 0.71 and 0.85 of them are nearest to 3, 4 and 5.
    task = prepared()
    assert getattr(task.template, "places") == ("8", "11", "14")  # noqa: B009
    assert task.num_exits == 4


def test_a_level_has_a_depth_and_the_widest_part_that_fits() -> None:
    method, task = ScaleFL(), prepared()
    sizes = [method.size(task, rate) for rate in RATES]
    assert sizes[0] == (4, 0.0)
    assert [depth for depth, _ in sizes] == [4, 3, 2, 1]
    for rate, (depth, narrowed) in zip(RATES[1:], sizes[1:], strict=True):
        budget = task.budget(rate)
        assert num_parameters(task, task.names(depth), narrowed) <= budget
        assert not narrowed or num_parameters(task, task.names(depth), narrowed - 1 / 32) > budget


@given(st.floats(0.01, 0.7))
def test_every_rate_keeps_to_its_budget(rate: float) -> None:
    task = prepared()
    depth, narrowed = ScaleFL().size(task, rate)
    assert num_parameters(task, task.names(depth), narrowed) <= task.budget(rate)


def test_parts_are_nested_and_the_same_in_every_round() -> None:
    method, task = ScaleFL(), prepared()
    state = method.start(task, [], Turn(0, 1, 0))
    first, later = (
        [method.download(task, state, Client(n, rate), turn) for n, rate in enumerate(RATES)]
        for turn in (Turn(1, 10, 0), LATE)
    )
    for one, other in zip(first, later, strict=True):
        for space, index in one.kept.items():
            assert torch.equal(index, other.kept[space])
            assert torch.equal(index, torch.arange(len(index)))
    assert [set(d.weights) for d in first] == [task.names(depth) for depth in (4, 3, 2, 1)]


def test_what_a_level_does_not_reach_is_left_to_the_bit() -> None:
    method, narrow = ScaleFL(), [c for c in CLIENTS if c.pruning_rate >= 0.5]
    plain = chain_task(4, 8, 8, 12, 12, 16)
    task = with_exits(method.prepare(plain))
    state, parts = play(method, plain, narrow)
    assert [set(part.upload.weights) for part in parts] == [task.names(2), task.names(1)]
    for name, tensor in task.initial.items():
        if name not in task.names(2):
            torch.testing.assert_close(state.weights[name], tensor, **EXACT)
    # Of a layer that only one client holds, what is beyond its width.
    only = parts[0].upload.weights["body.9.weight"]
    rows, columns = only.shape[:2]
    after = state.weights["body.9.weight"]
    assert rows < len(after)
    torch.testing.assert_close(after[:rows, :columns], only, **FLOAT32)
    assert torch.equal(after[rows:], task.initial["body.9.weight"][rows:])


def test_with_one_exit_and_full_width_it_is_fedavg() -> None:
    own, _ = play(ScaleFL(exits=1), tiny_task(), FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), tiny_task(), FULL_CLIENTS, rounds=2)
    assert own.weights.keys() == plain.weights.keys()
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(own.weights[name], tensor, **EXACT)


# ----- the loss


@given(st.floats(0, 5, width=32), st.integers(1, 6))
def test_equal_losses_have_themselves_as_mean(loss: float, exits: int) -> None:
    found = deeper_count_more([torch.tensor(loss)] * exits)
    torch.testing.assert_close(found, torch.tensor(loss), **FLOAT32)


def test_the_third_exit_counts_three_times() -> None:
    losses = [torch.tensor(value) for value in (6.0, 3.0, 1.0)]
    assert float(deeper_count_more(losses)) == (6 + 2 * 3 + 3 * 1) / 6


def loss_of(method: ScaleFL, depth: int, turn: Turn) -> tuple[float, list[torch.Tensor]]:
    """What a client of some depth makes small, and the logits of its exits."""
    task, examples = prepared(), tiny_examples(0, 5)
    context = replace(context_of(examples), turn=turn)
    weights, _ = task.part(task.initial, depth, 0.0)
    with task.lend(weights) as model:
        model.eval()
        loss = float(method.objective(task, Download({}), context)(model, examples).detach())
        return loss, [logits.detach() for logits in exits_of(model, examples.inputs)]


def test_a_client_of_the_first_level_has_the_plain_loss() -> None:
    loss, (logits,) = loss_of(ScaleFL(distillation=9.0), 1, LATE)
    assert loss == pytest.approx(float(F.cross_entropy(logits, tiny_examples(0, 5).labels)))


def test_two_exits_learn_by_the_formula_of_the_paper() -> None:
    method = ScaleFL(distillation=0.5, temperature=2.0)
    loss, (shallow, deep) = loss_of(method, 2, LATE)
    labels = tiny_examples(0, 5).labels
    p, q = (deep / 2).softmax(1), (shallow / 2).softmax(1)
    divergence = float((p * (p.log() - q.log())).sum(1).mean())
    first = float(F.cross_entropy(shallow, labels)) + 0.5 * 4 * divergence
    second = float(F.cross_entropy(deep, labels))
    assert loss == pytest.approx((first + 2 * second) / 3, rel=1e-5)


def test_imitation_begins_after_the_warm_up() -> None:
    strong, none = ScaleFL(distillation=100.0), ScaleFL(distillation=0.0)
    # A quarter of twelve rounds: the first four, counted from nought to three.
    differs = [
        loss_of(strong, 2, Turn(n, 12, 0))[0] != loss_of(none, 2, Turn(n, 12, 0))[0]
        for n in (1, 4, 5, 12)
    ]
    assert differs == [False, False, True, True]


def test_imitation_is_zero_in_agreement_and_moves_the_student_alone() -> None:
    draw = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(4, 3, generator=draw, requires_grad=True) for _ in range(2))
    agreed = imitation(student.detach(), student.detach() + 1, 3.0)
    assert float(agreed) == pytest.approx(0, abs=1e-5)
    imitation(student, teacher, 3.0).backward()
    assert teacher.grad is None
    expected = 3 * ((student / 3).softmax(1) - (teacher / 3).softmax(1)) / 4
    assert student.grad is not None
    torch.testing.assert_close(student.grad, expected.detach(), **FLOAT32)


def test_the_scaler_divides_by_the_width_of_the_part_in_training_alone() -> None:
    task, examples = prepared(), tiny_examples(0, 5)
    client = Client(0, 0.5)
    method = ScaleFL(scaler=True, distillation=0.0)
    depth, rate = method.size(task, client.pruning_rate)
    assert rate > 0
    weights, _ = task.part(task.initial, depth, rate)
    context = replace(context_of(examples), client=client, turn=LATE)
    with task.lend(weights) as model:
        model.train()
        found = method.objective(task, Download({}), context)(model, examples)
        with scaled(model, task.channels, 1 - rate):
            losses = [F.cross_entropy(e, examples.labels) for e in exits_of(model, examples.inputs)]
        plain = ScaleFL(distillation=0.0).objective(task, Download({}), context)(model, examples)
    torch.testing.assert_close(found, deeper_count_more(losses), **FLOAT32)
    assert float((found - plain).detach().abs()) > 1e-6


@pytest.mark.parametrize(
    "settings", [{"exits": 0}, {"distillation": -1.0}, {"first_exit": 2.0}, {"warm_up": -0.1}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    (name,) = settings
    with pytest.raises(SubflotError, match=f"{name} is"):
        ScaleFL(**settings)  # type: ignore[arg-type]
