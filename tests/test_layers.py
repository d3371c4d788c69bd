"""Imports point one way: a file uses its own folder and what is listed before it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "subflot"

ORDER = (
    "errors",
    "drawing",
    "texts",
    "results",
    "seeding",
    "threads",
    "weights",
    "channels",
    "transport",
    "models",
    "data",
    "task",
    "training",
    "algorithms",
    "simulation",
    "flower",
    "experiments",
    "reporting",
    "public",
    "__init__",
    "paper",  # made with the library; only the command line stands above it
    "cli",
)


def layer(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_layers(source: str) -> Iterator[str]:
    """The layer of each import from the package, whichever way it is written."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write relative imports as absolute ones"
            # `from subflot import x` may name a module as well as a public name.
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            package, _, rest = module.partition(".")
            if package == "subflot":
                first = rest.partition(".")[0]
                yield first if first in ORDER else "__init__"


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_to_earlier_layers(file: Path) -> None:
    own = layer(file)
    assert own in ORDER, f"give {own!r} its place in ORDER"
    allowed = ORDER[: ORDER.index(own) + 1]
    assert [used for used in imported_layers(file.read_text()) if used not in allowed] == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import subflot.cli", ["cli"]),
        ("import torch, subflot.data.images as images", ["data"]),
        ("from subflot.channels.trace import trace", ["channels"]),
        ("from subflot import models, trace", ["models", "__init__"]),
        ("import subflot", ["__init__"]),
        ("def late():\n    from subflot.errors import SubflotError", ["errors"]),
        ("import subflotilla\nfrom torch import nn", []),
    ],
)
def test_every_way_to_import_is_seen(source: str, expected: list[str]) -> None:
    assert list(imported_layers(source)) == expected
