"""Dividing examples among clients: pure functions of labels or groups, and a seed.

Each returns one sorted array of example numbers per client. Every example goes to exactly one
client, and no client goes without.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from subflot.data.allot import (
    counts_by_shares,
    deal,
    dirichlet_shares,
    even_parts,
    fill_up,
    fixed_number_of_classes,
    pair_up,
)
from subflot.errors import SubflotError, UnknownName
from subflot.seeding import numpy_generator

Clients = tuple[NDArray[np.int64], ...]
"""Client -> the numbers of its examples, in order."""

DEFAULT_NUM_CLIENTS = 20


def iid(labels: ArrayLike, num_clients: int, seed: int = 0) -> Clients:
    """Deal all examples out at random; sizes differ by one at most."""
    numbers = _numbers("labels", labels)
    _check_num_clients(num_clients, len(numbers))
    counts = even_parts(len(numbers), num_clients)[None]
    return deal(np.zeros_like(numbers), counts, _random(seed))


def pathological(
    labels: ArrayLike, num_clients: int, classes_per_client: int = 2, seed: int = 0
) -> Clients:
    """Give every client examples of exactly `classes_per_client` classes, drawn at random.

    Classes have equally many owners, or as near to it as their sizes permit, and a class is divided
    evenly among its owners: clients differ in what they have rather than in how much.

    Args:
        labels: class of each example; only classes that occur are counted.
        num_clients: with `classes_per_client` each, they must be able to cover every class.
        classes_per_client: from 1 to the number of classes.
        seed: fixes the outcome.
    """
    numbers = _numbers("labels", labels)
    _check_num_clients(num_clients, len(numbers))
    sizes = np.unique_counts(numbers).counts
    if not 1 <= classes_per_client <= len(sizes):
        raise SubflotError(
            f"classes_per_client is {classes_per_client}",
            hint=f"the data has {len(sizes)} classes, so it lies between 1 and {len(sizes)}",
        )
    if num_clients * classes_per_client < len(sizes):
        raise SubflotError(
            f"{num_clients} clients with {classes_per_client} classes each cannot cover "
            f"{len(sizes)} classes",
            hint="raise the number of clients or classes_per_client until their product is "
            f"{len(sizes)} or more",
        )
    if num_clients * classes_per_client > np.minimum(sizes, num_clients).sum():
        raise SubflotError(
            f"there are too few examples to give {num_clients} clients {classes_per_client} "
            "classes each",
            hint=f"the smallest class has {sizes.min()} examples; use fewer clients or classes",
        )
    random = _random(seed)
    counts = fixed_number_of_classes(sizes, num_clients, classes_per_client, random)
    return deal(numbers, counts, random)


def dirichlet(
    labels: ArrayLike,
    num_clients: int,
    concentration: float = 0.1,
    seed: int = 0,
    *,
    min_examples: int = 2,
) -> Clients:
    """Divide every class by shares drawn from a symmetric Dirichlet distribution.

    It draws once. Clients with fewer than `min_examples` are then filled up from the largest, so
    that it ends for every concentration and number of clients. A client that has no class twice
    gets one more example if others can spare it, for it could not be tested otherwise.

    Args:
        labels: class of each example.
        num_clients: with `min_examples` each, there must be enough examples for all.
        concentration: above 0; the smaller, the fewer clients share a class.
        seed: fixes the outcome.
        min_examples: 1 or more.
    """
    numbers = _numbers("labels", labels)
    if not 0 < concentration < np.inf:
        raise SubflotError(
            f"concentration is {concentration}",
            hint="it is a number above 0: 0.1 is skewed, 1 is mild, 100 is nearly even",
        )
    if min_examples < 1:
        raise SubflotError(f"min_examples is {min_examples}", hint="it is 1 or more")
    _check_num_clients(num_clients, len(numbers), min_examples)
    random = _random(seed)
    sizes = np.unique_counts(numbers).counts
    shares = dirichlet_shares(concentration, (len(sizes), num_clients), random)
    counts = fill_up(counts_by_shares(sizes, shares, random), min_examples)
    return deal(numbers, pair_up(counts, min_examples), random)


def by_group(groups: ArrayLike, num_clients: int | None = None, seed: int = 0) -> Clients:
    """Give every client examples of one group only, such as a domain or a person.

    Args:
        groups: group of each example.
        num_clients: a multiple of the number of groups, whose examples are then dealt out at
            random to equally many clients; None: one client per group. The clients of the first
            group come first.
        seed: fixes the outcome if a group has several clients.
    """
    numbers = _numbers("groups", groups)
    names, sizes = np.unique_counts(numbers)
    num_clients = len(names) if num_clients is None else num_clients
    _check_num_clients(num_clients, len(numbers))
    each, rest = divmod(num_clients, len(names))
    if rest:
        raise SubflotError(
            f"{num_clients} clients cannot be shared out evenly among {len(names)} groups",
            hint=f"the number of clients is {len(names)} or a multiple of it",
        )
    if sizes.min() < each:
        raise SubflotError(
            f"group {names[sizes.argmin()]} has {sizes.min()} examples, too few for {each} clients",
            hint="use fewer clients",
        )
    counts = np.zeros((len(names), num_clients), dtype=np.int64)
    for group, size in enumerate(sizes):
        counts[group, group * each : (group + 1) * each] = even_parts(int(size), each)
    return deal(numbers, counts, _random(seed))


@dataclass(frozen=True)
class Partition:
    """A way to divide examples, as it is registered."""

    function: Callable[..., Clients]
    about: str
    needs_groups: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What can be set besides the number of clients and the seed, with defaults."""
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.function).parameters.items()
            if name not in ("labels", "groups", "num_clients", "seed")
        }


