"""Each client's examples for training, validation and testing."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from subflot.data.partition import Clients
from subflot.errors import SubflotError
from subflot.seeding import numpy_generator


@dataclass(frozen=True, eq=False)
class Shares:
    """The numbers of one client's examples, in order; each example is in exactly one part."""

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
) -> tuple[Shares, ...]:
    """Divide the examples of each client at random, class by class.

    Of each class the share is held out, rounded so that the client's total is right, and this is
    rounded at random so that it is right on average. A class with two examples or more is in both
    training and test part; a single example is trained on. So a client without any class twice
    has an empty test part, and none has an empty training part.

    Args:
        labels: class of each example.
        clients: the numbers of each client's examples.
        test_share: of each client's examples; 0 for no test parts.
        validation_share: of what is left for training; the test parts do not depend on it.
        seed: fixes the outcome; clients do not depend on each other.
    """
    for name, share in (("test_share", test_share), ("validation_share", validation_share)):
        if not 0 <= share < 1:
            raise SubflotError(f"{name} is {share}", hint="it lies in [0, 1)")
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
