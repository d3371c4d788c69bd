"""Exercises recorded by a smartwatch; each arm of each person is a group.

Paper: "Shoulder physiotherapy exercise recognition: machine learning the inertial signals from a
smartwatch", Physiological Measurement 2018. The recordings come with the Python package seglearn.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import ZipReader, damaged, read_file
from subflot.data.packages import Package, in_python
from subflot.data.pickles import load_single
from subflot.data.settings import NoSettings
from subflot.data.source import Contents, Files, Source, SourceFile

VERSION = "1.2.5"
WHEEL = f"seglearn-{VERSION}-py3-none-any.whl"
INNER = "watch_dataset.npy"
STEPS = 128
"""Of a window: 2.56 seconds at 50 Hz. Each window begins in the middle of the one before it."""
SIGNALS = 6
ARMS = ("left", "right")


def read_watch(files: Files, settings: NoSettings) -> Contents:
    """Read the windows as (windows, 6, 1, 128): signals are channels. Values stay as they are."""
    path = next(iter(files.values()))
    if INNER in files:
        content = read_file(path)
    else:
        with ZipReader(path) as archive:
            content = archive.read(f"seglearn/data/{INNER}")
    found = load_single(content, path)
    try:
        recordings, exercises, people, sides, names = _checked(found)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(path, f"its recordings are not as published ({error!r})") from error
    if not any(len(signals) >= STEPS for signals in recordings):
        raise damaged(path, "no recording is as long as a window")
    starts = [np.arange(0, len(signals) - STEPS + 1, STEPS // 2) for signals in recordings]
    # Of each window: its recording, its first step and the step behind its last.
    spans = np.concatenate(
        [
            np.stack([np.full_like(first, number), first, first + STEPS], axis=1)
            for number, first in enumerate(starts)
        ]
    )
    arms, groups = np.unique(2 * people + sides, return_inverse=True)
    return Contents(
        np.stack([recordings[n][start:stop].T for n, start, stop in spans])[:, :, None, :],
        exercises[spans[:, 0]],
        names,
        groups[spans[:, 0]].astype(np.int64),
        tuple(f"person {arm // 2}, {ARMS[arm % 2]} arm" for arm in arms),
        spans,
    )


def _checked(
    found: Any,
) -> tuple[
    list[NDArray[np.float32]],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int64],
    tuple[str, ...],
]:
    """Take recordings (steps, 6), exercises, people, sides and names out of what was read."""
    if not isinstance(found, Mapping):
        raise TypeError(f"a {type(found).__name__} where a dict should be")
    recordings = [_signals(one) for one in found["X"]]
    names = tuple(str(name) for name in found["y_labels"])
    exercises = _numbers(found["y"], len(recordings), len(names))
    people = _numbers(found["subject"], len(recordings), 2**31)
    sides = _numbers(found["side"], len(recordings), len(ARMS))
    return recordings, exercises, people, sides, names


def _signals(values: Any) -> NDArray[np.float32]:
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
        raise ValueError("a recording is no array of numbers")
    if values.ndim != 2 or values.shape[1] != SIGNALS or not np.isfinite(values).all():
        raise ValueError(f"a recording has no rows of {SIGNALS} finite numbers")
    return values.astype(np.float32)


def _numbers(values: Any, count: int, limit: int) -> NDArray[np.int64]:
    """Check that there is one whole number from 0 up to a limit for each recording."""
    numbers = np.asarray(values)
    is_whole = numbers.dtype.kind in "iuf" and bool((numbers == np.floor(numbers)).all())
    if numbers.shape != (count,) or not is_whole:
        raise ValueError(f"{count} recordings, but no such many whole numbers")
    if ((numbers < 0) | (numbers >= limit)).any():
        raise ValueError(f"a number lies outside of [0, {limit})")
    return numbers.astype(np.int64)


WATCH = Source(
    "watch",
    "smartwatch: 3,605 windows of 6 sensor signals, 7 exercises, 20 arms of 10 people",
    "BSD 3-Clause",
    "https://github.com/dmbee/seglearn",
    0.25,
    NoSettings,
    read_watch,
    (
        (SourceFile(WHEEL, md5="c24d5b5f895a732963ae93fb9241f659"),),
        (SourceFile(INNER, md5="2549546e08309e6ecb14195230464f96"),),
    ),
    Package(
        (
            "python",
            *("-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
            f"seglearn=={VERSION}",
        ),
        in_python("seglearn", "data"),
    ),
)
