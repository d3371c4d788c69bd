"""What docs/results.md prints is what the records under results/ say, run by run."""

import re
from pathlib import Path

import pytest

from subflot.cli.run import read_settings
from subflot.cli.summary import summary_markdown
from subflot.experiments.config import RunConfig, grid, parse
from subflot.experiments.tuning import Tuning
from subflot.results import RunRecord

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "results.md").read_text()
SECTIONS = re.findall(
    r"^    subflot run (\S+)([^\n]*) --out results\n\n(.*?)\n\n", PAGE, re.M | re.S
)
"""Preset, options, and the lines of the table below."""


def recorded(preset: str, options: str) -> list[RunRecord]:
    """The records of the runs that a command asks for, if all are there."""
    settings = {**read_settings(preset), **parse(re.findall(r"--set (\S+)", options))}
    for methods in re.findall(r"--algorithms (\S+)", options):
        from subflot.algorithms import ALGORITHMS

        settings["algorithm"] = list(ALGORITHMS) if methods == "all" else methods.split(",")
    tune = settings.pop("tune", None)
    configs: list[RunConfig] = grid(settings)
    folder = ROOT / "results" / configs[0].name
    if tune:
        # Chosen anew from the trials on record, none of which is run.
        configs, choices = Tuning.of(tune).choose(configs, folder / "trials", lambda _: {})
        assert all(choice.is_complete for choice in choices)
    records = [RunRecord(folder / config.run_id) for config in configs]
    for record in records:
        assert record.is_finished, record.folder
    return records


@pytest.mark.parametrize(("preset", "options", "table"), SECTIONS)
def test_a_table_is_what_its_command_prints(preset: str, options: str, table: str) -> None:
    printed, *_ = summary_markdown(recorded(preset, options)).split("\n\n")
    assert table == printed.rstrip("\n")


def test_the_page_has_tables() -> None:
    assert SECTIONS
    assert len(SECTIONS) == PAGE.count("--out results\n")
