"""Human activity recognition from a phone's sensors; the subject is the group.

Paper: "A Public Domain Dataset for Human Activity Recognition Using Smartphones", ESANN 2013.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import ZipReader, damaged
from subflot.data.settings import NoSettings
from subflot.data.source import Contents, Files, Source, SourceFile

TOP = "UCI HAR Dataset"
INNER = f"{TOP}.zip"
OUTER = "human+activity+recognition+using+smartphones.zip"
STEPS = 128
SIGNALS = tuple(
    f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
)


def read_har(files: Files, settings: NoSettings) -> Contents:
    """Read the windows as (windows, 9, 1, 128): signals are channels. Values stay as they are."""
    with _open(files) as archive:
        activities = _activities(archive)
        parts = [_part(archive, part) for part in ("train", "test")]
    inputs, labels, subjects = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    numbers = sorted(activities)
    unknown = labels[~np.isin(labels, numbers)]
    if unknown.size:
        raise damaged(archive.path, f"label {unknown[0]} is not in `activity_labels.txt`")
    names, groups = np.unique(subjects, return_inverse=True)
    return Contents(
        inputs,
        np.searchsorted(numbers, labels),
        tuple(activities[number] for number in numbers),
        groups.astype(np.int64),
        tuple(f"subject {name}" for name in names),
    )


def _open(files: Files) -> ZipReader:
    """The archive that holds the data; the download is a zip file around it."""
    if INNER in files:
        return ZipReader(files[INNER])
    with ZipReader(files[OUTER]) as outer:
        return ZipReader(Path(outer.path, INNER), outer.read(INNER))


def _activities(archive: ZipReader) -> dict[int, str]:
    """Number of an activity, from 1 -> its name."""
    name = f"{TOP}/activity_labels.txt"
    try:
        pairs = [line.split() for line in archive.lines(name) if line.strip()]
        return {int(number): activity.lower() for number, activity in pairs}
    except ValueError as error:
        raise damaged(archive.path, f"`{name}` has no rows of number and name") from error


def _part(archive: ZipReader, part: str) -> tuple[NDArray[Any], ...]:
    """The windows of a part, (windows, signals, 1, steps), with their activities and subjects."""
    folder = f"{TOP}/{part}"
    signals = [
        _table(archive, f"{folder}/Inertial Signals/{signal}_{part}.txt", STEPS)
        for signal in SIGNALS
    ]
    labels, subjects = (
        _table(archive, f"{folder}/{kind}_{part}.txt", 1)[:, 0].astype(np.int64)
        for kind in ("y", "subject")
    )
    lengths = {len(labels), len(subjects), *(len(signal) for signal in signals)}
    if len(lengths) > 1:
        raise damaged(archive.path, f"the files of `{folder}` have {sorted(lengths)} rows")
    return np.stack(signals, axis=1)[:, :, None, :], labels, subjects


def _table(archive: ZipReader, name: str, columns: int) -> NDArray[np.float32]:
    """The numbers of a text file, shape (rows, columns)."""
    try:
        table = np.loadtxt(archive.lines(name), dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise damaged(archive.path, f"`{name}` is not a table of numbers ({error})") from error
    if table.shape[1] != columns or not np.isfinite(table).all():
        raise damaged(archive.path, f"`{name}` has no rows of {columns} finite numbers")
    return table


HAR = Source(
    "har",
    "UCI HAR: 10,299 windows of 9 sensor signals, 6 activities of 30 people",
    "research, not commercial",
    "https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    2 / 7,
    NoSettings,
    read_har,
    (
        (SourceFile(OUTER, f"https://archive.ics.uci.edu/static/public/240/{OUTER}"),),
        (SourceFile(INNER),),
    ),
)