PARTITIONS: Mapping[str, Partition] = {
    "iid": Partition(iid, "examples dealt out at random"),
    "pathological": Partition(pathological, "a fixed number of classes per client"),
    "dirichlet": Partition(dirichlet, "shares of each class drawn from a Dirichlet distribution"),
    "by_group": Partition(by_group, "one group, such as a person, per client", needs_groups=True),
    "by_domain": Partition(by_group, "one domain per client", needs_groups=True),
}


def divide(
    name: str,
    labels: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    num_clients: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Clients:
    """Divide examples by the partition registered as `name`.

    Args:
        name: a key of `PARTITIONS`.
        labels: class of each example.
        groups: group of each example, if there are groups.
        num_clients: None: one client per group, or `DEFAULT_NUM_CLIENTS` where groups play no role.
        seed: fixes the outcome.
        settings: what the partition takes besides, such as `concentration`.

    Example:
        >>> divide("by_group", [0, 1, 1, 0], [7, 8, 7, 8])
        (array([0, 2]), array([1, 3]))
    """
    try:
        partition = PARTITIONS[name]
    except KeyError:
        raise UnknownName("partition", name, PARTITIONS, "subflot data show --help") from None
    for setting in settings:
        if setting not in partition.settings:
            known = ", ".join(partition.settings) or "none"
            raise SubflotError(
                f"partition `{name}` has no setting `{setting}`", hint=f"its settings: {known}"
            )
    if not partition.needs_groups:
        num_clients = DEFAULT_NUM_CLIENTS if num_clients is None else num_clients
        return partition.function(labels, num_clients, seed=seed, **settings)
    if groups is None:
        others = [other for other, entry in PARTITIONS.items() if not entry.needs_groups]
        raise SubflotError(
            f"partition `{name}` needs groups, and this data has none",
            hint=f"these do without: {', '.join(others)}",
        )
    return partition.function(groups, num_clients, seed=seed, **settings)


def _random(seed: int) -> np.random.Generator:
    return numpy_generator(seed, "partition")


def _numbers(what: str, values: ArrayLike) -> NDArray[np.int64]:
    """Check that there is one whole number per example."""
    numbers = np.asarray(values)
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iu":
        raise SubflotError(
            f"{what} of shape {numbers.shape} and type {numbers.dtype} cannot be divided",
            hint="give one whole number per example, and at least one example",
        )
    return numbers.astype(np.int64, copy=False)


def _check_num_clients(num_clients: int, num_examples: int, least: int = 1) -> None:
    if num_clients < 1:
        raise SubflotError(f"num_clients is {num_clients}", hint="it is 1 or more")
    most = num_examples // least
    if num_clients > most:
        raise SubflotError(
            f"{num_examples} examples are too few for {num_clients} clients with {least} or more "
            "each",
            hint=f"use {most} clients or fewer" if most else "lower min_examples",
        )
