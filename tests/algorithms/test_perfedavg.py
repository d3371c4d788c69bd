"""Per-FedAvg: the gradient after a step ahead, and what curvature adds to it."""

from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratics import HESSIAN, context_of, point_task, points, slope_at
from rounds import CLIENTS, FULL_CLIENTS, parameters_of, play, tiny_examples, tiny_task
from tolerances import DOUBLE, EXACT, FLOAT32

from subflot.algorithms import perfedavg
from subflot.algorithms.base import Download
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.perfedavg import PerFedAvg, PerFedAvgSub, curved, divided
from subflot.errors import SubflotError
from subflot.task import LocalTraining
from subflot.training import batches
from subflot.training.local import num_batches

Curvature = Literal["first-order", "hessian-free"]
ONE_STEP = LocalTraining(epochs=1, batch_size=8, learning_rate=0.1)


@given(
    st.lists(st.floats(-2, 2), min_size=9, max_size=9),
    st.sampled_from([1e-3, 0.1, 10.0]),
)
def test_the_central_difference_is_exact_on_a_quadratic_at_any_distance(
    entries: list[float], probe: float
) -> None:
    root = torch.tensor(entries, dtype=torch.float64).view(3, 3)
    hessian = root.T @ root
    here, direction = torch.ones(3, dtype=torch.float64), torch.arange(3, dtype=torch.float64)
    found = curved(lambda point: [hessian @ point[0] - 1], [here], [direction], probe)
    torch.testing.assert_close(found[0], hessian @ direction, **DOUBLE)


@pytest.mark.parametrize("curvature", ["first-order", "hessian-free"])
def test_one_step_on_a_quadratic_is_the_one_on_paper(curvature: Curvature) -> None:
    task, examples = point_task(ONE_STEP), points((1.0, 0.0), (0.0, 2.0), (4.0, 1.0))
    method = PerFedAvg(inner_rate=0.05, curvature=curvature)
    upload, _ = method.train(task, Download(task.initial), context_of(examples))
    start = task.initial["at"]
    ahead = start - 0.05 * slope_at(start, examples.inputs)
    outer = slope_at(ahead, examples.inputs)
    if curvature == "hessian-free":
        outer = outer - 0.05 * HESSIAN @ outer
    torch.testing.assert_close(upload.weights["at"], start - 0.1 * outer, **DOUBLE)


@pytest.mark.parametrize(("curvature", "parts"), [("first-order", 2), ("hessian-free", 3)])
def test_the_steps_ahead_beside_and_outside_use_different_examples(
    curvature: Curvature, parts: int
) -> None:
    task = point_task(LocalTraining(epochs=1, batch_size=3, learning_rate=0.1))
    examples = points(*[(float(i), float(i * i)) for i in range(3 * parts)])
    context = context_of(examples)
    method = PerFedAvg(inner_rate=0.05, curvature=curvature, match="examples")
    upload, _ = method.train(task, Download(task.initial), context)
    draw = context.generator("batches")
    torch.randint(2**63 - 1, (), generator=draw)  # The seed of dropout.
    (order,) = batches(len(examples), 3 * parts, 1, draw)
    ahead, judged = examples.inputs[order[:3]], examples.inputs[order[3:6]]
    start = task.initial["at"]
    outer = slope_at(start - 0.05 * slope_at(start, ahead), judged)
    if curvature == "hessian-free":
        outer = outer - 0.05 * HESSIAN @ outer
    torch.testing.assert_close(upload.weights["at"], start - 0.1 * outer, **DOUBLE)


def test_a_batch_is_divided_without_loss() -> None:
    batch = tiny_examples(0, 9)
    halves = divided(batch, 2, 4)
    assert [len(half) for half in halves] == [5, 4]
    assert torch.equal(torch.cat([half.inputs for half in halves]), batch.inputs)
    assert torch.equal(torch.cat([half.labels for half in halves]), batch.labels)


@pytest.mark.parametrize(
    ("count", "parts", "batch_size", "sizes"),
    [
        (7, 2, 4, [7, 7]),  # Less than four each.
        (15, 2, 16, [15, 15]),  # Less than half a batch each.
        (16, 2, 16, [8, 8]),
        (11, 3, 4, [11, 11, 11]),
        (4, 2, 2, [2, 2]),  # Batches that are this small by choice.
    ],
)
def test_too_few_examples_serve_whole_for_each_purpose(
    count: int, parts: int, batch_size: int, sizes: list[int]
) -> None:
    found = divided(tiny_examples(0, count), parts, batch_size)
    assert [len(part) for part in found] == sizes


def test_without_a_step_ahead_it_is_fedavg_on_the_batches_that_judge() -> None:
    task = point_task(LocalTraining(epochs=2, batch_size=2, learning_rate=0.1))
    examples = points(*[(float(i), float(-i)) for i in range(8)])
    context = context_of(examples)
    method = PerFedAvg(inner_rate=0.0, match="examples")
    upload, _ = method.train(task, Download(task.initial), context)
    draw = context.generator("batches")
    torch.randint(2**63 - 1, (), generator=draw)
    at = task.initial["at"]
    for chosen in batches(8, 4, 2, draw):
        at = at - 0.1 * slope_at(at, examples.inputs[chosen[2:]])
    torch.testing.assert_close(upload.weights["at"], at, **DOUBLE)


