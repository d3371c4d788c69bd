"""The commands by name. Each is imported when it is called, for most of them take torch's time."""

import ast
import sys
from importlib import import_module
from importlib.resources import files
from typing import Annotated, Any

import typer
from click import Command, Context
from typer.core import TyperGroup

from subflot.cli import ctrl_c_ends

COMMANDS = {
    "run": ("run.run_command", "run quickstart --set rounds=5"),
    "resume": ("run.resume_command", "resume runs/quickstart/subflot-s0-..."),
    "report": ("report.report_command", "report runs/quickstart"),
    "table": ("table.table_command", "table label-skew --scale reduced --dry-run"),
    "figure": ("table.figure_command", "figure convergence"),
    "algorithms": ("run.algorithms_command", "algorithms --json"),
    "export": ("export.export_command", "export runs/quickstart/subflot-s0-... --client 7"),
    "predict": ("export.predict_command", "predict client-7.safetensors --data digits"),
    "cost": ("models.cost_command", "cost vgg11 --rates 0,0.5"),
    "trace": ("models.trace_command", "trace mymodel.py:Net --input 3,32,32"),
    "align": (
        "align.align_command",
        "align client.safetensors global.safetensors --model vgg11",
    ),
}
"""Name -> the function in this folder, and an example."""
GROUPS = {
    "data": "List, fetch and check data sets; show how they are split among clients.",
    "flower": "The same runs on Flower.",
}
"""Name of a file in this folder with commands of its own -> what they are about."""


class Commands(TyperGroup):
    """Knows of every command its name and what it is about, and imports the one that is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        abouts = {**{name: _about(target) for name, (target, _) in COMMANDS.items()}, **GROUPS}
        self.commands.update({name: Command(name, help=text) for name, text in abouts.items()})

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find the command that is called."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, _load(str(name)), rest


def _about(target: str) -> str:
    """Read what a command is about off its source."""
    module, function = target.split(".")
    tree = ast.parse((files("subflot.cli") / f"{module}.py").read_text(encoding="utf-8"))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return ast.get_docstring(found[function]) or ""


def _load(name: str) -> Command:
    module, _, function = COMMANDS.get(name, (f"{name}.app", ""))[0].partition(".")
    with ctrl_c_ends():
        found = getattr(import_module(f"subflot.cli.{module}"), function)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    alone.command(name, epilog=f"Example: subflot {COMMANDS[name][1]}")(found)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="subflot",
    cls=Commands,
    help="Federated learning in which every client trains a model of its own size.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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
