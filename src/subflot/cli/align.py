"""`subflot align`: carry one model onto another and show the plans."""

import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, cast, get_args

import typer
from rich.table import Table
from torch import nn

from subflot.channels import ChannelMap, trace
from subflot.cli.show import MODEL_HELP, Classes, Inputs, Json, show, show_json
from subflot.drawing import check_picture
from subflot.errors import ChannelError, SubflotError, UnknownName
from subflot.models.load import load
from subflot.transport.align import Alignment, InputMap, Residual, align
from subflot.transport.diagnose import Diagnosis, diagnose, draw
from subflot.transport.solve import Kind
from subflot.weights import Weights, read_weights, write_weights


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
    files = read_weights(source), read_weights(target)
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
        show_json(asdict(found))
        return
    show(_match_table(found, f"{source.name} carried to {target.name}"))
    show(f"delta_OT^2, aligned against source: {found.delta_ot:.6g}")
    show(
        f"delta_P^2, anchor against source: {found.delta_p:.6g} "
        f"(global_share {found.global_share:g})"
    )


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
    """Write the files that were asked for."""
    if plot:
        try:
            draw(alignment, plot)
        except OSError as error:
            raise SubflotError(f"cannot write {plot}: {error}") from None
        sys.stderr.write(f"wrote {plot}\n")
    if output:
        write_weights(output, alignment.weights)
        sys.stderr.write(f"wrote {output}\n")


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
