"""Who takes part, and how much of the model each client can hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from subflot.algorithms.base import Client
from subflot.errors import SubflotError, UnknownName
from subflot.seeding import generator
from subflot.task import Task

Roster = Callable[[int], Sequence[Client]]
"""Round -> the clients there are, with the pruning rates they have then."""
Quantity = Literal["parameters", "multiply_adds", "bytes"]


@dataclass(frozen=True)
class Everyone:
    """A roster with the same clients in every round, those from 0 on."""

    num_clients: int
    rates: Callable[[int], Sequence[float]]
    """Round -> the pruning rate of each."""

    def __call__(self, round: int) -> list[Client]:
        """Return who there is in a round."""
        return [Client(number, rate) for number, rate in enumerate(self.rates(round))]


def drawn(
    num_clients: int, pruning_rates: Sequence[float], seed: int, redraw_every: int = 0
) -> Everyone:
    """Draw each client's rate from a list, once, or anew every so many rounds.

    Example:
        >>> [client.pruning_rate for client in drawn(4, [0, 0.5], seed=0)(1)]
        [0.5, 0.5, 0.5, 0]
    """
    if not pruning_rates or not all(0 <= rate < 1 for rate in pruning_rates):
        raise SubflotError(
            f"pruning_rates is {list(pruning_rates)}",
            hint="each is the share of channels removed and lies in [0, 1)",
        )

    def rates(round: int) -> list[float]:
        draw = 0 if redraw_every < 1 else (round - 1) // redraw_every
        found = []
        for client in range(num_clients):
            stream = generator(seed, "pruning_rate", draw, client)
            chosen = int(torch.randint(len(pruning_rates), (), generator=stream))
            found.append(pruning_rates[chosen])
        return found

    return Everyone(num_clients, rates)


def given(num_clients: int, client_rates: Sequence[float]) -> Everyone:
    """Give every client the rate that stands for it in a list."""
    if len(client_rates) != num_clients:
        raise SubflotError(
            f"client_rates names {len(client_rates)} rates for {num_clients} clients",
            hint="give one for every client, or pruning_rates to draw from",
        )
    drawn(num_clients, client_rates, 0)  # The same demands.
    return Everyone(num_clients, lambda _: client_rates)


def rate_within(task: Task, budget: float, quantity: str = "parameters") -> float:
    """Return the smallest pruning rate whose model costs at most the budget.

    Args:
        task: the model.
        budget: of parameters, of multiply-adds for one example, or of bytes to send.
        quantity: which of them.
    """
    if quantity not in get_args(Quantity):
        raise UnknownName("budget", quantity, get_args(Quantity), "subflot run --help")

    def fits(steps: int) -> bool:
        part = task.narrow(task.initial, steps / finest)
        return float(getattr(task.cost(part), quantity)) <= budget

    finest = max((task.channels.sizes[space] for space in task.channels.prunable), default=1)
    low, high = 0, finest - 1
    if not fits(high):
        least = getattr(task.cost(task.narrow(task.initial, high / finest)), quantity)
        raise SubflotError(
            f"no model fits a budget of {budget:g} {quantity}",
            hint=f"the narrowest takes {least:,.0f}",
        )
    while low < high:  # A model that fits, fits when it is cut further.
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return low / finest
