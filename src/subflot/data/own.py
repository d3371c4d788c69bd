"""A user's own data without writing a class: arrays, tensors, lists and torch data sets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from subflot.data.dataset import Dataset
from subflot.data.source import Contents
from subflot.errors import SubflotError

if TYPE_CHECKING:
    from PIL.Image import Image


def from_arrays(
    inputs: Any,
    labels: Any,
    groups: Any = None,
    *,
    classes: Sequence[str] = (),
    name: str = "own",
    test_share: float = 0.2,
    spans: Any = None,
) -> Dataset:
    """Make a data set of arrays, tensors or lists.

    Args:
        inputs: one entry per example, all of one shape: uint8 images (channels, height, width),
            which a model gets in [-1, 1]; float numbers or integer tokens, which it gets as they
            are.
        labels: one per example: numbers from 0 without a gap, or names, numbered in their order.
        groups: one per example, numbers or names: whose it is, or where it comes from.
        classes: names of the labels, if these are numbers or their order matters.
        name: stands in messages and results.
        test_share: share of each client's examples that is kept for testing.
        spans: for windows of longer recordings: whole numbers (recording, start, stop), one row per
            example, where `stop` is the step behind its last. Each recording is then split in time,
            and windows that reach over a boundary are left out.

    Example:
        >>> data = from_arrays([[0.5], [1.5], [2.5]], ["dog", "cat", "dog"], groups=[17, 4, 4])
        >>> data.classes, data.labels, data.group_names, data.groups
        (('cat', 'dog'), array([1, 0, 1]), ('4', '17'), array([1, 0, 0]))
    """
    stacked = _stack(inputs, name)
    _check_finite(stacked, name)
    numbers, names = _number_labels(labels, tuple(classes), name)
    contents = Contents(stacked, numbers, names, spans=None if spans is None else _array(spans))
    if groups is not None:
        values, places = np.unique(_array(groups), return_inverse=True)
        contents = replace(contents, groups=places, group_names=tuple(map(str, values)))
    return make_dataset(name, contents, test_share)


def from_torch(dataset: Any, *, name: str = "own", test_share: float = 0.2) -> Dataset:
    """Read a torch data set of (input, label) pairs once, or a list of such sets, one per group.

    A transform is applied once, so a random one gives each example one random look.

    Args:
        dataset: anything with a length whose items are pairs; its `classes`, if it has them, are
            the names of the labels.
        name: stands in messages and results.
        test_share: share of each client's examples that is kept for testing.
    """
    from PIL.Image import Image

    is_list = isinstance(dataset, list | tuple)
    is_list = is_list and all(isinstance(one, torch.utils.data.Dataset) for one in dataset)
    sets = list(dataset) if is_list else [dataset]
    inputs, labels, groups = [], [], []
    for group, one in enumerate(sets):
        if not hasattr(one, "__len__"):
            raise SubflotError(
                f"{type(one).__name__} has no length",
                hint="give a data set whose items have numbers, or a list of its items",
            )
        for place in range(len(one)):
            item = one[place]
            try:
                example, label = item
            except (TypeError, ValueError):
                raise SubflotError(
                    f"item {place} of {type(one).__name__} is not an (input, label) pair",
                    hint="wrap the data set in one that returns just these two",
                ) from None
            inputs.append(_pixels(example) if isinstance(example, Image) else example)
            labels.append(label.item() if isinstance(label, Tensor | np.generic) else label)
            groups.append(group)
    classes = getattr(sets[0], "classes", ()) if sets else ()
    is_named = isinstance(classes, list | tuple)
    return from_arrays(
        inputs,
        labels,
        groups if is_list else None,
        classes=[str(label) for label in classes] if is_named else (),
        name=name,
        test_share=test_share,
    )


def make_dataset(name: str, contents: Contents, test_share: float) -> Dataset:
    """Make a data set of arrays that are in order; images are scaled to [-1, 1]."""
    inputs = contents.inputs
    is_image = inputs.dtype == np.uint8 and inputs.ndim == 4
    if is_image and inputs.shape[1] not in (1, 3, 4) and inputs.shape[3] in (1, 3, 4):
        raise SubflotError(
            f"data set `{name}`: images of shape {inputs.shape[1:]} have their channels last",
            hint="a model wants (channels, height, width): use inputs.transpose(0, 3, 1, 2)",
        )
    half = (0.5,) * inputs.shape[1] if is_image else ()
    return Dataset(
        name=name,
        inputs=inputs,
        labels=contents.labels,
        classes=contents.classes,
        groups=contents.groups,
        group_names=contents.group_names,
        test_share=test_share,
        mean=half,
        std=half,
        spans=contents.spans,
    )


def _stack(inputs: Any, name: str) -> NDArray[Any]:
    """Bring examples into one array; an error names the first that does not fit."""
    if isinstance(inputs, np.ndarray | Tensor):
        stacked = _array(inputs)
    else:
        entries = [_array(entry) for entry in inputs]
        for place, entry in enumerate(entries):
            if entry.dtype.kind not in "uif":
                raise SubflotError(
                    f"data set `{name}`: example {place} is a {type(inputs[place]).__name__}",
                    hint="give numbers, arrays or tensors; a transform can make them",
                )
            if entry.shape != entries[0].shape:
                raise SubflotError(
                    f"data set `{name}`: example {place} has shape {entry.shape}, the first "
                    f"{entries[0].shape}",
                    hint="bring all examples to one shape",
                )
        if not entries:
            raise SubflotError(f"data set `{name}` has no examples")
        stacked = np.stack(entries)
    # A model takes single precision, which needs half the memory.
    return stacked.astype(np.float32) if stacked.dtype == np.float64 else stacked


def _check_finite(inputs: NDArray[Any], name: str) -> None:
    """Refuse numbers that no model can learn from; an error names the first example with one."""
    if inputs.dtype.kind != "f" or np.isfinite(inputs).all():
        return
    is_finite = np.isfinite(inputs).reshape(len(inputs), -1)
    first = int(np.argmin(is_finite.all(axis=1)))
    value = inputs[first].reshape(-1)[np.argmin(is_finite[first])]
    raise SubflotError(
        f"data set `{name}`: example {first} holds {value}",
        hint="leave such examples out, or put a number in its place",
    )


def _pixels(image: "Image") -> NDArray[np.uint8]:
    """Pixels of a picture, (channels, height, width); grey ones have one channel."""
    if image.mode in ("1", "L"):
        return np.asarray(image.convert("L"))[None]
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def _array(values: Any) -> NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _number_labels(
    labels: Any, classes: tuple[str, ...], name: str
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Number labels that are names; check those that are numbers."""
    values = _array(labels)
    if values.dtype.kind == "U":
        names = classes or tuple(str(value) for value in np.unique(values))
        places = {label: place for place, label in enumerate(names)}
        unknown = sorted(set(values.tolist()) - set(places))
        if unknown:
            raise SubflotError(
                f"data set `{name}`: label `{unknown[0]}` is none of its classes",
                hint=f"classes are {', '.join(names)}",
            )
        return np.array([places[value] for value in values.tolist()], dtype=np.int64), names
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise SubflotError(
            f"data set `{name}`: its labels have type {values.dtype} and shape {values.shape}",
            hint="give one whole number from 0, or one name, per example",
        )
    found = np.unique(values)
    if not classes and not np.array_equal(found, np.arange(len(found))):
        raise SubflotError(
            f"data set `{name}`: its {len(found)} labels are {found[0]} to {found[-1]}, expected 0 "
            f"to {len(found) - 1}",
            hint="number them from 0 without a gap, name all `classes`, or give labels as text",
        )
    return values.astype(np.int64), classes or tuple(str(number) for number in found)
