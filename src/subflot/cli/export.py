"""`subflot export` and `subflot predict`: a client's model as a file, and what it says."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from subflot.cli.show import Json, Trust, show, show_json
from subflot.data import load as load_data
from subflot.errors import SubflotError
from subflot.experiments.export import describe, export, load, predict, read_examples


def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    client: Annotated[
        int | None, typer.Option(help="Whose model; without it the global model.", min=0)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write it, .safetensors.")
    ] = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Write one client's model as a file that `subflot predict` and `subflot.load` take."""
    name = "global" if client is None else f"client-{client}"
    path = output or Path(f"{name}.safetensors")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SubflotError(f"cannot write {path}", hint="name a file in a folder that exists")
    described = export(run, client, path, is_trusted=trust)
    if as_json:
        show_json(asdict(described))
    accuracy = "" if described.accuracy is None else f", accuracy {described.accuracy:.1%}"
    sys.stderr.write(
        f"wrote {path}: {described.model} at pruning rate {described.pruning_rate:g}{accuracy}\n"
    )


def predict_command(
    model: Annotated[Path, typer.Argument(help="A file that `subflot export` wrote.")],
    files: Annotated[
        list[Path] | None, typer.Argument(help="Raw examples: .npy arrays, or pictures.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Take the examples from a data set instead.")
    ] = None,
    count: Annotated[int, typer.Option(help="How many of them, from the first on.", min=1)] = 10,
    as_json: Json = False,
) -> None:
    """Show which class a model takes examples for, and how sure it is."""
    described = describe(model)
    if bool(files) == bool(data):
        raise SubflotError("name files with examples, or a data set by --data, not both")
    inputs = load_data(data).inputs[:count] if data else read_examples(described, files or [])
    best = predict(load(model), described, inputs).max(1)
    rows = [
        {"example": number, "class": described.classes[label], "probability": probability}
        for number, (probability, label) in enumerate(
            zip(best.values.tolist(), best.indices.tolist(), strict=True)
        )
    ]
    if as_json:
        show_json({"predictions": rows})
        return
    table = Table("example", "class", "probability")
    for row in rows:
        table.add_row(str(row["example"]), row["class"], f"{row['probability']:.3f}")
    show(table)
