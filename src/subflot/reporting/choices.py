"""What trials chose, in words: below a table, and below the summary of a file of runs."""

from collections.abc import Iterable, Mapping
from typing import Any


def told(choices: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write a line for each task: what was chosen for each method, and what is to be known of it.

    Example:
        >>> one = {"algorithm": "fedprox", "task": "har", "learning_rate": 0.3, "is_inside": False}
        >>> told([{**one, "settings": {"mu": 0.1}, "is_complete": True, "trials": [1, 2, 3]}])
        ['Chosen on validation examples, har: fedprox 0.3, mu 0.1 (3 trials, at an end).']
    """
    found: dict[str, list[str]] = {}
    for choice in choices:
        if choice["trials"]:
            found.setdefault(choice["task"], []).append(_one(choice))
    return [
        f"Chosen on validation examples, {task}: {'; '.join(each)}." for task, each in found.items()
    ]


def scores(choice: Mapping[str, Any]) -> str:
    """List what each trial led to.

    Example:
        >>> trial = {"learning_rate": 0.3, "settings": {"mu": 0.1}, "score": 0.5}
        >>> scores({"trials": [trial, {**trial, "settings": {}, "score": None}]})
        '0.3, mu 0.1: 50.00 %; 0.3: failed'
    """
    return "; ".join(
        f"{_settings(one)}: "
        + ("failed" if one["score"] is None else f"{100 * one['score']:.2f} %")
        for one in choice["trials"]
    )


def _one(choice: Mapping[str, Any]) -> str:
    count = len(choice["trials"])
    remarks = [f"{count} trial" + ("s" if count != 1 else "")]
    if choice["learning_rate"] is None:
        return f"{choice['algorithm']} none ({remarks[0]}, all failed)"
    if not choice["is_inside"]:
        remarks.append("at an end")
    if not choice["is_complete"]:
        remarks.append("more to come")
    return f"{choice['algorithm']} {_settings(choice)} ({', '.join(remarks)})"


def _settings(one: Mapping[str, Any]) -> str:
    own = {"": one["learning_rate"], **one["settings"]}
    shown = {key: f"{v:g}" if isinstance(v, float) else str(v) for key, v in own.items()}
    return ", ".join(f"{key} {value}".strip() for key, value in shown.items())
