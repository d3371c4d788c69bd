"""The data sets by name, and how one is loaded. A further set is one file and one line here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from subflot.data.ag_news import AG_NEWS
from subflot.data.cache import cached, identity
from subflot.data.cifar import CIFAR10, CIFAR100
from subflot.data.dataset import Dataset
from subflot.data.digit5 import DIGIT5
from subflot.data.digits import DIGITS, DIGITS_DOMAINS
from subflot.data.har import HAR
from subflot.data.mnist import FASHION_MNIST, MNIST
from subflot.data.own import make_dataset
from subflot.data.pacs import PACS
from subflot.data.settings import fill, values_of
from subflot.data.source import Contents, Source
from subflot.data.tiny_imagenet import TINY_IMAGENET
from subflot.data.watch import WATCH
from subflot.errors import SubflotError, UnknownName

SETS: Mapping[str, Source[Any]] = {
    source.name: source
    for source in (
        CIFAR10,
        CIFAR100,
        TINY_IMAGENET,
        AG_NEWS,
        DIGIT5,
        PACS,
        HAR,
        WATCH,
        MNIST,
        FASHION_MNIST,
        DIGITS,
        DIGITS_DOMAINS,
    )
}


def find(name: str) -> Source[Any]:
    """The data set registered as `name`; an unknown name is an error that offers the nearest."""
    try:
        return SETS[name.replace("_", "-")]
    except KeyError:
        raise UnknownName("data set", name, SETS, "subflot data list") from None


def load(name: str, *, root: Path | str | None = None, **settings: Any) -> Dataset:
    """Load a data set: official training and test parts in one, in this order.

    The first time its files are read where they lie and written to the cache as plain arrays;
    later these are mapped into memory, which takes no time and is shared between processes.
    Images come out of `tensors` in [-1, 1]: their mean and std are taken as 0.5 for every set and
    channel, so that the scale depends on no client's data.

    Args:
        name: one of `SETS`.
        root: folder that holds a folder per data set; by default SUBFLOT_DATA or the user's own.
        settings: what the set offers, such as `size` and `channels` of images.
    """
    source = find(name)
    chosen = fill(source.settings, settings, source.name)
    files = source.locate(chosen, None if root is None else Path(root))

    def made(contents: Contents) -> Dataset:
        return make_dataset(source.name, contents, source.test_share)

    def read() -> Contents:
        contents = source.read(files, chosen)
        _check_complete(made(contents))  # Before it is kept for good.
        return contents

    return made(cached(identity(source.name, values_of(chosen), files), read))


def require(name: str, **settings: Any) -> None:
    """Refuse a data set whose files are not here; the error says how to get them."""
    source = find(name)
    source.locate(fill(source.settings, settings, source.name))


def _check_complete(data: Dataset) -> None:
    """Refuse a class or group without examples: a file is missing something."""
    numbered = [("class", data.classes, data.labels)]
    if data.groups is not None:
        numbered.append(("group", data.group_names, data.groups))
    for kind, names, numbers in numbered:
        counts = np.bincount(numbers, minlength=len(names))
        if not counts.all():
            raise SubflotError(
                f"data set `{data.name}`: {kind} `{names[int(counts.argmin())]}` has no examples",
                hint="its files are incomplete: get them again",
            )
