"""Who there is, and how wide a model each client can hold."""

import itertools
from collections import Counter

import pytest
from federations import tiny_task
from hypothesis import given as any_of
from hypothesis import strategies as st

from subflot.algorithms.base import Client, Turn, in_order, sample
from subflot.errors import SubflotError, UnknownName
from subflot.simulation.roster import drawn, given, rate_within

RATES = (0.0, 0.25, 0.5, 0.75)
TASK = tiny_task()


def rates(roster, round: int) -> list[float]:  # type: ignore[no-untyped-def]
    return [client.pruning_rate for client in roster(round)]


def test_rates_are_drawn_once_and_evenly() -> None:
    roster = drawn(400, RATES, seed=3)
    counted = Counter(rates(roster, 1))
    assert sorted(counted) == list(RATES)
    # The standard deviation of each count is 8.7.
    assert all(60 < count < 140 for count in counted.values())
    assert rates(roster, 1) == rates(roster, 2) == rates(roster, 200)
    assert [client.id for client in roster(1)] == list(range(400))


def test_a_clients_rate_does_not_depend_on_how_many_there_are() -> None:
    assert rates(drawn(5, RATES, 0), 1) == rates(drawn(50, RATES, 0), 1)[:5]
    assert rates(drawn(50, RATES, 0), 1) != rates(drawn(50, RATES, 1), 1)


def test_rates_are_drawn_anew_every_so_many_rounds() -> None:
    roster = drawn(30, RATES, 0, redraw_every=10)
    first, last, next_ = (rates(roster, round) for round in (1, 10, 11))
    assert first == last != next_ == rates(roster, 20)
    # The first draw is that of a run in which rates stay.
    assert first == rates(drawn(30, RATES, 0), 7)


def test_given_rates_are_taken_as_they_are() -> None:
    roster = given(3, [0.5, 0.0, 0.9])
    assert roster(1) == roster(9) == [Client(0, 0.5), Client(1, 0.0), Client(2, 0.9)]


@pytest.mark.parametrize("wrong", [[], [1.0], [0.5, -0.1], [float("nan")]])
def test_rates_outside_of_their_range_are_refused(wrong: list[float]) -> None:
    with pytest.raises(SubflotError, match=r"pruning_rates is .*\n.*\[0, 1\)"):
        drawn(4, wrong, 0)


def test_a_rate_is_given_for_every_client() -> None:
    with pytest.raises(SubflotError, match="names 2 rates for 3 clients"):
        given(3, [0.5, 0.0])


# ----- budgets


@pytest.mark.parametrize("quantity", ["parameters", "multiply_adds", "bytes"])
@any_of(share=st.floats(0.15, 1.2))
def test_the_widest_model_within_a_budget_is_chosen(quantity: str, share: float) -> None:

    def cost(rate: float) -> float:
        return float(getattr(TASK.cost(TASK.narrow(TASK.initial, rate)), quantity))

    budget = share * cost(0.0)
    rate = rate_within(TASK, budget, quantity)
    assert cost(rate) <= budget
    # One channel more, of the eight of the widest space, would not fit.
    assert rate == 0 or cost(rate - 1 / 8) > budget


def test_a_budget_of_exactly_a_model_is_that_model() -> None:
    for rate in RATES:
        parameters = TASK.cost(TASK.narrow(TASK.initial, rate)).parameters
        assert rate_within(TASK, parameters) == rate
        assert rate_within(TASK, parameters - 1) > rate


def test_a_budget_below_the_narrowest_model_is_refused() -> None:
    # One channel each: 9 + 1, norm 2, 9 + 1, 10 + 10.
    assert rate_within(TASK, 42) == 7 / 8
    with pytest.raises(SubflotError, match=r"fits a budget of 41 parameters\n.*narrowest takes 42"):
        rate_within(TASK, 41)


def test_an_unknown_budget_offers_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"did you mean `parameters`"):
        rate_within(TASK, 100, "parameter")


# ----- who is invited, and in which order


@any_of(st.integers(1, 20), st.integers(1, 20), st.integers(1, 5))
def test_participants_are_distinct_and_do_not_depend_on_the_order_given(
    num_clients: int, count: int, round: int
) -> None:
    clients = [Client(number, RATES[number % 4]) for number in range(num_clients)]
    turn = Turn(round, 9, 0)
    found = sample(clients, count, turn)
    assert len({client.id for client in found}) == len(found) == min(count, num_clients)
    assert found == sample(clients[::-1], count, turn)


def test_every_client_is_invited_equally_often() -> None:
    clients = [Client(number) for number in range(10)]
    invited = Counter(c.id for round in range(600) for c in sample(clients, 3, Turn(round, 600, 1)))
    # Each is expected 180 times, with a standard deviation of 11.
    assert all(130 < invited[client.id] < 230 for client in clients)


def test_the_widest_come_first() -> None:
    clients = [Client(0, 0.5), Client(1, 0.0), Client(2, 0.5), Client(3, 0.0)]
    for order in itertools.permutations(clients):
        assert [client.id for client in in_order(order)] == [1, 3, 0, 2]
