"""FedRolex: windows that roll on."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import CLIENTS, FULL_CLIENTS, RATES, parameters_of, play, tiny_task
from tolerances import EXACT

from subflot.algorithms.base import Client, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.fedrolex import FedRolex
from subflot.algorithms.heterofl import HeteroFL
from subflot.errors import SubflotError

TASK = tiny_task()
STATE = FedRolex().start(TASK, CLIENTS, Turn(0, 1, 0))


def window(rate: float, round: int, step: int = 1) -> dict[str, list[int]]:
    kept = FedRolex(step=step).kept(TASK, STATE, Client(0, rate), Turn(round, 99, 0))
    return {space: index.tolist() for space, index in kept.items()}


def test_the_first_round_is_heterofls() -> None:
    rolled, _ = play(FedRolex(), TASK)
    fixed, _ = play(HeteroFL(), TASK)
    torch.testing.assert_close(rolled.weights, fixed.weights, **EXACT)


@pytest.mark.parametrize("rate", RATES[1:])
def test_over_as_many_rounds_as_channels_each_is_kept_equally_often(rate: float) -> None:
    for space, size in TASK.channels.sizes.items():
        if space not in TASK.channels.prunable:
            continue
        windows = [window(rate, round)[space] for round in range(1, size + 1)]
        count = len(windows[0])
        times = torch.tensor(windows).flatten().bincount(minlength=size)
        assert times.tolist() == [count] * size
        sooner = {channel for kept in windows[: size - count + 1] for channel in kept}
        assert sooner == set(range(size))


@settings(max_examples=30)
@given(rate=st.sampled_from(RATES[1:]), round=st.integers(1, 40))
def test_a_window_moves_by_one_channel_and_comes_round(rate: float, round: int) -> None:
    now, then = window(rate, round), window(rate, round + 1)
    for space, channels in now.items():
        size = TASK.channels.sizes[space]
        moved = {(channel + 1) % size for channel in channels}
        assert set(then[space]) == moved
        assert channels == sorted(channels) == window(rate, round + size)[space]


@given(round=st.integers(1, 40))
def test_in_a_round_narrow_windows_lie_in_wide_ones(round: int) -> None:
    for narrow, wide in zip(RATES[:0:-1], RATES[-2::-1], strict=True):
        inner, outer = window(narrow, round), window(wide, round)
        assert all(set(inner[space]) <= set(outer[space]) for space in inner)


def test_a_larger_step_moves_the_window_faster() -> None:
    assert window(0.5, 3, step=2) == window(0.5, 5)


def test_full_clients_reproduce_fedavg_to_the_bit() -> None:
    rolled, _ = play(FedRolex(), TASK, FULL_CLIENTS, rounds=3)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=3)
    torch.testing.assert_close(rolled.weights, plain.weights, **EXACT)


def test_what_no_window_holds_stays_to_the_bit() -> None:
    state, parts = play(FedRolex(), TASK, [Client(0, 0.75), Client(1, 0.5)])
    widest = parts[0].upload.kept
    outside = [i for i in range(12) if i not in widest["hidden"].tolist()]
    assert len(outside) == 6
    torch.testing.assert_close(
        state.weights["hidden.weight"][outside], TASK.initial["hidden.weight"][outside], **EXACT
    )
    assert not torch.equal(state.weights["hidden.weight"], TASK.initial["hidden.weight"])


def test_clients_train_within_their_budgets() -> None:
    for part in play(FedRolex(), TASK, rounds=2)[1]:
        used = TASK.cost(part.upload.weights).parameters
        assert used == parameters_of(TASK, part.client.pruning_rate)


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(SubflotError, match="step is -1"):
        FedRolex(step=-1)
