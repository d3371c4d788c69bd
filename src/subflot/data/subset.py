"""A smaller data set that looks like the whole one, for runs that must be short."""

from dataclasses import replace

import numpy as np

from subflot.data.dataset import Dataset
from subflot.errors import SubflotError
from subflot.seeding import numpy_generator


def subset(dataset: Dataset, count: int, seed: int = 0) -> Dataset:
    """Keep `count` examples, drawn at random, of every class of every group the same share.

    Where shares are no whole numbers a class may have one example more or less than its share. A
    set that has no more examples than asked for is returned as it is.

    Example:
        >>> whole = Dataset("tiny", np.zeros((40, 3)), np.arange(40) % 4 // 3, ("often", "rare"))
        >>> np.bincount(subset(whole, 12).labels).tolist()
        [9, 3]
    """
    if count < 1:
        raise SubflotError(f"{count} examples are to be kept", hint="at least 1")
    if count >= len(dataset):
        return dataset
    groups = 0 if dataset.groups is None else dataset.groups
    kinds = np.asarray(groups) * len(dataset.classes) + dataset.labels
    _, kind, sizes = np.unique(kinds, return_inverse=True, return_counts=True)
    order = numpy_generator(seed, "subset").permutation(len(dataset))
    order = order[np.argsort(kind[order], kind="stable")]
    place = np.empty_like(order)  # Of each example among those of its kind.
    place[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    # The first example of a small kind comes when a large one has had its share of them.
    turn = (place + 0.5) / sizes[kind]
    kept = np.sort(order[np.argsort(turn[order], kind="stable")[:count]])
    return replace(
        dataset,
        inputs=np.asarray(dataset.inputs)[kept],
        labels=np.asarray(dataset.labels)[kept],
        groups=None if dataset.groups is None else np.asarray(dataset.groups)[kept],
        spans=None if dataset.spans is None else np.asarray(dataset.spans)[kept],
    )
