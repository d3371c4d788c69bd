"""`subflot data`: which data sets there are, fetching and checking them, and how they are split."""

import typer

app = typer.Typer(
    help="List, fetch and check data sets; show how they are split among clients.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
