"""The commands by name."""

import sys
from typing import Annotated

import typer

from subflot.cli.align import align_command
from subflot.cli.data import app as data_app
from subflot.cli.export import export_command, predict_command
from subflot.cli.flower import app as flower_app
from subflot.cli.models import cost_command, trace_command
from subflot.cli.report import report_command
from subflot.cli.run import algorithms_command, resume_command, run_command
from subflot.cli.table import figure_command, table_command

app = typer.Typer(
    name="subflot",
    help="Federated learning in which every client trains a model of its own size.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

_EXAMPLE = "Example: subflot "
app.command("run", epilog=_EXAMPLE + "run quickstart --set rounds=5")(run_command)
app.command("resume", epilog=_EXAMPLE + "resume runs/quickstart/subflot-s0-...")(resume_command)
app.command("report", epilog=_EXAMPLE + "report runs/quickstart")(report_command)
app.command("table", epilog=_EXAMPLE + "table label-skew --scale reduced --dry-run")(table_command)
app.command("figure", epilog=_EXAMPLE + "figure convergence")(figure_command)
app.command("algorithms", epilog=_EXAMPLE + "algorithms --json")(algorithms_command)
app.command("export", epilog=_EXAMPLE + "export runs/quickstart/subflot-s0-... --client 7")(
    export_command
)
app.command("predict", epilog=_EXAMPLE + "predict client-7.safetensors --data digits")(
    predict_command
)
app.command("cost", epilog=_EXAMPLE + "cost vgg11 --rates 0,0.5")(cost_command)
app.command("trace", epilog=_EXAMPLE + "trace mymodel.py:Net --input 3,32,32")(trace_command)
app.command("align", epilog=_EXAMPLE + "align client.safetensors global.safetensors --model vgg11")(
    align_command
)
app.add_typer(data_app, name="data")
app.add_typer(flower_app, name="flower")


def _say_version(is_asked: bool) -> None:
    if is_asked:
        import subflot

        sys.stdout.write(f"subflot {subflot.__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Say which version this is.", callback=_say_version),
    ] = False,
) -> None:
    """Federated learning in which every client trains a model of its own size."""
