"""What comes from a client is read with suspicion: nothing is believed about its size.

An array names its own shape, and a shape of a hundred thousand million entries fits in a hundred
bytes. So an array is compared with what was sent, and with the bytes that are there, before it is
made.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Set
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, Message, RecordDict
from flwr.common.constant import ErrorCode
from numpy.lib import format as npy
from safetensors import SafetensorError
from torch import Tensor

from subflot.algorithms.base import Download, Upload
from subflot.algorithms.check import MOST_EXAMPLES
from subflot.errors import SubflotError
from subflot.flower.records import ARRAYS, CONFIG, METRICS, NUMPY_TYPES, unpacked
from subflot.simulation.part import PHASES, Answer
from subflot.texts import clean
from subflot.training import Measurement

LARGEST_HEADER = 512
MOST_METRICS = 50
NAME_OF_METRIC = re.compile(r"[\w./ -]{1,50}", re.ASCII)
LARGEST_METRIC = 1e100
"""Far beyond what single precision holds, and the sum of many is still finite."""
MOST_SECONDS = 1e9
MOST_COST = 1e18
"""Parameters, or multiply-adds for one example."""
LONGEST_REASON = 160
LONGEST_FAULT = 200
SPARE_BYTES = 2**20
"""What indices and extras may take beyond the bytes of the full model."""


NO_ANSWER = "no answer before the deadline"
ERRORS = {
    ErrorCode.MESSAGE_UNAVAILABLE: NO_ANSWER,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: NO_ANSWER,
    ErrorCode.NODE_UNAVAILABLE: "its node is gone",
}


class Refused(SubflotError):  # noqa: N818 - it is raised as what it says
    """An answer that cannot be read; the message says why."""


def content_of(reply: Message | Refused) -> RecordDict:
    """Return what a reply carries; raise `Refused` if it carries an error."""
    if isinstance(reply, Refused):
        raise reply
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason or ""
        last = reason.strip().rpartition("\n")[2]
        raise Refused(ERRORS.get(code) or f"error {code} on its side: {_short(last)}")
    return reply.content


def read_answer(records: RecordDict, sent: Download, full_bytes: int) -> tuple[Answer, bool]:
    """Read an answer, or raise `Refused`; also say whether the client remembers something.

    Args:
        records: what came.
        sent: what the client had received; shapes and types alone are looked at.
        full_bytes: size of the full model, for a bound on extras.
    """
    arrays, config, metrics = _parts(records)
    fractions = {name for name, tensor in sent.weights.items() if tensor.is_floating_point()}
    _demand(arrays, fractions)
    weights = {name: array_tensor(name, arrays[name], sent.weights[name]) for name in arrays}
    allowed = full_bytes + SPARE_BYTES
    whole = _bytes(config, "whole", allowed)
    _demand(whole, sent.weights.keys() - fractions)
    weights |= whole
    order = config.get("names")
    if not isinstance(order, list) or sorted(map(str, order)) != sorted(weights):
        raise Refused("it names other tensors than it sends")
    is_told, is_remembering = config.get("is_told"), config.get("is_remembering")
    if not isinstance(is_told, bool) or not isinstance(is_remembering, bool):
        raise Refused("it does not say whose channels they are, or whether it remembers")
    upload = Upload(
        {name: weights[name] for name in order},
        _whole(metrics, "num_examples"),
        sent.kept if is_told else _bytes(config, "kept", allowed),
        _bytes(config, "extras", allowed),
        _named(metrics, "metrics.", _of_training),
    )
    answer = Answer(
        upload,
        {},
        _measurement(metrics, "trained."),
        _measurement(metrics, "extracted."),
        _number(metrics, "parameters", 0, MOST_COST),
        _number(metrics, "multiply_adds", 0, MOST_COST),
        _named(metrics, "seconds.", partial(_number, least=0, most=MOST_SECONDS)),
    )
    odd = sorted(answer.seconds.keys() - set(PHASES))
    if odd:
        raise Refused(f"it reports seconds of `{odd[0]}`, expected {' and '.join(PHASES)}")
    return answer, is_remembering


def read_measurement(records: RecordDict) -> Measurement | None:
    """Read how the global model does at a client; None if it has nothing to measure on."""
    metrics = records.metric_records.get(METRICS)
    return None if metrics is None else _measurement(dict(metrics), "")


def array_tensor(name: str, array: Array, sent: Tensor) -> Tensor:
    """Make the tensor that an array holds, if it can be a part of what was sent.

    No more memory is taken than the bytes that came.
    """
    stream = BytesIO(array.data[: LARGEST_HEADER + 16])
    try:
        if array.stype != "numpy.ndarray" or npy.read_magic(stream) != (1, 0):
            raise ValueError("it has another version")
        header = npy.read_array_header_1_0(stream, max_header_size=LARGEST_HEADER)
    except ValueError as error:
        raise Refused(f"tensor `{name}` is no array: {error}") from None
    shape, is_turned, dtype = header
    if is_turned or dtype != np.dtype(NUMPY_TYPES[sent.dtype]):
        raise Refused(f"tensor `{name}` is {dtype}, and {sent.dtype} was sent")
    too_long = len(shape) != sent.dim() or any(
        not 0 <= own <= there for own, there in zip(shape, sent.shape, strict=True)
    )
    if too_long or tuple(array.shape) != shape:
        raise Refused(f"tensor `{name}` has shape {_short(shape)}, expected {tuple(sent.shape)}")
    start, size = stream.tell(), math.prod(shape) * dtype.itemsize
    if len(array.data) - start != size:
        raise Refused(
            f"tensor `{name}` has {len(array.data) - start:,} bytes, its shape wants {size:,}"
        )
    values = np.frombuffer(array.data, dtype, offset=start).reshape(shape)
    return torch.from_numpy(values.copy())


def _demand(found: Iterable[str], wanted: Set[str]) -> None:
    odd = sorted(set(found) ^ wanted)
    if odd:
        raise Refused(f"its tensors are not those that were sent: {', '.join(odd[:3])}")


def _parts(records: RecordDict) -> tuple[Mapping[str, Array], dict[str, Any], dict[str, Any]]:
    wanted = {ARRAYS, CONFIG, METRICS}
    found = (records.array_records, records.config_records, records.metric_records)
    if set(records) != wanted or [len(kind) for kind in found] != [1, 1, 1]:
        raise Refused(f"it consists of {', '.join(sorted(records)[:5]) or 'nothing'}")
    return (
        records.array_records[ARRAYS],
        dict(records.config_records[CONFIG]),
        dict(records.metric_records[METRICS]),
    )


def _bytes(config: Mapping[str, Any], key: str, most: int) -> dict[str, Tensor]:
    data = config.get(key)
    if not isinstance(data, bytes) or len(data) > most:
        raise Refused(f"its `{key}` are no tensors of at most {most:,} bytes")
    try:
        return unpacked(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise Refused(f"its `{key}` cannot be read: {error}") from None


def _number(metrics: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = metrics.get(key)
    # NaN lies between no two numbers.
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return value
    raise Refused(f"its `{key}` is {_short(value)}")


def _of_training(metrics: Mapping[str, Any], key: str) -> float:
    """Read a number that is infinite or NaN where an honest client's training diverged."""
    value = metrics.get(key)
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return _number(metrics, key, -LARGEST_METRIC, LARGEST_METRIC)


