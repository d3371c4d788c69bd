"""Each client's examples for training, validation and testing."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from subflot.data.partition import Clients
from subflot.errors import SubflotError
from subflot.seeding import numpy_generator


@dataclass(frozen=True, eq=False)
class Shares:
    """The numbers of one client's examples, in order; no example is in two parts."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]


def split(
    labels: ArrayLike,
    clients: Clients,
    *,
    test_share: float,
    validation_share: float = 0.0,
    seed: int = 0,
    spans: ArrayLike | None = None,
) -> tuple[Shares, ...]:
    """Divide the examples of each client at random, class by class, or recordings in time.

    Of each class the share is held out, rounded so that the client's total is right, and this is
    rounded at random so that it is right on average. A class with two examples or more is in both
    training and test part; a single example is trained on. So a client without any class twice
    has an empty test part, and none has an empty training part.

    Examples with spans are windows of recordings, and neighbours have much in common. So the first
    part of each recording is trained on, the next validated on and the last tested on, whichever
    clients hold it; a window that reaches over a boundary is left out. A recording that is too
    short to be parted is trained on.

    Args:
        labels: class of each example.
        clients: the numbers of each client's examples.
        test_share: of each client's examples; 0 for no test parts.
        validation_share: of what is left for training; the test parts do not depend on it.
        seed: fixes the outcome; clients do not depend on each other. In time it only decides how
            shares are rounded.
        spans: recording, start and stop of each example, shape (examples, 3); None: at random.
    """
    for name, share in (("test_share", test_share), ("validation_share", validation_share)):
        if not 0 <= share < 1:
            raise SubflotError(f"{name} is {share}", hint="it lies in [0, 1)")
    if spans is not None:
        return _split_in_time(np.asarray(spans), clients, test_share, validation_share, seed)
    numbers = np.asarray(labels)
    return tuple(
        _split_client(
            numbers[indices],
            indices,
            test_share,
            validation_share,
            numpy_generator(seed, "split", client),
        )
        for client, indices in enumerate(clients)
    )


def _split_client(
    labels: NDArray[np.int64],
    indices: NDArray[np.int64],
    test_share: float,
    validation_share: float,
    random: np.random.Generator,
) -> Shares:
    _, kind, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    order = random.permutation(len(indices))
    order = order[np.argsort(kind[order], kind="stable")]
    place = np.empty_like(order)  # Of each example among those of its class.
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    num_test = _held_out(sizes, test_share, 1, random)
    num_validation = _held_out(sizes - num_test, validation_share, 0, random)
    is_test = place < num_test[kind]
    is_train = place >= (num_test + num_validation)[kind]
    return Shares(indices[is_train], indices[~is_train & ~is_test], indices[is_test])


def _split_in_time(
    spans: NDArray[np.int64],
    clients: Clients,
    test_share: float,
    validation_share: float,
    seed: int,
) -> tuple[Shares, ...]:
    """Cut every recording once, for all clients: one may hold the neighbour of another's window."""
    random = numpy_generator(seed, "split", "recordings")
    rest, is_test = _cut(spans, np.ones(len(spans), dtype=bool), test_share, 1, random)
    is_train, is_validation = _cut(spans, rest, validation_share, 0, random)
    shares = tuple(
        Shares(*(c[part[c]] for part in (is_train, is_validation, is_test))) for c in clients
    )
    for client, share in enumerate(shares):
        if not len(share.train):
            raise SubflotError(
                f"client {client} has {len(clients[client])} windows, all late in their "
                "recordings, and none to train on",
                hint="use fewer clients, or partition by_group if groups hold whole recordings",
            )
    return shares


def _cut(
    spans: NDArray[np.int64],
    among: NDArray[np.bool_],
    share: float,
    least: int,
    random: np.random.Generator,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Part each recording's windows `among` all: those before a boundary, and those after it."""
    chosen = np.flatnonzero(among)
    _, kind, sizes = np.unique(spans[chosen, 0], return_inverse=True, return_counts=True)
    held = _held_out(sizes, share, least, random)
    before, after = among.copy(), np.zeros_like(among)
    recordings = np.split(chosen[np.argsort(kind, kind="stable")], np.cumsum(sizes)[:-1])
    for own, num_held in zip(recordings, held, strict=True):
        if not num_held:
            continue
        start, stop = spans[own, 1], spans[own, 2]
        # Not so early that no window lies before it.
        boundary = max(np.sort(start)[-num_held], stop.min())
        if (start >= boundary).any():
            before[own], after[own] = stop <= boundary, start >= boundary
    return before, after


def _held_out(
    sizes: NDArray[np.int64], share: float, least: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """Count what to hold out of each class: its share, rounded up where most is lost otherwise.

    At least one example of each class stays; beyond that, at least `least` are held out.
    """
    wanted = share * sizes
    most = np.minimum(np.ceil(wanted), sizes - 1).astype(np.int64)
    held: NDArray[np.int64] = np.clip(
        np.floor(wanted).astype(np.int64), np.minimum(least, most), most
    )
    # A random shift, for clients of one size would all be rounded the same way.
    total = int(share * sizes.sum() + random.random())
    missing = max(0, total - int(held.sum()))
    # In random order, for among equal remainders the first class would always win.
    order = random.permutation(np.flatnonzero(held < most))
    order = order[np.argsort((held - wanted)[order], kind="stable")]
    held[order[:missing]] += 1
    return held
