"""`subflot data`: which data sets there are, fetching and checking them, and how they are split."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from subflot.cli.app import GROUPS
from subflot.cli.division import show_command
from subflot.cli.progress import show_progress
from subflot.cli.show import Json, show, show_json
from subflot.data.cache import cache_root
from subflot.data.fetch import fetch
from subflot.data.sets import SETS, find, load
from subflot.data.settings import fill, parse, values_of
from subflot.data.source import Source, data_root
from subflot.data.survey import Presence, checksum, counts, presence

MOST_ROWS = 30
"""Classes or groups up to which a table has a row for each."""

app = typer.Typer(
    help=GROUPS["data"],
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
)

Name = Annotated[str, typer.Argument(help=f"One of: {', '.join(SETS)}.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting of the data set, as size=64. Repeat it for several."),
]


@app.command("list", epilog="Example: subflot data list --json")
def list_command(as_json: Json = False) -> None:
    """Show every data set: what it is, whether it is here, and where its files belong."""
    found = {name: presence(source) for name, source in SETS.items()}
    if as_json:
        sets = [_set_fields(source, found[name]) for name, source in SETS.items()]
        show_json({"root": str(data_root()), "cache": str(cache_root()), "sets": sets})
        return
    table = Table("name", "what it is", "examples", "on disk", "licence")
    table.add_column("where", overflow="fold")
    for name, source in SETS.items():
        here = found[name]
        examples = "not read yet" if here.examples is None else f"{here.examples:,}"
        table.add_row(
            name,
            source.title,
            "-" if here.missing else examples,
            f"{here.num_bytes / 1e6:,.0f} MB" if here.files else "-",
            source.licence,
            _where(source, here),
        )
    show(table)


def _where(source: Source[Any], here: Presence) -> str:
    if here.missing:
        return f"missing from {here.folder}: {', '.join(here.missing)}"
    return str(here.folder) if here.files else "comes with subflot"


def _set_fields(source: Source[Any], here: Presence) -> dict[str, Any]:
    return {
        "name": source.name,
        "title": source.title,
        "examples": here.examples,
        "bytes": here.num_bytes,
        "licence": source.licence,
        "page": source.page,
        "folder": str(here.folder),
        "files": [path.name for path in here.files],
        "missing": list(here.missing),
        "test_share": source.test_share,
        "settings": values_of(source.settings()),
    }


@app.command("get", epilog="Example: subflot data get cifar10")
def get_command(name: Name) -> None:
    """Fetch a data set; after a break the same command continues."""
    source = find(name)
    try:
        with show_progress() as progress:
            fetched = fetch(source, progress=progress)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; the same command continues where it was\n")
        raise typer.Exit(130) from None
    if not fetched:
        here = presence(source)
        where = f"already in {here.folder}" if here.files else "part of subflot"
        sys.stderr.write(f"{source.name} is {where}\n")
        _note_checksums(source, here.files)
    for path in fetched:
        sys.stderr.write(f"fetched {path}\n")


@app.command("check", epilog="Example: subflot data check cifar10 --set size=64")
def check_command(name: Name, settings: Settings = None, as_json: Json = False) -> None:
    """Read a data set and show what is in it: shapes, classes, examples per class and group."""
    source = find(name)
    chosen = parse(source.settings, settings or (), source.name)
    data = load(name, **chosen)
    found = counts(data)
    files = source.locate(fill(source.settings, chosen, source.name))
    states = _note_checksums(source, files.values())
    if as_json:
        show_json(
            {
                "name": data.name,
                "examples": len(data),
                "input_shape": list(data.input_shape),
                "type": str(data.inputs.dtype),
                "test_share": data.test_share,
                "checksums": states,
                **found,
            }
        )
        return
    shape = " x ".join(map(str, data.input_shape))
    show(f"{data.name}: {len(data):,} examples of {shape} ({data.inputs.dtype})")
    for kind, examples in found.items():
        if len(examples) > MOST_ROWS:
            least, most = min(examples.values()), max(examples.values())
            show(f"{len(examples)} {kind} of {least:,} to {most:,} examples; --json lists them")
        elif examples:
            table = Table(kind, "examples")
            for label, number in examples.items():
                table.add_row(label, f"{number:,}")
            show(table)


def _note_checksums(source: Source[Any], files: Iterable[Path]) -> dict[str, str]:
    """Compare the files with the published ones, and say so where one differs."""
    states = {path.name: checksum(source, path) for path in files}
    for name, state in states.items():
        if state == "other":
            sys.stderr.write(f"note: {name} is not the published file; it is used as it is\n")
    return states


app.command("show", epilog="Example: subflot data show digits --clients 20 --concentration 0.1")(
    show_command
)
