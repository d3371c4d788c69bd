"""`subflot data show`: how a data set is divided among clients."""

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich import box
from rich.table import Table

from subflot.cli.show import Json, show, show_json
from subflot.data.federated import federate
from subflot.data.partition import PARTITIONS
from subflot.data.sets import SETS, find, load
from subflot.data.settings import parse
from subflot.data.show import Division, describe, draw
from subflot.drawing import check_picture
from subflot.errors import SubflotError

MOST_COLUMNS = 20
"""Classes up to which each has a column."""


def show_command(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(SETS)}.")],
    partition: Annotated[
        str, typer.Option(metavar="NAME", help=f"One of: {', '.join(PARTITIONS)}.")
    ] = "dirichlet",
    clients: Annotated[
        int | None, typer.Option(help="Number of clients; by default 20, or one per group.")
    ] = None,
    concentration: Annotated[
        float | None, typer.Option(help="Of dirichlet: the smaller, the more skewed; 0.1.")
    ] = None,
    classes_per_client: Annotated[
        int | None, typer.Option(help="Of pathological: classes of each client; 2.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives another division.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the data set, as size=64. Repeat it for several."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw it into a .png or .pdf file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Divide a data set among clients as a run would, and show who holds what."""
    if plot:
        check_picture(plot)
    source = find(name)
    dataset = load(name, **parse(source.settings, settings or (), source.name))
    asked = {"concentration": concentration, "classes_per_client": classes_per_client}
    given = {setting: value for setting, value in asked.items() if value is not None}
    division = describe(
        federate(dataset, partition=partition, num_clients=clients, seed=seed, **given)
    )
    if plot:
        try:
            draw(division, plot)
        except OSError as error:
            raise SubflotError(f"cannot write {plot}: {error.strerror}") from None
        sys.stderr.write(f"wrote {plot}\n")
    if as_json:
        used = {**PARTITIONS[partition].settings, **given}
        show_json({"partition": partition, "seed": seed, **used, **division.as_json()})
        return
    show(f"{division.name}: {len(dataset):,} examples, {len(division.counts)} clients, {partition}")
    show(division_table(division))
    legend = [f"{n} {name}" for n, name in enumerate(division.classes) if name != str(n)]
    if legend and len(division.classes) <= MOST_COLUMNS:
        show(f"classes: {', '.join(legend)}")


def division_table(division: Division) -> Table:
    """Make a row per client: its examples of each class, or of many classes a summary."""
    heads, rows = _columns(division)
    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("client", justify="right")
    if division.groups:
        table.add_column("group")
    for head in [*heads, "all", "train", "test"]:
        table.add_column(head, justify="right", no_wrap=True)
    for client, row in enumerate(rows):
        table.add_row(
            str(client),
            *division.groups[client : client + 1],
            *row,
            str(division.counts[client].sum()),
            str(division.num_train[client]),
            str(division.num_test[client]),
        )
    return table


def _columns(division: Division) -> tuple[list[str], list[list[str]]]:
    """What is told of the classes: heads, and for each client the cells below them."""
    if len(division.classes) <= MOST_COLUMNS:
        heads = [str(label) for label in range(len(division.classes))]
        return heads, [[str(n) if n else "." for n in row] for row in division.counts]
    return ["classes", "largest class", "its share"], [
        [
            str(np.count_nonzero(row)),
            division.classes[row.argmax()],
            f"{row.max() / row.sum():.0%}",
        ]
        for row in division.counts
    ]
