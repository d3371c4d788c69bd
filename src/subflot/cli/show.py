"""What the commands share: how they print, and the options that name a model."""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from subflot.models import MODELS

MODEL_HELP = f"FILE.py:Class, module:Class, or one of: {', '.join(MODELS)}."

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="Shape of one example without its batch, as 3,32,32; 128:int for tokens, "
        "128:int:5000 for tokens below 5000. Repeat it for a model with several inputs.",
    ),
]
Classes = Annotated[int | None, typer.Option(help="Classes of a bundled model.", min=1)]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that the run names as its model.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def show(shown: Table | str) -> None:
    """Print for a reader; without a terminal lines are long enough to hold every name."""
    Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False).print(
        shown, highlight=False, markup=False
    )


def show_json(value: dict[str, Any]) -> None:
    """Print for a program."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")
