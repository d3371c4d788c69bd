"""A data set in memory, or mapped from disk, from which batches are taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from subflot.data.mapped import MappedFile
from subflot.errors import SubflotError

Indices = NDArray[np.integer[Any]] | Sequence[int] | Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples with labels, raw as stored; batches come out as the model wants them.

    The arrays are read-only views. Those that are mapped from a file travel to another process as
    the name of that file, so that every process reads the same pages of memory.

    Example:
        >>> images = np.array([[[[0, 255]]], [[[51, 102]]]], dtype=np.uint8)
        >>> data = Dataset("tiny", images, np.array([1, 0]), ("cat", "dog"))
        >>> data.input_shape, data.tensors([0])
        ((1, 1, 2), (tensor([[[[0., 1.]]]]), tensor([1])))
    """

    name: str
    inputs: NDArray[Any]
    """(examples, ...): uint8 images (examples, channels, height, width), float signals, or integer
    tokens."""
    labels: NDArray[np.int64]
    """(examples,): label i is `classes[i]`."""
    classes: tuple[str, ...]
    groups: NDArray[np.int64] | None = None
    """(examples,): domain or subject of each example; group i is `group_names[i]`."""
    group_names: tuple[str, ...] = ()
    test_share: float = 0.2
    """Share of each client's examples that is kept for testing."""
    mean: tuple[float, ...] = ()
    """One per channel of uint8 images, which become (x / 255 - mean) / std; empty: x / 255."""
    std: tuple[float, ...] = ()
    spans: NDArray[np.int64] | None = None
    """(examples, 3): recording, first step and the step behind the last of each example that is a
    window of a longer recording. Such examples are split in time, and never at random."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _read_only(self.inputs))
        if self.inputs.dtype.kind not in "uif" or self.inputs.ndim == 0 or not len(self):
            raise self._error(
                f"its inputs have shape {self.inputs.shape} and type {self.inputs.dtype}",
                "give one or more examples of uint8 images, float signals or integer tokens",
            )
        object.__setattr__(self, "labels", self._numbers("labels", self.labels, self.classes))
        if self.groups is not None or self.group_names:
            groups = () if self.groups is None else self.groups
            object.__setattr__(self, "groups", self._numbers("groups", groups, self.group_names))
        if self.spans is not None:
            object.__setattr__(self, "spans", self._checked_spans(self.spans))
        if not 0 <= self.test_share < 1:
            raise self._error(f"test_share is {self.test_share}", "it lies in [0, 1)")
        self._check_scaling()

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example, without the batch."""
        return self.inputs.shape[1:]

    def tensors(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Copy these examples out, ready for a model.

        Inputs are float32, images scaled as `mean` and `std` say; tokens are int64, and so are the
        labels.
        """
        chosen = np.asarray(indices)
        if chosen.dtype.kind not in "iu" and chosen.size:
            raise self._error(f"it was indexed with {chosen.dtype}", "give the numbers of examples")
        chosen = chosen.astype(np.int64, copy=False)
        labels = torch.from_numpy(np.asarray(self.labels)[chosen])
        inputs = torch.from_numpy(np.asarray(self.inputs)[chosen])
        if self.inputs.dtype == np.uint8:
            scale, shift = self._scaling
            return inputs.to(torch.float32).mul_(scale).add_(shift), labels
        wanted = torch.float32 if inputs.is_floating_point() else torch.int64
        return inputs.to(wanted), labels

    def __getstate__(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: MappedFile.of(value) or value for name, value in fields.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            opened = value.open() if isinstance(value, MappedFile) else value
            object.__setattr__(
                self, name, _read_only(opened) if isinstance(opened, np.ndarray) else opened
            )

    @cached_property
    def _scaling(self) -> tuple[Tensor, Tensor]:
        """The factor and the summand that turn bytes into what a model takes."""
        channels = (-1, *(1 for _ in self.input_shape[1:]))
        mean = torch.tensor(self.mean or (0.0,), dtype=torch.float64).reshape(channels)
        std = torch.tensor(self.std or (1.0,), dtype=torch.float64).reshape(channels)
        return (1 / (255 * std)).float(), (-mean / std).float()

    def _numbers(self, what: str, values: Any, names: Sequence[str]) -> NDArray[np.int64]:
        """Check that there is a number for every example, and a name for every number."""
        numbers = np.asanyarray(values)
        if numbers.shape != (len(self),):
            raise self._error(
                f"its {what} have shape {numbers.shape}", f"there are {len(self)} examples"
            )
        if numbers.dtype.kind not in "iu":
            raise self._error(f"its {what} are {numbers.dtype}", "they are whole numbers from 0")
        wrong = (numbers < 0) | (numbers >= len(names))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise self._error(
                f"example {first} has {what[:-1]} {numbers[first]}",
                f"there are {len(names)} names for {what}, so they lie in [0, {len(names)})",
            )
        return _read_only(numbers.astype(np.int64, copy=False))

    def _checked_spans(self, values: Any) -> NDArray[np.int64]:
        """Check that every example has a span, and that none is empty."""
        spans = np.asanyarray(values)
        if spans.shape != (len(self), 3) or spans.dtype.kind not in "iu":
            raise self._error(
                f"its spans have shape {spans.shape} and type {spans.dtype}",
                f"give whole numbers (recording, start, stop) for each of {len(self)} examples",
            )
        spans = spans.astype(np.int64, copy=False)
        is_empty = spans[:, 1] >= spans[:, 2]
        if is_empty.any():
            first = int(np.argmax(is_empty))
            raise self._error(
                f"example {first} has the span {spans[first].tolist()}",
                "it is (recording, start, stop) with start below stop",
            )
        return _read_only(spans)

    def _check_scaling(self) -> None:
        if not self.mean and not self.std:
            return
        wanted = self.input_shape[0] if self.inputs.dtype == np.uint8 and self.input_shape else 0
        if len(self.mean) != wanted or len(self.std) != wanted or min(self.std, default=1) <= 0:
            raise self._error(
                f"mean {self.mean} and std {self.std} do not fit inputs of type "
                f"{self.inputs.dtype} and shape {self.input_shape}",
                "uint8 images take one of each per channel, std above 0; other inputs take none",
            )

    def _error(self, message: str, hint: str) -> SubflotError:
        return SubflotError(f"data set `{self.name}`: {message}", hint=hint)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = np.asanyarray(array).view()
    view.flags.writeable = False
    return view
