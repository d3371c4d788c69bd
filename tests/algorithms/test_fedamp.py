"""FedAMP: who counts how much in a client's mixture, and the pull to it."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratics import context_of, point_task, points
from rounds import CLIENTS, FULL_CLIENTS, parameters_of, play, tiny_examples, tiny_task
from tolerances import EXACT, FLOAT32
from torch import Tensor

from subflot.algorithms.base import Client, Download, State, Turn
from subflot.algorithms.fedamp import FedAMP, FedAMPSub
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.personal import overlap
from subflot.channels import ChannelMap
from subflot.channels.space import Segment
from subflot.errors import SubflotError
from subflot.task import LocalTraining, Task
from subflot.training import train_locally
from subflot.weights import Weights

TURN = Turn(2, 10, 0)


class Vector(torch.nn.Module):
    """Two numbers, to be mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.w


def vector_task() -> Task:
    return Task(Vector(), ChannelMap({"w": (None,)}, {}), torch.zeros(1, 2))


def mixture(method: FedAMP, *models: tuple[float, float], client: int = 0) -> Tensor:
    """What a client receives when these were the last uploads of clients 0, 1, ..."""
    history = {number: {"w": torch.tensor(model)} for number, model in enumerate(models)}
    download = method.download(vector_task(), State({}, {}, history), Client(client), TURN)
    return download.weights["w"]


def test_a_mixture_by_cosine_is_the_one_on_paper() -> None:
    # Cosines with (1, 0) are 0 and 1 / sqrt 2; a fifth is the client's own.
    method = FedAMP(sigma=2.0, own_share=0.2)
    one, other = math.exp(0), math.exp(2 / math.sqrt(2))
    total = one + other
    expected = [0.2 + 0.8 * other * 3 / total, 0.8 * (one * 2 + other * 3) / total]
    found = mixture(method, (1.0, 0.0), (0.0, 2.0), (3.0, 3.0))
    torch.testing.assert_close(found, torch.tensor(expected), **FLOAT32)


@pytest.mark.parametrize(("step", "is_rescaled"), [(0.5, False), (100.0, True)])
def test_a_mixture_by_distance_is_the_one_on_paper(step: float, is_rescaled: bool) -> None:
    method = FedAMP(attention="distance", sigma=2.0, step=step)
    # Squared distances from (1, 0) to (1, 2) and to (1, 1).
    shares = [step * math.exp(-away / 2) / 2 for away in (4.0, 1.0)]
    if is_rescaled:
        shares = [share / sum(shares) for share in shares]
    found = mixture(method, (1.0, 0.0), (1.0, 2.0), (1.0, 1.0))
    expected = torch.tensor([1.0, 2 * shares[0] + shares[1]])
    torch.testing.assert_close(found, expected, **FLOAT32)


numbers = st.floats(-2, 2, allow_subnormal=False)


@given(
    st.lists(st.tuples(numbers, numbers), min_size=2, max_size=5),
    st.sampled_from(["cosine", "distance"]),
    st.sampled_from([1.0, 30.0]),
)
def test_shares_are_not_negative_and_add_up_to_one(
    models: list[tuple[float, float]], attention: str, sigma: float
) -> None:
    method = FedAMP(attention=attention, sigma=sigma, step=1.0)  # type: ignore[arg-type]
    found = mixture(method, *models)
    lows, highs = torch.tensor(models).amin(0), torch.tensor(models).amax(0)
    assert (found >= lows - 1e-5).all()
    assert (found <= highs + 1e-5).all()
    moved = mixture(FedAMP(sigma=0.0), *[(a + 1, b + 1) for a, b in models])
    torch.testing.assert_close(moved, mixture(FedAMP(sigma=0.0), *models) + 1, **FLOAT32)


def test_equal_models_are_left_as_they_are() -> None:
    same = (0.3, -0.7)
    torch.testing.assert_close(mixture(FedAMP(), same, same, same), torch.tensor(same), **FLOAT32)


@pytest.mark.parametrize("attention", ["cosine", "distance"])
def test_who_is_closer_counts_more(attention: str) -> None:
    method = FedAMP(attention=attention, sigma=1.0, step=0.1)  # type: ignore[arg-type]
    found = mixture(method, (1.0, 0.0), (0.9, 0.2), (0.2, -0.9))
    mean = mixture(FedAMP(sigma=0.0), (1.0, 0.0), (0.9, 0.2), (0.2, -0.9))
    assert found[1] > mean[1]


def test_alone_a_client_goes_on_from_its_own_model() -> None:
    torch.testing.assert_close(mixture(FedAMP(), (0.4, 0.5)), torch.tensor([0.4, 0.5]), **EXACT)


def test_who_joins_receives_the_mean_of_the_others_and_at_first_the_initial_model() -> None:
    method = FedAMP()
    joined = mixture(method, (1.0, 0.0), (3.0, 4.0), client=7)
    torch.testing.assert_close(joined, torch.tensor([2.0, 2.0]), **FLOAT32)
    first = mixture(method, client=7)
    assert torch.equal(first, vector_task().initial["w"])


def test_with_equal_shares_and_no_pull_it_is_fedavg() -> None:
    equal = {client.id: tiny_examples(client.id, 8) for client in FULL_CLIENTS}
    method, task = FedAMP(sigma=0.0, pull_weight=0.0), tiny_task()
    state, parts = play(method, task, FULL_CLIENTS, examples=equal)
    history = {part.client.id: part.upload.weights for part in parts}
    plain, _ = play(FedAvg(), task, FULL_CLIENTS, examples=equal)
    for client in FULL_CLIENTS:
        download = method.download(task, State({}, {}, history), client, TURN)
        for name, tensor in plain.weights.items():
            if tensor.is_floating_point():
                torch.testing.assert_close(download.weights[name], tensor, **FLOAT32)
    assert not state.weights


