"""What the documents print is what the records under results/ say, run by run."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from subflot.cli.run import read_settings
from subflot.cli.summary import summary_markdown
from subflot.experiments.config import RunConfig, grid, parse
from subflot.experiments.tuning import Tuning
from subflot.paper.grids import Column, tasks
from subflot.paper.scales import Terms
from subflot.paper.sheet import read_sheet
from subflot.paper.tables import FORMATS
from subflot.results import RunRecord, find_runs

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAPER = (ROOT / "docs" / "paper.md").read_text()
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
        subjects = {(one.algorithm, one.name): one for one in reversed(configs)}
        choices = Tuning.of(tune).choose(subjects, [folder / "trials"])
        assert all(choice.is_complete for choice in choices.values())
        configs = [choices[one.algorithm, one.name].applied(one) for one in configs]
    return [record_of(config, folder) for config in configs]


def record_of(config: RunConfig, folder: Path) -> RunRecord:
    """The record of a run; one of the same settings by an earlier version of its method will do."""
    earlier = (RunRecord(path) for path in folder.glob(f"{config.algorithm}-s{config.seed}-*"))
    for record in (RunRecord(folder / config.run_id), *earlier):
        if record.is_finished and RunConfig.of(**record.config).run_id == config.run_id:
            return record
    raise AssertionError(f"there is no record of {config.run_id}")


def outdated(folders: Iterable[Path]) -> list[str]:
    """The methods that have records by an earlier version: these runs have other names today."""
    records = [RunRecord(path.parent) for at in folders for path in at.rglob("config.toml")]
    return sorted(
        {
            RunConfig.of(**record.config).algorithm
            for record in records
            if RunConfig.of(**record.config).run_id != record.folder.name
        }
    )


def noted(page: str) -> list[str]:
    """The methods of which a page says that what it shows is of an earlier version."""
    found = re.search(r"Recorded with earlier versions of the methods: (.*?)\.", page, re.S)
    return sorted(re.findall(r"`([^`]+)`", found[1])) if found else []


def test_a_page_says_which_methods_it_shows_as_they_were() -> None:
    assert noted(PAGE) == outdated(RESULTS / read_settings(one)["name"] for one, *_ in SECTIONS)
    assert noted(PAPER) == outdated([RESULTS / "runs"])


@pytest.mark.parametrize(("preset", "options", "table"), SECTIONS)
def test_a_table_is_what_its_command_prints(preset: str, options: str, table: str) -> None:
    printed, *_ = summary_markdown(recorded(preset, options)).split("\n\n")
    assert table == printed.rstrip("\n")


def test_every_run_on_record_is_called_after_its_settings() -> None:
    folders = [record.folder for record in find_runs(ROOT / "results")]
    assert len(folders) > 100
    for folder in folders:
        config = RunConfig.of(**RunRecord(folder).config)
        versions = range(1, config.method.version + 1)
        assert folder.name in [config.named(version) for version in versions]


def test_the_page_has_tables() -> None:
    assert SECTIONS
    assert len(SECTIONS) == PAGE.count("--out results\n")


def test_the_run_that_diverged_is_told_as_it_was() -> None:
    (folder,) = (ROOT / "results" / "har").glob("subflot-s2-*")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rejected = {row["round"]: row["num_rejected"] for row in rows if row["num_rejected"]}
    assert (min(rejected), max(rejected)) == (35, 38)
    said = " ".join(PAGE.split())
    assert f"in rounds 35 to 38 the server rejected {sum(rejected.values())} uploads" in said
    assert f"The third had {rows[29]['trained']['mean']:.0%}".replace("%", " % in round 30") in said


# ----- what the scale `reduced` is

REDUCED = (ROOT / "docs" / "decisions" / "0019-reduced.md").read_text()
CLOSE = 0.02
"""What FedAvg may still gain in as many rounds again."""


def reduced_runs() -> dict[str, tuple[int, RunRecord]]:
    """By task, its rounds and the run of more rounds with otherwise the same settings."""
    found = {}
    for record in (RunRecord(path.parent) for path in (RESULTS / "reduced").glob("*/config.toml")):
        for name, task in tasks().items():
            wanted = Terms("reduced", "searched").of(Column(name, name, task))
            rounds = wanted.pop("rounds")
            if all(record.config.get(key) == value for key, value in wanted.items()):
                found[name] = rounds, record
    return found


def test_the_rounds_of_a_task_that_was_measured_are_enough() -> None:
    # A task whose settings change is measured anew.
    assert len(reduced_runs()) == len(list((RESULTS / "reduced").glob("fedavg-*")))
    for name, (rounds, record) in reduced_runs().items():
        rows = {row["round"]: row for row in record.rounds if row["trained"]}
        early, late = rows[rounds], rows[2 * rounds]
        assert abs(late["trained"]["mean"] - early["trained"]["mean"]) <= CLOSE, name
        shown = [
            f"{100 * row[kind][key]:.1f}"
            for kind, key in (("trained", "mean"), ("global", "accuracy"))
            for row in (early, late)
        ]
        assert f"| {name} | {rounds} | {' | '.join(shown)} |" in REDUCED


def test_the_tasks_that_were_not_measured_are_named() -> None:
    said = re.search(r"\*\*Not measured yet\*\*: (.*?)\.", REDUCED, re.S)
    named = set(re.split(r",\s+|\s+and\s+", said[1])) if said else set()
    assert named == tasks().keys() - reduced_runs().keys()


# ----- beside the paper

TABLES = sorted((RESULTS / "tables").glob("*.md"))
LACKING_SEEDS = ("sparsity-reduced-tuned", "pruning-rates-reduced-tuned")
"""Tables of which not all seeds have been run; their cells say so."""


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_table_of_the_paper_is_what_its_records_say(path: Path) -> None:
    sheet = read_sheet(path.with_suffix(".json"))
    for suffix, write in FORMATS.values():
        assert path.with_suffix(suffix).read_text() == write(sheet)
    for cell in sheet.cells.values():
        is_whole = cell.is_whole or not cell.values
        assert is_whole or path.stem in LACKING_SEEDS, "a run is missing from the records"


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("tables/*-reduced-*.json")), ids=lambda p: p.stem
)
def test_a_table_says_if_its_scale_has_changed_since(path: Path) -> None:
    sheet = read_sheet(path)
    today = {task.settings["data"]: task.scales["reduced"] for task in tasks().values()}
    changed = set()
    for cell in sheet.cells.values():
        for record in sheet.records(cell):
            was = RunConfig.of(**record.config).flat()
            now = today[was["data"]]
            if any(
                was[key] != now[key] for key in ("rounds", "max_examples", "width") if key in now
            ):
                changed.add(was["data"])
    said = " ".join(sheet.about["notes"])
    titles = {"digit5": "Digit-5", "pacs": "PACS"}
    assert all(titles[data] in said for data in changed)
    assert bool(changed) == ("Scale reduced as it was then" in said)


def test_every_table_and_figure_is_spoken_of_and_every_link_leads_somewhere() -> None:
    assert TABLES
    links = re.findall(r"\]\((\.\./[^)]+)\)", PAPER)
    for link in links:
        assert (ROOT / "docs" / link).exists(), link
    spoken_of = {(ROOT / "docs" / link).resolve() for link in links}
    assert spoken_of >= {path.resolve() for path in TABLES}
    assert spoken_of >= {path.resolve() for path in (RESULTS / "figures").glob("*.png")}


def test_the_similarities_of_maps_are_those_on_record() -> None:
    found = json.loads((RESULTS / "figures" / "attention-reduced-tuned.json").read_text())
    said = " ".join(PAPER.split())
    assert f"over the {found['num_images']} test images of three seeds" in said
    for one in found["similarity"].values():
        assert f"{one['mean']:.3f}" in said


def test_the_readme_shows_what_the_tables_say() -> None:
    shown = (ROOT / "README.md").read_text()
    label, shift = (
        read_sheet(RESULTS / "tables" / f"{name}-reduced-tuned.json")
        for name in ("label-skew", "feature-shift")
    )
    for row, about in label.rows.items():
        cells = (label.cells[row, "har"], label.cells[row, "ag-news"], shift.cells[row, "digit5"])
        told = [f"{c.mean:.1f} ± {c.deviation:.1f} ({c.printed:.1f})" for c in cells]
        assert f"| {about['title']} | {' | '.join(told)} |\n" in shown
