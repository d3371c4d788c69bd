"""What runs the clients of a config: this machine's processes, or Flower."""

import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError, UnknownName
from subflot.experiments.runner import Engine
from subflot.results import FLOWER

ENGINES = ("built-in", "flower")
TABLE = "flower"


def without_flower(settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part settings from those that are for Flower alone.

    Example:
        >>> without_flower({"rounds": 3, "flower": {"min_nodes": 2}, "flower.min_uploads": 2})
        ({'rounds': 3}, {'min_nodes': 2, 'min_uploads': 2})
    """
    table = settings.get(TABLE, {})
    if not isinstance(table, dict):
        raise SubflotError(f"{TABLE} is {table!r}", hint=f"write [{TABLE}] and its settings below")
    dotted = {key: value for key, value in settings.items() if key.startswith(f"{TABLE}.")}
    rest = {k: v for k, v in settings.items() if k != TABLE and k not in dotted}
    return rest, {**table, **{k.partition(".")[2]: v for k, v in dotted.items()}}


def engine_of(name: str, table: Mapping[str, Any]) -> Engine | None:
    """Return an engine by name, with its settings; None for the built-in one."""
    if name not in ENGINES:
        raise UnknownName("engine", name, ENGINES, "subflot run --help")
    if name == "built-in":
        return None
    try:
        from subflot.experiments.flower import run_on_ray
        from subflot.flower.settings import FlowerSettings
    except ImportError as error:
        raise SubflotError(
            f"Flower is not installed: {error}", hint="pip install 'subflot[flower-sim]'"
        ) from None

    return partial(run_on_ray, settings=FlowerSettings.of(table))


def engine_in(folder: Path) -> Engine | None:
    """Return the engine that a run was begun with."""
    path = folder / FLOWER
    return engine_of("flower", tomllib.loads(path.read_text())) if path.is_file() else None
