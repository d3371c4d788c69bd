"""AdaptiveFL: a pool of submodels, and tables of who can train which."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds import (
    CLIENTS,
    FULL_CLIENTS,
    RATES,
    parameters_of,
    play,
    take_part,
    tiny_examples,
    tiny_task,
)
from tolerances import DOUBLE, EXACT
from traced import traced

from subflot.algorithms.adaptivefl import (
    ABLE,
    POOL,
    TRIED,
    AdaptiveFL,
    learned,
    make_pool,
    rewards,
)
from subflot.algorithms.base import Arrival, Client, ClientContext, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.widths import as_sizes, budget_of, first_channels, is_inside, num_parameters
from subflot.channels import take
from subflot.models import MODELS
from subflot.task import Task

TASK = tiny_task()
TURN = Turn(1, 1, 0)
METHOD = AdaptiveFL()
SEVEN = torch.tensor([0, 0, 0, 1, 1, 1, 2])
"""The levels of the paper's pool: three small, three medium, one large."""


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def resnet() -> Task:
    net = MODELS["resnet18"]
    return Task.of(net.model(), net.example())


# ----- the pool


@pytest.mark.parametrize("name", ["tiny", "resnet"])
def test_each_level_stays_within_the_budget_of_its_rate(name: str, resnet: Task) -> None:
    task = TASK if name == "tiny" else resnet
    members, levels = make_pool(task, RATES)
    counts = [num_parameters(task, sizes) for sizes in members]
    for count, level in zip(counts, levels.tolist(), strict=True):
        assert count <= budget_of(task, (0.75, 0.5, 0.25, 0.0)[level])
    assert levels.tolist() == sorted(levels.tolist())
    assert set(levels.tolist()) == {0, 1, 2, 3}
    assert counts == sorted(set(counts))
    assert members[-1] == {space: task.channels.sizes[space] for space in task.channels.prunable}
    # Whatever a client received, the smallest member lies in it.
    assert all(is_inside(members[0], sizes) for sizes in members)


def test_a_level_leaves_the_first_layers_whole_and_narrows_the_others_alike(resnet: Task) -> None:
    members, levels = make_pool(resnet, RATES)
    assert levels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    spaces = resnet.channels.prunable
    for sizes, level in zip(members[:-1], levels.tolist(), strict=False):
        shares = [sizes[space] / resnet.channels.sizes[space] for space in spaces]
        num_whole = next(place for place, share in enumerate(shares) if share < 1)
        rest = shares[num_whole:]
        assert max(rest) < 1
        assert max(rest) - min(rest) < 1 / 64
        width = (0.25, 0.5, 0.75)[level]
        assert 0.7 * width < max(rest) <= width
    # The largest of a level makes good use of what its rate allows.
    for place, rate in ((2, 0.75), (5, 0.5), (8, 0.25)):
        assert num_parameters(resnet, members[place]) > 0.9 * budget_of(resnet, rate)


# ----- the tables


def test_rewards_by_hand() -> None:
    able = torch.stack([torch.ones(7), row(1, 1, 1, 1, 1, 1, 0)]).double()
    tried = torch.stack([torch.ones(3), row(4, 1, 9)]).double()
    # Sums from the back are 7, 6, 5 | 4, 3, 2 | 1 of 7, and 6, 5, 4 | 3, 2, 1 | 0 of 6.
    first = [0.5, 9 / 21, 1 / 7]
    second = [0.5 / 2, 6 / 18, 0.0]
    expected = torch.tensor([first, second], dtype=torch.float64)
    torch.testing.assert_close(rewards(able, tried, SEVEN), expected, **DOUBLE)


@given(values=st.lists(st.floats(0, 50), min_size=7, max_size=7))
def test_smaller_models_are_never_less_wanted_and_rewards_stay_below_a_half(
    values: list[float],
) -> None:
    able = torch.tensor([values], dtype=torch.float64)
    small, medium, large = rewards(able, torch.ones(1, 3).double(), SEVEN)[0].tolist()
    assert 0.5 >= small >= medium >= large >= 0


def test_what_is_learned_by_hand() -> None:
    ones = torch.ones(7, dtype=torch.float64)
    assert learned(ones, sent=4, trained=4).tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert learned(ones, sent=6, trained=6).tolist() == [1, 1, 1, 1, 1, 1, 5]
    # Above what it trained, ever less: 1 - 1, 1 - 2 (not below zero), 9 - 3.
    before = row(1, 1, 1, 1, 1, 1, 9)
    assert learned(before, sent=6, trained=3).tolist() == [1, 1, 1, 4, 0, 0, 6]
    assert before.tolist() == [1, 1, 1, 1, 1, 1, 9]


def test_a_client_that_always_rejects_the_largest_is_no_longer_wanted_for_it() -> None:
    able = torch.ones(7, dtype=torch.float64)
    for _ in range(3):
        able = learned(able, sent=6, trained=2)
    assert able[-1] == 0
    assert rewards(able[None], torch.ones(1, 3).double(), SEVEN)[0, 2] == 0
    assert learned(able, sent=1, trained=1)[-1] == 1


