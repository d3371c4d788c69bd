"""`subflot cost` and `subflot trace`: what a model costs, and which channels it has."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from subflot.channels import ChannelMap, Segment, trace
from subflot.channels.cost import Cost, cost, mean_cost
from subflot.cli.show import Classes, Inputs, Json, Model, show, show_json
from subflot.errors import SubflotError
from subflot.models.load import load
from subflot.paper.resources import PRINTED, Compared, compare


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
    compared: list[Compared] = []
    if pruning_rates == [0, 0.25, 0.5, 0.75] and not inputs and classes in (None, 10):
        compared = list(compare(model, costs[0], mean_cost(costs))) if model in PRINTED else []
    if as_json:
        rows = [
            {"pruning_rate": rate} | _cost_fields(c)
            for rate, c in zip(pruning_rates, costs, strict=True)
        ]
        result: dict[str, Any] = {"rates": rows, "mean": _cost_fields(mean_cost(costs))}
        if compared:
            result["paper"] = [vars(one) for one in compared]
        show_json(result)
        return
    table = Table("pruning rate", "parameters", "multiply-adds", "bytes", title=f"cost of {model}")
    for rate, c in zip(pruning_rates, costs, strict=True):
        table.add_row(f"{rate:g}", *(f"{value:,.0f}" for value in _cost_fields(c).values()))
    table.add_section()
    table.add_row("mean", *(f"{v:,.0f}" for v in _cost_fields(mean_cost(costs)).values()))
    show(table)
    if compared:
        show(_comparison(compared))


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


def _comparison(compared: Iterable[Compared]) -> Table:
    table = Table("in millions", "paper", "ours", "difference", "reason", title="paper | ours")
    for cell in compared:
        table.add_row(
            f"{cell.quantity}, {cell.width}",
            f"{cell.printed / 1e6:.2f}",
            f"{cell.ours / 1e6:.2f}",
            f"{cell.difference:+.2%}",
            cell.reason,
        )
    return table


def trace_command(
    model: Model, inputs: Inputs = None, classes: Classes = None, as_json: Json = False
) -> None:
    """Show which axes of which tensors of a model share channels, and which cannot be cut."""
    module, example = load(model, inputs or (), classes)
    channels = trace(module, example)
    if as_json:
        show_json(_map_fields(channels))
        return
    spaces = Table("space", "channels", "tensors it cuts", "cut?", title=f"spaces of {model}")
    for space, size in channels.sizes.items():
        members = str(len(channels.members(space)))
        why = f"no: {channels.frozen[space]}" if space in channels.frozen else "yes"
        spaces.add_row(space, str(size), members, why)
    show(spaces)
    for group in channels.coupled:
        show(f"cut in proportion: {', '.join(group)}")
    tensors = Table("tensor", "shape", "axes", title=f"tensors of {model}")
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    for name, axes in channels.axes.items():
        shown = (" + ".join(map(str, axis)) if axis else "-" for axis in axes)
        tensors.add_row(name, " x ".join(map(str, shapes[name])), " | ".join(shown))
    show(tensors)


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