def test_without_a_step_ahead_and_with_a_batch_for_each_client_it_is_fedavg() -> None:
    few = {client.id: tiny_examples(client.id, 3) for client in FULL_CLIENTS}
    task = tiny_task(LocalTraining(epochs=1, batch_size=3, learning_rate=0.1))
    own, _ = play(PerFedAvg(inner_rate=0.0), task, FULL_CLIENTS, rounds=2, examples=few)
    plain, _ = play(FedAvg(), task, FULL_CLIENTS, rounds=2, examples=few)
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(own.weights[name], tensor, **FLOAT32)


@pytest.mark.parametrize("curvature", ["first-order", "hessian-free"])
def test_running_statistics_see_each_step_once(curvature: Curvature) -> None:
    task = tiny_task(LocalTraining(epochs=2, batch_size=4, learning_rate=0.1))
    context = context_of(tiny_examples(0, 24))
    method = PerFedAvg(curvature=curvature, match="examples")
    upload, _ = method.train(task, Download(task.initial), context)
    steps = 2 * 24 // (8 if curvature == "first-order" else 12)
    assert upload.weights["norm.num_batches_tracked"] == steps


@pytest.mark.parametrize("curvature", ["first-order", "hessian-free"])
@pytest.mark.parametrize(("count", "epochs"), [(3, 2), (24, 1), (30, 3), (33, 2)])
def test_a_round_has_as_many_steps_as_one_of_fedavg(
    count: int, epochs: int, curvature: Curvature
) -> None:
    task = tiny_task(LocalTraining(epochs=epochs, batch_size=4, learning_rate=0.1))
    context = context_of(tiny_examples(0, count))
    plain, _ = FedAvg().train(task, Download(task.initial), context)
    upload, _ = PerFedAvg(curvature=curvature).train(task, Download(task.initial), context)
    steps, wanted = (int(u.weights["norm.num_batches_tracked"]) for u in (upload, plain))
    an_epoch = num_batches(count, 4 * (2 if curvature == "first-order" else 3))
    assert abs(steps - wanted) <= an_epoch / 2


def test_what_is_measured_is_one_full_step_from_what_was_received_or_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(perfedavg, "BATCH", 2)  # Pieces of two and of three.
    task = point_task(ONE_STEP)
    examples = points((1.0, 0.0), (0.0, 2.0), (4.0, 1.0), (2.0, 2.0), (9.0, 0.0))
    method, context = PerFedAvg(inner_rate=0.05), context_of(examples)
    download = Download(task.initial)
    upload, _ = method.train(task, download, context)
    for weights, measured in (
        (download.weights, method.extracted(task, download, context)),
        (upload.weights, method.trained(task, upload, context)),
    ):
        before = weights["at"].clone()
        step = 0.05 * slope_at(weights["at"], examples.inputs)
        torch.testing.assert_close(measured["at"], weights["at"] - step, **DOUBLE)
        assert torch.equal(weights["at"], before)


def test_the_step_ahead_is_as_long_as_the_outer_one_unless_it_is_set() -> None:
    task, examples = point_task(ONE_STEP), points((1.0, 0.0))
    context, download = context_of(examples), Download(task.initial)
    default = PerFedAvg().extracted(task, download, context)
    given_rate = PerFedAvg(inner_rate=0.1).extracted(task, download, context)
    torch.testing.assert_close(default["at"], given_rate["at"], **EXACT)


def test_at_rate_zero_the_form_on_submodels_is_the_full_form() -> None:
    full, _ = play(PerFedAvg(), tiny_task(), FULL_CLIENTS, rounds=2)
    within, _ = play(PerFedAvgSub(), tiny_task(), FULL_CLIENTS, rounds=2)
    for name, tensor in full.weights.items():
        torch.testing.assert_close(within.weights[name], tensor, **EXACT)


def test_on_submodels_clients_keep_to_their_budgets_and_others_channels_stay() -> None:
    task, narrow = tiny_task(), [client for client in CLIENTS if client.pruning_rate >= 0.5]
    state, parts = play(PerFedAvgSub(), task, narrow)
    for part in parts:
        rate = part.client.pruning_rate
        assert task.cost(part.upload.weights).parameters <= parameters_of(task, rate)
    before, after = task.initial["hidden.weight"], state.weights["hidden.weight"]
    assert torch.equal(after[6:], before[6:])
    assert not torch.equal(after[:6, :16], before[:6, :16])


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SubflotError, match="inner_rate is -1"):
        PerFedAvg(inner_rate=-1)
    with pytest.raises(SubflotError, match="probe is 0"):
        PerFedAvg(probe=0)
