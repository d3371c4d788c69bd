"""pFedMe: where the personal model goes, and how the global one follows."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratics import context_of, point_task, points, slope_at
from rounds import CLIENTS, FULL_CLIENTS, arrival, parameters_of, play, tiny_examples, tiny_task
from tolerances import DOUBLE, EXACT, FLOAT32
from torch import Tensor

from subflot.algorithms.base import Download, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.pfedme import PFedMe, PFedMeSub, approach
from subflot.errors import SubflotError
from subflot.task import LocalTraining
from subflot.training import batches


@given(st.floats(0.1, 15), st.floats(-3, 3), st.floats(-3, 3))
def test_many_steps_reach_the_minimum_of_a_quadratic_with_its_leash(
    pull: float, goal: float, anchor: float
) -> None:
    personal = [torch.zeros(1, dtype=torch.float64)]
    held = torch.tensor([anchor], dtype=torch.float64)
    local = LocalTraining(learning_rate=1 / (1 + pull))
    approach(lambda point: [point[0] - goal], personal, [held], pull, 60, local)
    expected = torch.tensor([(goal + pull * anchor) / (1 + pull)], dtype=torch.float64)
    torch.testing.assert_close(personal[0], expected, **DOUBLE)


def test_a_step_with_weight_decay_and_clipping_is_the_one_on_paper() -> None:
    def slope(point: list[Tensor]) -> list[Tensor]:
        return [torch.tensor([6.0])]

    local = LocalTraining(learning_rate=0.5, weight_decay=1.0)
    personal = [torch.tensor([2.0])]
    approach(slope, personal, [torch.tensor([1.0])], 3.0, 1, local)
    assert personal[0].item() == 2 - 0.5 * (6 + 3 * (2 - 1) + 1 * 2)
    personal = [torch.tensor([2.0])]
    clipped = LocalTraining(learning_rate=0.5, max_norm=1.0)
    approach(slope, personal, [torch.tensor([1.0])], 3.0, 1, clipped)
    assert personal[0].item() == pytest.approx(2 - 0.5 * (1 + 3 * (2 - 1)), abs=1e-6)


def test_a_round_is_the_one_of_a_plain_loop_with_the_personal_model_carried_over() -> None:
    task = point_task(LocalTraining(epochs=2, batch_size=2, learning_rate=0.04))
    examples = points(*[(float(i), float(-i)) for i in range(5)])
    context = context_of(examples)
    method = PFedMe(pull_weight=4.0, personal_steps=3, global_rate=0.1)
    upload, memory = method.train(task, Download(task.initial), context)
    draw = context.generator("batches")
    torch.randint(2**63 - 1, (), generator=draw)  # The seed of dropout.
    w = theta = task.initial["at"]
    for chosen in batches(5, 2, 2, draw):
        for _ in range(3):
            theta = theta - 0.04 * (slope_at(theta, examples.inputs[chosen]) + 4 * (theta - w))
        w = w - 0.1 * 4 * (w - theta)
    torch.testing.assert_close(upload.weights["at"], w, **DOUBLE)
    torch.testing.assert_close(memory["at"], theta, **DOUBLE)


def test_a_single_step_on_a_single_batch_is_fedavg_with_the_product_of_the_rates() -> None:
    few = {client.id: tiny_examples(client.id, 6) for client in FULL_CLIENTS}
    rates = LocalTraining(epochs=1, batch_size=6, learning_rate=0.2)
    method = PFedMe(pull_weight=2.0, personal_steps=1, global_rate=0.25)
    own, _ = play(method, tiny_task(rates), FULL_CLIENTS, examples=few)
    slower = LocalTraining(epochs=1, batch_size=6, learning_rate=0.25 * 2.0 * 0.2)
    plain, _ = play(FedAvg(), tiny_task(slower), FULL_CLIENTS, examples=few)
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(own.weights[name], tensor, **FLOAT32)


def test_when_the_rates_multiply_to_one_the_global_copy_is_the_personal_model() -> None:
    task = tiny_task()
    method = PFedMe(pull_weight=4.0, global_rate=0.25)
    upload, memory = method.train(task, Download(task.initial), context_of(tiny_examples(1)))
    for name, tensor in memory.items():
        torch.testing.assert_close(upload.weights[name], tensor, **FLOAT32)


def test_the_personal_model_is_measured_and_is_a_copy_of_its_own() -> None:
    task = tiny_task()
    context, method = context_of(tiny_examples(1)), PFedMe()
    upload, memory = method.train(task, Download(task.initial), context)
    measured = method.trained(task, upload, replace(context, memory=memory))
    for name in (n for n in task.parameters if n.endswith("weight")):
        assert not torch.equal(measured[name], upload.weights[name])
        assert not torch.equal(measured[name], task.initial[name])
        assert measured[name].data_ptr() != upload.weights[name].data_ptr()


def test_rates_are_the_tasks_but_never_overshoot() -> None:
    context, start = context_of(points((1.0, 0.0))), point_task(LocalTraining()).initial
    for learning_rate, eta_p, eta in ((0.03, 0.03, 0.03), (0.5, 0.1, 0.05)):
        task = point_task(LocalTraining(epochs=1, learning_rate=learning_rate))
        default = PFedMe(pull_weight=10.0)
        spelled = PFedMe(pull_weight=10.0, personal_rate=eta_p, global_rate=eta)
        one, other = (m.train(task, Download(start), context)[0] for m in (default, spelled))
        torch.testing.assert_close(one.weights["at"], other.weights["at"], **EXACT)


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (0.5, 3.0), (1.0, 5.0), (2.0, 9.0)])
def test_the_server_goes_a_share_of_the_way_to_the_mean(share: float, expected: float) -> None:
    task = point_task(LocalTraining())
    old = {"at": torch.tensor([1.0, 1.0])}
    uploads = [arrival({"at": torch.full((2,), value)}, n) for value, n in ((2.0, 1), (6.0, 3))]
    after = PFedMe(server_share=share).aggregate(task, State(old), uploads, Turn(1, 1, 0))
    torch.testing.assert_close(after.weights["at"], torch.full((2,), expected), **EXACT)


def test_at_rate_zero_the_form_on_submodels_is_the_full_form() -> None:
    full, _ = play(PFedMe(), tiny_task(), FULL_CLIENTS, rounds=2)
    within, _ = play(PFedMeSub(), tiny_task(), FULL_CLIENTS, rounds=2)
    for name, tensor in full.weights.items():
        torch.testing.assert_close(within.weights[name], tensor, **EXACT)


def test_on_submodels_clients_keep_to_their_budgets_and_others_channels_stay() -> None:
    task, narrow = tiny_task(), [client for client in CLIENTS if client.pruning_rate >= 0.5]
    state, parts = play(PFedMeSub(server_share=0.5), task, narrow)
    for part in parts:
        rate = part.client.pruning_rate
        assert task.cost(part.upload.weights).parameters <= parameters_of(task, rate)
    before, after = task.initial["hidden.weight"], state.weights["hidden.weight"]
    assert torch.equal(after[6:], before[6:])
    assert not torch.equal(after[:6, :16], before[:6, :16])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SubflotError, match="personal_steps is 0"):
        PFedMe(personal_steps=0)
    with pytest.raises(SubflotError, match="global_rate is -1"):
        PFedMe(global_rate=-1)
    with pytest.raises(SubflotError, match=r"global_rate 0\.1 times pull_weight 15"):
        PFedMe(global_rate=0.1)
