"""How many examples of each class go to each client: tables of shape (classes, clients)."""

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""(classes, clients): numbers of examples."""


def even_parts(total: int, num_parts: int) -> NDArray[np.int64]:
    """Return sizes that add up to the total and differ by one at most, larger ones first.

    Example:
        >>> even_parts(8, 3)
        array([3, 3, 2])
    """
    return total // num_parts + (np.arange(num_parts) < total % num_parts).astype(np.int64)


def fixed_number_of_classes(
    sizes: NDArray[np.int64], num_clients: int, each: int, random: np.random.Generator
) -> Counts:
    """Allot exactly `each` classes to every client, every class evenly to its owners.

    Args:
        sizes: examples of each class, none empty.
        num_clients: with `each` classes, they have enough places for every class, and there are
            enough examples for every place.
        each: classes per client.
        random: chooses who owns what.
    """
    most = np.minimum(sizes, num_clients)
    owners = np.zeros_like(sizes)
    while left := num_clients * each - int(owners.sum()):
        owners[random.permutation(np.flatnonzero(owners < most))[:left]] += 1
    counts = np.zeros((len(sizes), num_clients), dtype=np.int64)
    for client in random.permutation(num_clients):
        # Whoever takes the classes with most owners to find leaves a problem that can be solved.
        order = random.permutation(len(sizes))
        chosen = order[np.argsort(-owners[order], kind="stable")[:each]]
        counts[chosen, client] = 1
        owners[chosen] -= 1
    for size, row in zip(sizes, counts, strict=True):
        holders = random.permutation(np.flatnonzero(row))
        row[holders] = even_parts(int(size), len(holders))
    return counts


def dirichlet_shares(
    concentration: float, shape: tuple[int, int], random: np.random.Generator
) -> NDArray[np.float64]:
    """Draw rows from a symmetric Dirichlet distribution, also where gamma variates underflow.

    With G(a) = G(a + 1) U^(1/a), a row is the softmax of log G(a + 1) + log(U) / a. It is
    computed from a multiple of these numbers that is finite for every concentration.
    """
    scale = min(concentration, 1.0)
    grown = np.log(random.standard_gamma(concentration + 1, shape))
    scaled = scale * grown - random.standard_exponential(shape) * (scale / concentration)
    with np.errstate(over="ignore"):  # A share that is too small for a number is zero.
        weights = np.exp((scaled - scaled.max(axis=1, keepdims=True)) / scale)
    shares: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
    return shares


def counts_by_shares(
    sizes: NDArray[np.int64], shares: NDArray[np.float64], random: np.random.Generator
) -> Counts:
    """Turn shares into counts that add up to the size of each class.

    Each is the size times the share, rounded up or down at random such that its mean is exact.
    """
    # Stretches of one line are rounded together by a random shift of the line. Without it the
    # first and the last client would get less than their due.
    shift = random.random((len(sizes), 1))
    ends = np.floor(np.cumsum(shares, axis=1) * sizes[:, None] + shift).astype(np.int64)
    ends[:, -1] = sizes
    return np.diff(np.minimum(ends, sizes[:, None]), axis=1, prepend=0)


def fill_up(counts: Counts, least: int) -> Counts:
    """Move examples from the largest clients until every client has at least `least`.

    There must be enough examples for it. A client receives a class that it has already if the
    giver can spare one, so that a class comes in twos, and otherwise the giver's largest.
    """
    counts = counts.copy()
    totals = counts.sum(axis=0)
    for client in np.flatnonzero(totals < least):
        while missing := least - int(totals[client]):
            giver = totals.argmax()
            common = np.where(counts[:, client] > 0, counts[:, giver], 0)
            moved = (common if common.any() else counts[:, giver]).argmax()
            num_moved = min(missing, int(totals[giver]) - least, int(counts[moved, giver]))
            counts[moved, [giver, client]] += (-num_moved, num_moved)
            totals[[giver, client]] += (-num_moved, num_moved)
    return counts


def pair_up(counts: Counts, least: int) -> Counts:
    """Give clients that have no class twice a second example of one, where others can spare it.

    Such a client could not be both trained and tested. Nobody is left with fewer than `least`
    examples, or without a pair, for it.
    """
    counts = counts.copy()
    for client in np.flatnonzero(counts.max(axis=0) == 1):
        held = np.flatnonzero(counts[:, client])
        offers = np.where(counts.sum(axis=0) > least, counts[held], 0)
        row, giver = np.unravel_index(offers.argmax(), offers.shape)
        if offers[row, giver] > 2:
            counts[held[row], [giver, client]] += (-1, 1)
    return counts


def deal(
    numbers: NDArray[np.int64], counts: Counts, random: np.random.Generator
) -> tuple[NDArray[np.int64], ...]:
    """Choose at random which examples each client gets, as many of each class as the table says.

    Args:
        numbers: class of each example; the rows of the table are the classes that occur, in order.
        counts: adding up to the size of each class.
        random: chooses the examples.

    Returns:
        For each client the numbers of its examples, in order.
    """
    num_clients = counts.shape[1]
    owner = np.empty(len(numbers), dtype=np.int64)
    for value, row in zip(np.unique(numbers), counts, strict=True):
        members = random.permutation(np.flatnonzero(numbers == value))
        owner[members] = np.repeat(np.arange(num_clients), row)
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=num_clients))
    return tuple(np.split(order, ends[:-1]))
