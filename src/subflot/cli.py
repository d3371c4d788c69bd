"""The command line: parses, calls, prints. Data goes to stdout, messages to stderr."""

import json
import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from subflot.channels import ChannelMap, Segment, trace
from subflot.channels.cost import Cost, cost, mean_cost
from subflot.errors import SubflotError
from subflot.models import MODELS
from subflot.models.load import load
from subflot.models.printed import PrintedCost

app = typer.Typer(
    name="subflot",
    help="Federated learning in which every client trains a model of its own size.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[
    str,
    typer.Argument(help=f"FILE.py:Class, module:Class, or one of: {', '.join(MODELS)}."),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="Shape of one example without its batch, as 3,32,32; 128:int for tokens, "
        "128:int:5000 for tokens below 5000. Repeat it for a model with several inputs.",
    ),
]
Classes = Annotated[int | None, typer.Option(help="Classes of a bundled model.", min=1)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.callback()
def _commands() -> None:
    """Keep subcommands even while there is only one."""


@app.command("cost", epilog="Example: subflot cost vgg11 --rates 0,0.5")
def cost_command(
    model: Model,
    rates: Annotated[
        str, typer.Option(help="Shares of channels removed, separated by commas.")
    ] = "0,0.25,0.5,0.75",
    inputs: Inputs = None,
    classes: Classes = None,
    as_json: Json = False,
) -> None:
    """Show what a model costs at each pruning rate: parameters, multiply-adds, bytes to send."""
    pruning_rates = _rates(rates)
    module, example = load(model, inputs or (), classes)
    channels = trace(module, example)
    one = tuple(tensor[:1] for tensor in example)
    costs = [cost(module, channels, one, rate) for rate in pruning_rates]
    printed = None
    if pruning_rates == [0, 0.25, 0.5, 0.75] and not inputs and classes in (None, 10):
        printed = MODELS[model].printed if model in MODELS else None
    if as_json:
        rows = [
            {"pruning_rate": rate} | _cost_fields(c)
            for rate, c in zip(pruning_rates, costs, strict=True)
        ]
        result: dict[str, Any] = {"rates": rows, "mean": _cost_fields(mean_cost(costs))}
        if printed:
            result["paper"] = [vars(cell) for cell in printed.compare(costs[0], mean_cost(costs))]
        _print_json(result)
        return
    table = Table("pruning rate", "parameters", "multiply-adds", "bytes", title=f"cost of {model}")
    for rate, c in zip(pruning_rates, costs, strict=True):
        table.add_row(f"{rate:g}", *(f"{value:,.0f}" for value in _cost_fields(c).values()))
    table.add_section()
    table.add_row("mean", *(f"{v:,.0f}" for v in _cost_fields(mean_cost(costs)).values()))
    _print(table)
    if printed:
        _print(_comparison(printed, costs[0], mean_cost(costs)))


def _rates(text: str) -> list[float]:
    try:
        return [float(rate) for rate in text.split(",")]
    except ValueError:
        raise SubflotError(
            f"`{text}` is not a list of pruning rates", hint="write them as 0,0.25,0.5"
        ) from None


def _cost_fields(one: Cost) -> dict[str, float]:
    return {
        "parameters": one.parameters,
        "multiply_adds": one.multiply_adds,
        "bytes": one.bytes,
    }


def _comparison(printed: PrintedCost, full: Cost, mean: Cost) -> Table:
    table = Table("in millions", "paper", "ours", "difference", "reason", title="paper | ours")
    for cell in printed.compare(full, mean):
        table.add_row(
            f"{cell.quantity}, {cell.width}",
            f"{cell.printed / 1e6:.2f}",
            f"{cell.ours / 1e6:.2f}",
            f"{cell.difference:+.2%}",
            cell.reason,
        )
    return table


@app.command("trace", epilog="Example: subflot trace mymodel.py:Net --input 3,32,32")
def trace_command(
    model: Model, inputs: Inputs = None, classes: Classes = None, as_json: Json = False
) -> None:
    """Show which axes of which tensors of a model share channels, and which cannot be cut."""
    module, example = load(model, inputs or (), classes)
    channels = trace(module, example)
    if as_json:
        _print_json(_map_fields(channels))
        return
    spaces = Table("space", "channels", "tensors it cuts", "cut?", title=f"spaces of {model}")
    for space, size in channels.sizes.items():
        members = str(len(channels.members(space)))
        why = f"no: {channels.frozen[space]}" if space in channels.frozen else "yes"
        spaces.add_row(space, str(size), members, why)
    _print(spaces)
    for group in channels.coupled:
        _print(f"cut in proportion: {', '.join(group)}")
    tensors = Table("tensor", "shape", "axes", title=f"tensors of {model}")
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name, axes in channels.axes.items():
        shown = (" + ".join(map(str, axis)) if axis else "-" for axis in axes)
        tensors.add_row(name, " x ".join(map(str, shapes[name])), " | ".join(shown))
    _print(tensors)


def _map_fields(channels: ChannelMap) -> dict[str, Any]:
    return {
        "spaces": {
            space: {
                "size": size,
                "prunable": space not in channels.frozen,
                "reason": str(channels.frozen[space]) if space in channels.frozen else None,
            }
            for space, size in channels.sizes.items()
        },
        "tensors": {
            name: [None if axis is None else _axis_fields(axis) for axis in axes]
            for name, axes in channels.axes.items()
        },
        "coupled": [list(group) for group in channels.coupled],
    }


def _axis_fields(axis: Iterable[Segment]) -> list[dict[str, Any]]:
    return [vars(segment) for segment in axis]


def _print(shown: Table | str) -> None:
    """Print for a reader; without a terminal lines are long enough to hold every name."""
    Console(width=None if sys.stdout.isatty() else 160, soft_wrap=False).print(
        shown, highlight=False, markup=False
    )


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def main() -> None:
    """Run the command line; a mistake of the user is one message, never a traceback."""
    try:
        app()
    except SubflotError as error:
        message, _, hint = str(error).partition("\n  hint: ")
        _fail(message, hint)
    except Exception as error:
        if os.environ.get("SUBFLOT_DEBUG"):
            raise
        _fail(
            f"{type(error).__name__}: {error}",
            "this should not happen; SUBFLOT_DEBUG=1 shows where, for a report",
        )


def _fail(message: str, hint: str) -> None:
    sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))
    sys.exit(2)


if __name__ == "__main__":
    main()