def _whole(metrics: Mapping[str, Any], key: str) -> int:
    value = _number(metrics, key, 0, MOST_EXAMPLES - 1)
    if not isinstance(value, int):
        raise Refused(f"its `{key}` is {_short(value)}")
    return value


def _measurement(metrics: Mapping[str, Any], prefix: str) -> Measurement | None:
    if f"{prefix}num_examples" not in metrics:
        return None
    count = _whole(metrics, f"{prefix}num_examples")
    correct = _whole(metrics, f"{prefix}num_correct")
    if not correct <= count or not count:
        raise Refused(f"it claims {correct} right of {count}")
    return Measurement(count, correct, float(_of_training(metrics, f"{prefix}loss")))


def _named(
    metrics: Mapping[str, Any], prefix: str, read: Callable[[Mapping[str, Any], str], float]
) -> dict[str, float]:
    """Read numbers that have names of the client's choosing."""
    values = {n.removeprefix(prefix): metrics[n] for n in metrics if n.startswith(prefix)}
    if len(values) > MOST_METRICS or not all(map(NAME_OF_METRIC.fullmatch, values)):
        raise Refused("it reports too many numbers, or under names that are too long or odd")
    return {name: read(values, name) for name in values}


def _short(value: object) -> str:
    text = str(value)
    shown = clean(text, LONGEST_REASON)
    return shown if len(text) <= LONGEST_REASON else shown + "..."
