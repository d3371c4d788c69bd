"""Every table and figure by its name, through the command line, at a size that takes seconds."""

import os
from pathlib import Path

import pytest
from commands import Command

from subflot.paper.grids import find
from subflot.paper.results import RESULTS
from subflot.paper.sheet import read_sheet

SMALL = {
    "data": "digits-domains",
    "model": "digits-cnn",
    "num_clients": 5,
    "max_examples": 100,
    "rounds": 1,
    "per_round": 0,
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


SETS = [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("name", RESULTS["table"])
def test_every_table_runs_at_smoke_scale(subflot: Command, out: Path, name: str) -> None:
    code, shown, err = subflot("table", name, *SETS, "--workers", "1", "--out", str(out))
    # So few examples cannot be parted as one column asks for.
    assert code == 0 or "failed: subflot on tiny-imagenet-pathological: classes_per" in err, err
    stem = out / "tables" / ("resources" if name == "resources" else f"{name}-smoke-printed")
    for ending in (".json", ".md", ".csv", ".tex"):
        assert stem.with_suffix(ending).is_file()
    sheet = read_sheet(stem.with_suffix(".json"))
    assert all(str(row["title"]) in shown for row in sheet.rows.values())
    if name == "resources":
        assert len(sheet.cells) == 12
        for cell in sheet.cells.values():
            assert cell.mean == pytest.approx(cell.printed, rel=0.01)
        return
    shown_grid = find(name)
    anchored = [sheet.cells[row.name, shown_grid.anchor] for row in shown_grid.rows]
    assert all(cell.mean is not None for cell in anchored), [cell.reason for cell in anchored]


@pytest.mark.parametrize("name", RESULTS["figure"])
def test_every_figure_runs_at_smoke_scale(subflot: Command, out: Path, name: str) -> None:
    if name == "attention":
        pytest.importorskip("captum", reason="pip install 'subflot[explain]'")
    code, shown, err = subflot("figure", name, *SETS, "--workers", "1", "--out", str(out))
    assert code == 0, err
    files = [Path(line) for line in shown.splitlines() if line.endswith((".png", ".pdf"))]
    assert [file.suffix for file in files] == [".png", ".pdf"]
    assert all(file.stat().st_size > 5000 for file in files)


@pytest.mark.slow
def test_every_name_runs_at_smoke_scale_on_the_papers_data(
    subflot: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the settings of the scale as they are; of columns that take long, one method."""
    pytest.importorskip("captum", reason="pip install 'subflot[explain]'")
    if not os.environ.get("SUBFLOT_DATA"):
        pytest.skip("name a folder in SUBFLOT_DATA; `subflot data get` fills it")
    monkeypatch.setenv("SUBFLOT_CACHE", str(tmp_path / "cache"))
    options = ("--scale", "smoke", "--workers", "1", "--out", str(tmp_path))
    for command, names in RESULTS.items():
        for name in names:
            if name in ("resources", "convergence", "further"):  # Counted, made up, not in it.
                continue
            grid = find(name)
            column = next(one for one in grid.columns if one.name == grid.anchor)
            rows = [row.name for row in grid.rows]
            asked = rows if column.task.name == "har" else rows[:1]
            cells = ("--columns", grid.anchor, "--rows", ",".join(asked))
            code, _, err = subflot(command, name, *cells, *options)
            assert code == 0, err
            sheet = read_sheet(tmp_path / "tables" / f"{name}-smoke-printed.json")
            means = [sheet.cells[row, grid.anchor].mean for row in asked]
            assert all(mean is not None and 0 <= mean <= 100 for mean in means), (name, means)
            if command == "figure":
                assert (tmp_path / "figures" / f"{name}-smoke-printed.png").is_file()


def test_a_table_is_printed_as_it_is_written(subflot: Command, tmp_path: Path) -> None:
    args = ("table", "proxy", *SETS, "--no-run", "--out", str(tmp_path), "--format")
    for form, ending in (("markdown", ".md"), ("csv", ".csv"), ("latex", ".tex")):
        code, shown, _ = subflot(*args, form)
        file = tmp_path / "tables" / f"proxy-smoke-printed{ending}"
        assert (code, shown) == (0, file.read_text(encoding="utf-8"))
    _, shown, _ = subflot(*args, "terminal")
    assert shown.count("missing [a]") == 8
    assert "[a] not run (8 cells in CIFAR-10, beta 0.1, HAR, 30 users)." in shown
    assert not (tmp_path / "runs").exists()


def test_what_was_asked_for_is_shown_and_the_whole_table_written(
    subflot: Command, tmp_path: Path
) -> None:
    args = ("--rows", "history,prefix", "--columns", "har", "--no-run", "--out", str(tmp_path))
    _, shown, _ = subflot("table", "proxy", *SETS, *args)
    assert shown.count("missing [a]") == 2
    assert "[a] not run (2 cells in HAR, 30 users)." in shown
    assert "CIFAR" not in shown
    assert len(read_sheet(tmp_path / "tables" / "proxy-smoke-printed.json").cells) == 8


def test_ranks_are_drawn_beside_the_other_figures(subflot: Command, out: Path) -> None:
    args = ("--rows", "heterofl,fedrolex,feddrop", "--workers", "1", "--out", str(out), "--ranks")
    code, _, err = subflot("table", "feature-shift", *SETS, *args)
    assert code == 0, err
    for ending in (".png", ".pdf"):
        picture = out / "figures" / f"feature-shift-smoke-printed-ranks{ending}"
        assert str(picture) in err
        assert picture.stat().st_size > 5000


def test_ranks_of_too_little_are_refused_after_the_table(subflot: Command, tmp_path: Path) -> None:
    args = ("--no-run", "--out", str(tmp_path), "--ranks")
    code, shown, err = subflot("table", "proxy", *SETS, *args)
    assert code == 2
    assert shown.count("missing [a]") == 8
    assert "a diagram of ranks needs 3 columns" in err
    assert "--columns" in err
    assert not (tmp_path / "figures").exists()


def test_a_dry_run_counts_and_runs_nothing(subflot: Command, out: Path, tmp_path: Path) -> None:
    args = ("table", "proxy", *SETS, "--scale", "reduced", "--dry-run", "--out")
    code, shown, _ = subflot(*args, str(tmp_path))
    assert code == 0
    row = next(line for line in shown.splitlines() if " all " in line)
    assert row.replace("│", " ").split()[:4] == ["all", "24", "0", "0"]  # 4 x 2 cells, 3 seeds.
    assert "hours on" in shown
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_fails_is_listed_below_the_table(subflot: Command, tmp_path: Path) -> None:
    args = ("--columns", "har", "--rows", "history", "--workers", "1", "--out", str(tmp_path))
    code, shown, err = subflot("table", "proxy", *SETS, *args, "--set", "num_clients=101")
    assert code == 1
    assert "missing [a]" in shown
    assert err.splitlines()[-1].startswith("failed: history on har: ")
    assert "101 clients" in err.splitlines()[-1]


def test_recorded_results_are_read_and_not_written_to(
    subflot: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ("table", "proxy", *SETS, "--rows", "history", "--columns", "har", "--workers", "1")
    code, first, err = subflot(*args, "--out", "results")
    assert code == 0, err
    recorded = sorted(path for path in (tmp_path / "results").rglob("*"))
    times = [path.stat().st_mtime_ns for path in recorded]
    code, again, err = subflot(*args)
    assert (code, again) == (0, first)
    assert "round" not in err
    assert sorted(path for path in (tmp_path / "results").rglob("*")) == recorded
    assert [path.stat().st_mtime_ns for path in recorded] == times
    assert [path.name for path in (tmp_path / "runs" / "paper").iterdir()] == ["tables"]
    _, shown, _ = subflot(*args, "--dry-run")
    row = next(line for line in shown.splitlines() if " all " in line)
    assert row.replace("│", " ").split()[:4] == ["all", "1", "0", "1"]
    # What is new is run, and written elsewhere.
    code, _, err = subflot(*args, "--seeds", "0,1")
    assert code == 0
    assert len(list((tmp_path / "runs" / "paper" / "runs").iterdir())) == 1
    assert sorted(path for path in (tmp_path / "results").rglob("*")) == recorded


@pytest.mark.parametrize("command", ["table", "figure"])
def test_every_help_ends_with_an_example(subflot: Command, command: str) -> None:
    _, shown, _ = subflot(command, "--help")
    assert shown.strip().splitlines()[-1].strip().startswith("Example: subflot")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("table", "labelskew"), "did you mean `label-skew`?"),
        (("figure", "tim"), "did you mean `time`?"),
        (("table", "proxy", "--scale", "huge"), "unknown scale `huge`"),
        (("table", "proxy", "--protocol", "serched"), "did you mean `searched`?"),
        (("table", "proxy", "--seeds", "a"), "`a` are no seeds"),
        (("table", "proxy", "--format", "xml"), "unknown format `xml`"),
        (("table", "proxy", "--columns", "cifar"), "did you mean `cifar10`?"),
        (("figure", "convergence", "--no-run"), "leave out --no-run"),
    ],
)
def test_mistakes_are_one_message(
    subflot: Command, tmp_path: Path, args: list[str], said: str
) -> None:
    code, shown, err = subflot(*args, "--out", str(tmp_path / "none"))
    assert (code, shown) == (2, "")
    assert err.startswith("error: ")
    assert said in err