def test_the_state_follows_what_was_sent_and_trained() -> None:
    state = METHOD.start(TASK, CLIENTS, Turn(0, 1, 0))
    last = len(state.extras[POOL]) - 1
    able, weak = Client(0, 0.0, offer=last), Client(3, 0.75, offer=last)
    parts = [take_part(METHOD, TASK, state, c, TURN, tiny_examples(c.id)) for c in (able, weak)]
    arrivals = [Arrival(part.client, part.upload) for part in parts]
    after = METHOD.aggregate(TASK, state, arrivals, TURN)
    assert after.extras[ABLE][0].tolist() == [1] * last + [5]
    assert after.extras[TRIED][0].tolist() == [1, 1, 1, 3]
    trained = {space: len(index) for space, index in parts[1].upload.kept.items()}
    pool = [as_sizes(TASK.channels, sizes) for sizes in state.extras[POOL]]
    place = pool.index(trained)
    assert after.extras[ABLE][3].tolist() == learned(torch.ones(last + 1), last, place).tolist()
    assert after.extras[TRIED][3].tolist() == [2, 1, 1, 2]
    assert after.extras[ABLE][1:3].eq(1).all()
    assert state.extras[ABLE].eq(1).all()


def test_a_client_that_came_later_gets_a_row() -> None:
    state = METHOD.start(TASK, CLIENTS, Turn(0, 1, 0))
    late = Client(9, 0.5)
    invited = METHOD.invite(TASK, state, [*CLIENTS, late], 5, TURN)
    assert sorted(client.id for client in invited) == [0, 1, 2, 3, 9]
    part = take_part(METHOD, TASK, state, late, TURN, tiny_examples(1))
    after = METHOD.aggregate(TASK, state, [Arrival(part.client, part.upload)], TURN)
    assert after.extras[ABLE].shape[0] == after.extras[TRIED].shape[0] == 10
    assert after.extras[ABLE][8].eq(1).all()


# ----- who is invited


def test_no_client_is_invited_twice_and_each_has_an_offer() -> None:
    state = METHOD.start(TASK, CLIENTS, Turn(0, 1, 0))
    clients = [Client(number, RATES[number % 4]) for number in range(12)]
    offers = set()
    for number in range(1, 30):
        invited = METHOD.invite(TASK, state, clients, 6, Turn(number, 99, 0))
        assert len({client.id for client in invited}) == 6
        offers |= {client.offer for client in invited}
    assert offers == set(range(len(state.extras[POOL])))


def test_clients_are_drawn_by_their_rewards_and_evenly_where_all_are_zero() -> None:
    start = METHOD.start(TASK, FULL_CLIENTS, Turn(0, 1, 0))
    assert len(start.extras[POOL]) == 1
    times = {}
    for name, able in (("skewed", row(0, 0, 1)), ("zero", row(0, 0, 0))):
        state = State(start.weights, {**start.extras, ABLE: able[:, None]})
        drawn = [
            METHOD.invite(TASK, state, FULL_CLIENTS, 1, Turn(number, 999, 0))[0].id
            for number in range(1, 201)
        ]
        times[name] = torch.tensor(drawn).bincount(minlength=3).tolist()
    assert times["skewed"] == [0, 0, 200]
    assert min(times["zero"]) > 40


# ----- what is trained


def test_clients_train_within_their_budgets_and_inside_what_they_received() -> None:
    for seed in range(4):
        for part in play(METHOD, TASK, seed=seed)[1]:
            rate = part.client.pruning_rate
            assert TASK.cost(part.upload.weights).parameters <= parameters_of(TASK, rate)
            sent, trained = (
                {space: len(index) for space, index in kept.items()}
                for kept in (part.download.kept, part.upload.kept)
            )
            assert is_inside(trained, sent)
            before = METHOD.extracted(TASK, part.download, part.context)
            assert {n: t.shape for n, t in before.items()} == {
                n: t.shape for n, t in part.upload.weights.items()
            }


@pytest.mark.parametrize("name", ["tiny", "dense blocks"])
def test_a_slice_of_a_slice_is_the_direct_slice(name: str) -> None:
    task = TASK
    if name == "dense blocks":  # Concatenations: where a channel lies depends on the widths.
        model, channels, example = traced(name)
        task = Task(model, channels, example[0])
    state = METHOD.start(task, CLIENTS, Turn(0, 1, 0))
    for offer in range(len(state.extras[POOL])):
        client = Client(3, 0.75, offer=offer)
        download = METHOD.download(task, state, client, TURN)
        context = ClientContext(client, tiny_examples(3), {}, TURN)
        own = METHOD.extracted(task, download, context)
        sizes = {s: n for s, n in task.channels.sizes_of(own).items() if s in download.kept}
        direct = take(state.weights, task.channels, first_channels(sizes))
        torch.testing.assert_close(dict(own), direct, **EXACT)


def test_full_clients_reproduce_fedavg_to_the_bit() -> None:
    adaptive, _ = play(METHOD, TASK, FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(adaptive.weights, plain.weights, **EXACT)


def test_a_client_whose_rate_rose_above_all_levels_stays_within_its_budget() -> None:
    state = METHOD.start(TASK, [Client(0, 0.0), Client(1, 0.25)], Turn(0, 1, 0))
    client = replace(CLIENTS[3], offer=0)
    part = take_part(METHOD, TASK, state, client, TURN, tiny_examples(3))
    assert TASK.cost(part.upload.weights).parameters <= parameters_of(TASK, 0.75)
    after = METHOD.aggregate(TASK, state, [Arrival(client, part.upload)], TURN)
    assert after.extras[ABLE].shape[0] == 4
