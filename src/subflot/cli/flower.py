"""`subflot flower`: a folder that Flower can run, and the server that devices join."""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from subflot.cli.app import GROUPS
from subflot.errors import SubflotError
from subflot.experiments.config import grid, parse
from subflot.experiments.engines import TABLE, engine_of, without_flower

NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,38}")
app = typer.Typer(help=GROUPS["flower"], no_args_is_help=True, add_completion=False)


@app.command("new", epilog="Example: subflot flower new kitchen --from har --set rounds=20")
def new_command(
    folder: Annotated[Path, typer.Argument(help="A new folder; its name is that of the app.")],
    source: Annotated[
        str, typer.Option("--from", help="A file of settings, .toml, or one of ours.")
    ] = "har",
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
) -> None:
    """Write a Flower app that runs one method, with all that devices need to join."""
    from subflot.cli.run import read_settings

    if not NAME.fullmatch(folder.name):
        raise SubflotError(
            f"`{folder.name}` cannot name a Flower app",
            hint="letters, digits and hyphens, a letter first, at most 39",
        )
    if folder.exists() and any(folder.iterdir()):
        raise SubflotError(f"{folder} is not empty", hint="name a new folder")
    settings, table = without_flower({**read_settings(source), **parse(sets or ())})
    settings.pop("tune", None)
    for key in ("algorithm", "seed"):  # An app is one run: the first that the file names.
        if isinstance(settings.get(key), list):
            settings[key] = settings[key][0]
    (config,) = grid(settings)
    engine_of("flower", table)  # It checks its settings.
    home = folder.absolute()
    words = {
        "@NAME@": folder.name,
        "@HOME@": str(home),
        "@FOLDER@": str(home / "runs"),
        "@CLIENTS@": str(config.num_clients or 20),
    }
    with as_file(files("subflot.cli") / "flower_app") as template:
        _write(template, folder, words)
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    text = "\n".join([config.toml(), f"[{TABLE}]", *lines]) + "\n"
    (folder / "federation" / "run.toml").write_text(text)
    sys.stderr.write(f"{folder} runs {config.algorithm} on {config.data}; its README says how\n")


@app.command(
    "superlink", epilog="Example: subflot flower superlink 192.168.1.10 9500 --home kitchen"
)
def superlink_command(
    host: Annotated[str, typer.Argument(help="The address on which devices reach this machine.")],
    port: Annotated[int, typer.Argument(help="The port that they reach.")],
    home: Annotated[Path, typer.Option(help="The folder of the app.")] = Path(),
    control_port: Annotated[
        int, typer.Option(help="Where flwr reaches the SuperLink, from this machine alone.")
    ] = 9501,
) -> None:
    """Start a SuperLink that devices can join and that only this machine can command."""
    from subflot.flower.gate import serve_superlink

    database = home / ".flwr" / "superlink.db"
    serve_superlink(host, port, control_port, home / "certificates", database, _say)


def _say(message: str) -> None:
    sys.stderr.write(f"subflot: {message}\n")
    sys.stderr.flush()


def _write(template: Path, folder: Path, words: Mapping[str, str]) -> None:
    try:
        for source in sorted(path for path in template.rglob("*") if path.is_file()):
            place = folder / source.relative_to(template)
            if source.suffix == ".txt":  # Modules that are not ours to import.
                place = place.with_suffix("")
            place.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text()
            for word, meaning in words.items():
                text = text.replace(word, meaning)
            place.write_text(text)
            if source.suffix == ".sh":
                place.chmod(0o755)
        (folder / ".flwr").mkdir(exist_ok=True)
        shutil.move(folder / "connections.toml", folder / ".flwr" / "config.toml")
    except OSError as error:
        raise SubflotError(f"cannot write {folder}: {error.strerror}") from None
