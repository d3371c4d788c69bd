"""The data of a federation: which examples each client trains on, and is tested on."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from subflot.data.dataset import Dataset
from subflot.data.partition import divide
from subflot.data.split import Shares, split
from subflot.errors import SubflotError


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs as a model takes them, (examples, ...), and their labels, (examples,)."""

    inputs: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class FederatedData:
    """A data set and the part of it that each client holds.

    Nothing is copied until examples are asked for, so it travels to another process as cheaply as
    the data set does.
    """

    dataset: Dataset
    shares: tuple[Shares, ...]

    def __post_init__(self) -> None:
        for client, shares in enumerate(self.shares):
            used = np.concatenate([shares.train, shares.validation, shares.test])
            if used.size and not 0 <= used.min() <= used.max() < len(self.dataset):
                raise SubflotError(
                    f"client {client} has examples {used.min()} to {used.max()} of data set "
                    f"`{self.dataset.name}`",
                    hint=f"it has {len(self.dataset)} examples, numbered from 0",
                )

    @property
    def num_clients(self) -> int:
        """How many clients hold a part."""
        return len(self.shares)

    def train(self, client: int) -> Examples:
        """Copy out what a client trains on."""
        return self._examples(self._of(client).train)

    def validation(self, client: int) -> Examples:
        """Copy out what a client chooses its settings by; empty unless it was asked for."""
        return self._examples(self._of(client).validation)

    def test(self, client: int) -> Examples:
        """Copy out what a client is tested on; empty if it has no class twice."""
        return self._examples(self._of(client).test)

    def num_train(self, client: int) -> int:
        """Count what a client trains on, without reading it."""
        return len(self._of(client).train)

    def _of(self, client: int) -> Shares:
        if not 0 <= client < self.num_clients:
            raise SubflotError(
                f"there is no client {client}",
                hint=f"there are {self.num_clients} clients, numbered from 0",
            )
        return self.shares[client]

    def _examples(self, indices: NDArray[np.int64]) -> Examples:
        return Examples(*self.dataset.tensors(indices))


def federate(
    dataset: Dataset,
    *,
    partition: str = "dirichlet",
    num_clients: int | None = None,
    seed: int = 0,
    test_share: float | None = None,
    validation_share: float = 0.0,
    **settings: Any,
) -> FederatedData:
    """Divide a data set among clients, and each client's examples into its parts.

    Args:
        dataset: what is divided; no example is used twice. All are used, except windows of a
            recording that reach from one part into the next.
        partition: a key of `PARTITIONS`.
        num_clients: None: one client per group where the partition goes by groups, else 20.
        seed: fixes the outcome.
        test_share: of each client's examples; None: what is usual for the data set.
        validation_share: of what is left for training.
        settings: of the partition, such as `concentration`.

    Example:
        >>> dataset = Dataset("tiny", np.zeros((40, 3)), np.arange(40) % 2, ("cat", "dog"))
        >>> data = federate(dataset, partition="iid", num_clients=4)
        >>> len(data.train(0)), len(data.test(0))
        (8, 2)
    """
    clients = divide(
        partition, dataset.labels, dataset.groups, num_clients=num_clients, seed=seed, **settings
    )
    share = dataset.test_share if test_share is None else test_share
    shares = split(
        dataset.labels,
        clients,
        test_share=share,
        validation_share=validation_share,
        seed=seed,
        spans=dataset.spans,
    )
    return FederatedData(dataset, shares)