def test_the_pull_is_the_gradient_of_the_papers_penalty() -> None:
    local = LocalTraining(epochs=1, batch_size=8, learning_rate=0.1)
    # The loss does not depend on the model: what is left is the penalty.
    task = replace(point_task(local), loss=lambda ways, labels: 0 * ways.sum())
    method, context = FedAMP(pull_weight=3.0, step=2.0), context_of(points((0.0, 0.0)))
    start, anchor = torch.tensor([1.0, -2.0]).double(), torch.tensor([0.5, 0.25]).double()
    trained = train_locally(
        task,
        {"at": start},
        context.examples,
        context.generator("batches"),
        pull=method.pull(task, Download({"at": anchor}), context),
        anchor={"at": anchor},
    )

    def penalty(w: Tensor) -> float:
        return 3.0 / (2 * 2.0) * float((w - anchor).square().sum())

    small = 1e-4 * torch.eye(2).double()
    slope = torch.tensor([(penalty(start + e) - penalty(start - e)) / 2e-4 for e in small])
    torch.testing.assert_close((start - trained.weights["at"]) / 0.1, slope.double(), **FLOAT32)
    torch.testing.assert_close(slope.double(), 1.5 * (start - anchor), **FLOAT32)


def test_the_step_decays_and_the_pull_grows_up_to_where_it_would_overshoot() -> None:
    method, task = FedAMP(), tiny_task()
    assert [method.step_in(k) for k in (1, 30, 31, 61)] == pytest.approx([1e4, 1e4, 1e3, 1e2])
    pulls = [
        method.pull(task, Download({}), context_of(tiny_examples(0), round=k)) for k in (1, 31, 900)
    ]
    assert pulls == pytest.approx([1e-4, 1e-3, 1 / task.local.learning_rate])


# ----- on submodels


def two_axes() -> ChannelMap:
    outputs, inputs = (Segment("out"),), (Segment("in", repeat=2),)
    return ChannelMap({"w": (outputs, inputs), "b": (outputs,)}, {"out": 4, "in": 3})


def model(out: int, inputs: int, value: float) -> Weights:
    return {"w": torch.full((out, 2 * inputs), value), "b": torch.full((out,), value)}


def test_another_model_lies_over_ones_own_where_both_have_channels() -> None:
    both = overlap(model(4, 1, 1.0), model(2, 3, 5.0), two_axes())
    assert both.filled["w"].tolist() == [[5, 5], [5, 5], [1, 1], [1, 1]]
    assert both.filled["b"].tolist() == [5, 5, 1, 1]
    assert both.own["w"].tolist() == [[1, 1], [1, 1]]
    assert both.other["w"].tolist() == [[5, 5], [5, 5]]


def test_clients_are_compared_only_where_both_have_channels() -> None:
    task, method = tiny_task(), FedAMPSub(sigma=3.0)
    draw = torch.Generator().manual_seed(1)
    own, *others = (
        {n: torch.randn(t.shape, generator=draw) for n, t in task.initial.items()} for _ in range(3)
    )
    first, second = (task.narrow(other, 0.5) for other in others)
    changed = {name: tensor.clone() for name, tensor in own.items()}
    changed["hidden.weight"][6:] += 100  # Channels that the narrow clients have not.

    def received(wide: Weights, client: Client) -> Weights:
        history = {0: wide, 1: first, 2: second}
        return method.download(task, State({}, {}, history), client, TURN).weights

    for client in (Client(0), Client(1, 0.5)):
        before, after = (received(wide, client) for wide in (own, changed))
        if client.id == 0:
            before, after = (task.narrow(weights, 0.5) for weights in (before, after))
        for name, tensor in before.items():
            torch.testing.assert_close(after[name], tensor, **EXACT)


def test_what_others_lack_stays_ones_own() -> None:
    task, method = tiny_task(), FedAMPSub(sigma=3.0)
    own = task.initial
    small = task.narrow({name: tensor + 1 for name, tensor in own.items()}, 0.5)
    state = State({}, {}, {0: own, 1: small})
    mixed = method.download(task, state, Client(0), TURN).weights["hidden.weight"]
    torch.testing.assert_close(mixed[6:], own["hidden.weight"][6:], **FLOAT32)
    expected = own["hidden.weight"][:6, :16] + 0.5
    torch.testing.assert_close(mixed[:6, :16], expected, **FLOAT32)


def test_at_rate_zero_the_form_on_submodels_is_the_full_form() -> None:
    task = tiny_task()
    _, parts = play(FedAMP(), task, FULL_CLIENTS)
    history = {part.client.id: part.upload.weights for part in parts}
    full, within = (
        method.download(task, State({}, {}, history), FULL_CLIENTS[1], TURN).weights
        for method in (FedAMP(), FedAMPSub())
    )
    for name, tensor in full.items():
        torch.testing.assert_close(within[name], tensor, **EXACT)


def test_on_submodels_clients_keep_to_their_budgets_also_when_their_rate_changes() -> None:
    task, method = tiny_task(), FedAMPSub()
    _, parts = play(method, task, CLIENTS)
    history = {part.client.id: part.upload.weights for part in parts}
    for client in CLIENTS:
        changed = Client(client.id, CLIENTS[-1 - client.id].pruning_rate)
        weights = method.download(task, State({}, {}, history), changed, TURN).weights
        assert task.cost(weights).parameters == parameters_of(task, changed.pruning_rate)


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"own_share": 2.0}, {"sigma": -1.0}, {"step": 0.0}, {"decay_every": 0}):
        (name,) = settings
        with pytest.raises(SubflotError, match=f"{name} is"):
            FedAMP(**settings)
