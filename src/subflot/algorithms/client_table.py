"""What a server learns about each client in numbers: a table with a row for each client's id."""

from collections.abc import Sequence

import torch
from torch import Tensor

from subflot.algorithms.base import Client


def table_for(clients: Sequence[Client], num_columns: int) -> Tensor:
    """Make a table of ones for some clients."""
    return torch.ones(1 + max(client.id for client in clients), num_columns, dtype=torch.float64)


def with_rows(table: Tensor, clients: Sequence[Client]) -> Tensor:
    """Copy a table, with rows of ones for clients that came later.

    Example:
        >>> with_rows(torch.zeros(1, 2), [Client(2)])
        tensor([[0., 0.],
                [1., 1.],
                [1., 1.]])
    """
    missing = max((1 + client.id - len(table) for client in clients), default=0)
    return torch.cat([table, table.new_ones(max(0, missing), table.shape[1])])
