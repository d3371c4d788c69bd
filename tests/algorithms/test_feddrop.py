"""Federated Dropout: channels drawn anew for every client and round."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds import CLIENTS, FULL_CLIENTS, RATES, parameters_of, play, tiny_task
from tolerances import EXACT, FLOAT32

from subflot.algorithms.base import Client, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.feddrop import FedDrop

TASK = tiny_task()
STATE = FedDrop().start(TASK, CLIENTS, Turn(0, 1, 0))


def drawn(rate: float, client: int, round: int, seed: int = 0) -> dict[str, list[int]]:
    kept = FedDrop().kept(TASK, STATE, Client(client, rate), Turn(round, 9999, seed))
    return {space: index.tolist() for space, index in kept.items()}


@given(rate=st.sampled_from(RATES), client=st.integers(0, 50), round=st.integers(1, 50))
def test_a_draw_has_the_size_of_the_rate_and_no_channel_twice(
    rate: float, client: int, round: int
) -> None:
    counts = TASK.channels.kept_sizes(rate)
    for space, channels in drawn(rate, client, round).items():
        assert len(set(channels)) == len(channels) == counts[space]
        assert channels == sorted(channels)
        assert 0 <= channels[0] <= channels[-1] < TASK.channels.sizes[space]


def test_every_channel_is_kept_as_often_as_the_width_says() -> None:
    rounds = 1000
    seen = torch.tensor([drawn(0.75, 0, round)["hidden"] for round in range(1, rounds + 1)])
    often = seen.flatten().bincount(minlength=12) / rounds
    width = 3 / 12
    # Five standard deviations of a share of so many draws.
    spread = 5 * (width * (1 - width) / rounds) ** 0.5
    assert (often - width).abs().max() < spread


def test_a_draw_belongs_to_seed_round_and_client() -> None:
    one = drawn(0.5, 3, 7)
    assert one == drawn(0.5, 3, 7)
    assert (
        len({str(draw) for draw in (one, drawn(0.5, 4, 7), drawn(0.5, 3, 8), drawn(0.5, 3, 7, 1))})
        == 4
    )


@pytest.mark.parametrize("merge", ["owners", "residual"])
def test_full_clients_reproduce_fedavg_to_the_bit(merge: str) -> None:
    dropped, _ = play(FedDrop(merge=merge), TASK, FULL_CLIENTS, rounds=2)  # type: ignore[arg-type]
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(dropped.weights, plain.weights, **EXACT)


@pytest.mark.parametrize("merge", ["owners", "residual"])
def test_what_nobody_drew_stays_to_the_bit(merge: str) -> None:
    state, parts = play(FedDrop(merge=merge), TASK, [Client(0, 0.75), Client(1, 0.75)])  # type: ignore[arg-type]
    drawn = {channel for part in parts for channel in part.upload.kept["hidden"].tolist()}
    outside = sorted(set(range(12)) - drawn)
    assert outside
    torch.testing.assert_close(
        state.weights["hidden.weight"][outside], TASK.initial["hidden.weight"][outside], **EXACT
    )


def test_over_all_clients_an_entry_moves_by_the_share_of_its_owners() -> None:
    clients = [Client(0, 0.5), Client(1, 0.5)]
    owners, parts = play(FedDrop(), TASK, clients)
    everyone, _ = play(FedDrop(merge="residual"), TASK, clients)
    alone = sorted(
        set(parts[0].upload.kept["hidden"].tolist()) - set(parts[1].upload.kept["hidden"].tolist())
    )
    counts = [part.upload.num_examples for part in parts]
    old = TASK.initial["hidden.bias"][alone]
    step = owners.weights["hidden.bias"][alone] - old
    expected = old + step * counts[0] / sum(counts)
    assert step.abs().max() > 1e-4
    torch.testing.assert_close(everyone.weights["hidden.bias"][alone], expected, **FLOAT32)


def test_clients_train_within_their_budgets() -> None:
    for part in play(FedDrop(), TASK)[1]:
        used = TASK.cost(part.upload.weights).parameters
        assert used == parameters_of(TASK, part.client.pruning_rate)
