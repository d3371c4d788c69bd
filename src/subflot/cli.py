"""The command line: parses, calls, prints. Data goes to stdout, messages to stderr."""

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from subflot.channels import ChannelMap, Segment, trace
from subflot.channels.cost import Cost, cost, mean_cost
from subflot.errors import ChannelError, SubflotError, UnknownName
from subflot.models import MODELS
from subflot.models.load import load
from subflot.models.printed import PrintedCost
from subflot.transport.align import Alignment, InputMap, Residual, align
from subflot.transport.diagnose import Diagnosis, check_picture, diagnose, draw
from subflot.transport.solve import Kind
from subflot.weights import Weights

app = typer.Typer(
    name="subflot",
    help="Federated learning in which every client trains a model of its own size.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

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


@app.command(
    "align", epilog="Example: subflot align client.safetensors global.safetensors --model vgg11"
)
def align_command(
    source: Annotated[Path, typer.Argument(help="Weights that are carried, .safetensors.")],
    target: Annotated[Path, typer.Argument(help="Weights of any width that they are carried to.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)],
    inputs: Inputs = None,
    classes: Classes = None,
    plan: Annotated[
        str,
        typer.Option(
            metavar="balanced|partial",
            help="Send every channel somewhere, or match one to one and leave the rest out.",
        ),
    ] = "balanced",
    residual: Annotated[
        str,
        typer.Option(
            metavar="average|joint",
            help="Behind a sum, take the mean of its branches' plans, or match them with one plan.",
        ),
    ] = "average",
    input_map: Annotated[
        str,
        typer.Option(metavar="mean|sum", help="On the input side, average merged channels or add."),
    ] = "mean",
    entropy: Annotated[
        float, typer.Option(help="Positive for blurred plans: a share of the largest cost.")
    ] = 0.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the plans into a .png or .pdf file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the carried weights, .safetensors.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Carry one model's channels to those of another that they match best, and show the plans."""
    for option, value, known in (
        ("plan", plan, get_args(Kind)),
        ("residual", residual, get_args(Residual)),
        ("input-map", input_map, get_args(InputMap)),
    ):
        if value not in known:
            raise UnknownName(f"--{option}", value, known, "subflot align --help")
    for written in (plot, output):
        if written and (written.is_dir() or not written.absolute().parent.is_dir()):
            raise SubflotError(
                f"cannot write {written}", hint="name a file in a folder that exists"
            )
    if plot:
        check_picture(plot)
    files = _read_weights(source), _read_weights(target)
    module, example = load(model, inputs or (), classes)
    channels = trace(module, example)
    for path, weights in zip((source, target), files, strict=True):
        _check_fit(path, weights, model, module, channels)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        alignment = align(
            *files,
            channels,
            plan=cast(Kind, plan),
            residual=cast(Residual, residual),
            input_map=cast(InputMap, input_map),
            entropy=entropy,
        )
    for warning in raised:
        sys.stderr.write(f"warning: {warning.message}\n")
    # Running statistics are carried, but they are no parameters, of which the theorem speaks.
    parameters = {name for name, _ in module.named_parameters()}
    found = diagnose(alignment, *files, channels, parameters=parameters)
    _write_alignment(alignment, plot, output)
    if as_json:
        _print_json(asdict(found))
        return
    _print(_match_table(found, f"{source.name} carried to {target.name}"))
    _print(f"delta_OT^2, aligned against source: {found.delta_ot:.6g}")
    _print(
        f"delta_P^2, anchor against source: {found.delta_p:.6g} "
        f"(global_share {found.global_share:g})"
    )


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise SubflotError(f"there is no file {path}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise SubflotError(f"{path} is not a safetensors file: {error}") from None


def _check_fit(
    path: Path, weights: Weights, model: str, module: nn.Module, channels: ChannelMap
) -> None:
    """Raise an error unless the weights are those of the model at some width."""
    state = module.state_dict()
    try:
        for name in weights:
            if name not in state:
                raise ChannelError(f"the model has no tensor `{name}`")
        channels.sizes_of(weights)
        for name, axes in channels.axes.items():
            own, other = weights[name], state[name]
            if own.is_floating_point() != other.is_floating_point():
                raise ChannelError(f"tensor `{name}` is {own.dtype}, expected {other.dtype}")
            for axis, segments in enumerate(axes):
                if segments is None and own.shape[axis] != other.shape[axis]:
                    raise ChannelError(
                        f"tensor `{name}` has shape {tuple(own.shape)}, of which axis {axis} is "
                        f"always {other.shape[axis]}"
                    )
    except ChannelError as error:
        raise SubflotError(
            f"{path} does not fit {model}: {error}",
            hint="--model, --input and --classes describe the model that was saved, at full width",
        ) from None


def _write_alignment(alignment: Alignment, plot: Path | None, output: Path | None) -> None:
    """Write the files that were asked for, the weights at once or not at all."""
    if plot:
        with _writing(plot):
            draw(alignment, plot)
    if output:
        part = output.with_name(f".{output.name}.{os.getpid()}.part")
        weights = {name: tensor.contiguous() for name, tensor in alignment.weights.items()}
        with _writing(output):
            try:
                save_file(weights, part, metadata={"format": "pt"})
                part.replace(output)
            finally:
                part.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise SubflotError(f"cannot write {path}: {error}") from None
    sys.stderr.write(f"wrote {path}\n")


def _match_table(found: Diagnosis, title: str) -> Table:
    columns = ("tensor", "space", "source", "target", "cost", "moved", "optimal?")
    table = Table(*columns, title=title)
    for match in found.matches:
        table.add_row(
            match.tensor,
            match.space,
            str(match.num_source_channels),
            str(match.num_target_channels),
            f"{match.cost:.4g}",
            f"{match.share_moved:.1%}",
            "yes" if match.is_optimal else "no",
        )
    return table


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
