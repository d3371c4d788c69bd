"""A table is what its records say: numbers, ranks, and what is missing."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from made_records import made_run, made_sheet

from subflot.errors import SubflotError
from subflot.paper.sheet import Sheet, read_sheet
from subflot.paper.tables import (
    csv_text,
    latex,
    mark,
    markdown,
    notes,
    ours,
    papers,
    terminal,
    write_all,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three methods on two tasks; two seeds for `a`, one seed each for the others."""
    runs = tmp_path / "runs"
    made_run(runs / "a0", [[0.5, 0.5], [0.8, 0.6]])  # 70 % in the last round.
    made_run(runs / "a1", [[0.9, 0.9]], seed=1)  # 90 %.
    made_run(runs / "b0", [[0.6, 0.7]])  # 65 %.
    made_run(runs / "c0", [[0.75, 0.75]])  # 75 %.
    made_run(runs / "half", [[0.3, 0.3]], is_finished=False)
    cells = [
        cell("a", "x", ["a0", "a1"], printed=85.0, spread=0.25),
        cell("b", "x", ["b0", "half"], printed=60.0, reason="training diverged"),
        cell("c", "x", ["c0", "nowhere"], printed=50.0),
        cell("a", "y", ["nowhere", None], printed=40.0, reason="data not found"),
        cell("b", "y", ["b0", "b0"]),
        cell("c", "y", [None, None], reason="data not found"),
    ]
    rows = ["a", "b", {"name": "c", "title": "c", "remark": "reconstructed"}]
    return made_sheet(tmp_path, rows, ["x", "y"], cells=cells, seeds=[0, 1])


def cell(row: str, column: str, runs: list[str | None], **given: Any) -> dict[str, Any]:
    return {"row": row, "column": column, "runs": runs, "part": None, **given}


def test_a_cell_has_mean_and_deviation_over_seeds_and_the_papers_number(path: Path) -> None:
    found = read_sheet(path).cells["a", "x"]
    assert found.values == pytest.approx((70.0, 90.0))
    assert found.mean == pytest.approx(80.0)
    assert found.deviation == pytest.approx(200**0.5)  # Two values, each 10 from their mean.
    assert (found.printed, found.spread) == (85.0, 0.25)
    assert found.difference == pytest.approx(-5.0)


def test_one_seed_has_no_deviation(path: Path) -> None:
    found = read_sheet(path).cells["c", "x"]
    assert found.mean == pytest.approx(75.0)
    assert found.deviation is None


def test_an_unfinished_run_is_no_number(path: Path) -> None:
    found = read_sheet(path).cells["b", "x"]
    assert found.values == pytest.approx((65.0,))
    assert "(1 of 2 seeds)" in ours(found, read_sheet(path))


def test_ranks_are_taken_among_rows_that_both_have(path: Path) -> None:
    sheet = read_sheet(path)
    ranks = {c.row: (c.rank, c.printed_rank) for c in sheet.column("x")}
    # Ours: a 80, c 75, b 65. The paper: a 85, b 60, c 50.
    assert ranks == {"a": (1, 1), "b": (3, 2), "c": (2, 3)}
    assert [mark(c) for c in sheet.column("x")] == ["=", "▼1", "▲1"]
    assert sheet.agreement("x") == (2, 3)  # a before b, a before c; b before c is not so.
    assert [c.rank for c in sheet.column("y")] == [None] * 3
    assert sheet.agreement("y") is None


def test_rows_are_ranked_within_their_group(tmp_path: Path) -> None:
    for name, accuracy in (("p", 0.5), ("q", 0.6), ("r", 0.7)):
        made_run(tmp_path / "runs" / name, [[accuracy]])
    rows = [{"name": n, "title": n, "group": g} for n, g in (("p", "1"), ("q", "1"), ("r", "2"))]
    cells = [cell(n, "x", [n], printed=p) for n, p in (("p", 9.0), ("q", 8.0), ("r", 1.0))]
    sheet = read_sheet(made_sheet(tmp_path, rows, ["x"], cells=cells))
    assert [(c.rank, c.printed_rank) for c in sheet.column("x")] == [(2, 1), (1, 2), (None, None)]
    assert sheet.agreement("x") == (0, 1)


def test_missing_cells_are_shown_with_their_reasons(path: Path) -> None:
    sheet = read_sheet(path)
    assert set(sheet.missing) == {"training diverged", "not run", "data not found"}
    text = markdown(sheet)
    assert text.count("missing [") == 2
    letter = ours(sheet.cells["a", "y"], sheet)[-2]
    assert f"- [{letter}] data not found (2 cells in y)." in text
    assert "paper 40.00" in papers(sheet.cells["a", "y"], sheet)


def test_remarks_and_protocol_stand_below_the_table(path: Path) -> None:
    said = "\n".join(notes(read_sheet(path)))
    assert "c: reconstructed." in said
    assert "learning rate 0.001 and batches of 256" in said


def test_chosen_learning_rates_stand_below_the_table(tmp_path: Path) -> None:
    choice = {"algorithm": "a", "task": "har", "learning_rate": 0.05, "is_complete": False}
    path = made_sheet(tmp_path, [], [], protocol="tuned", choices=[choice])
    said = "\n".join(notes(read_sheet(path)))
    assert "a on har 0.05 (not all rates were tried or finished)" in said


def test_only_the_clients_of_a_domain_count(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "r", [[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]])
    cells = [{**cell("a", str(k), ["r"]), "part": [k, 3]} for k in range(3)]
    sheet = read_sheet(made_sheet(tmp_path, ["a"], ["0", "1", "2"], cells=cells))
    means = [sheet.cells["a", str(k)].mean for k in range(3)]
    assert means == pytest.approx([15.0, 35.0, 55.0])


def test_csv_has_a_line_per_cell_at_full_precision(path: Path) -> None:
    sheet = read_sheet(path)
    lines = list(csv.DictReader(io.StringIO(csv_text(sheet))))
    assert len(lines) == len(sheet.cells)
    first = lines[0]
    assert (first["row"], first["column"], first["num_seeds"]) == ("a", "x", "2")
    assert float(first["deviation"]) == sheet.cells["a", "x"].deviation
    assert [line["missing"] for line in lines[:4]] == [
        "",
        "training diverged",
        "not run",
        "data not found",
    ]


def test_markdown_has_every_number(path: Path) -> None:
    text = markdown(read_sheet(path))
    assert "| a | 80.00 ± 14.14 =<br>paper 85.00 ± 0.25, -5.00 | missing [" in text
    assert "| in the paper's order | 2 of 3 pairs |  |" in text


def test_latex_marks_the_best_and_escapes_names(path: Path) -> None:
    sheet = read_sheet(path)
    rows = {"a": {"name": "a", "title": "a_1 & 50%"}, **{k: sheet.rows[k] for k in ("b", "c")}}
    text = latex(Sheet(sheet.about, rows, sheet.columns, sheet.cells, sheet.runs))
    assert r"a\_1 \& 50\% & \textbf{80.00} $\pm$ 14.14 (85.00) & -- \\" in text
    assert text.count(r"\textbf") == 2  # One per column.
    assert r"\begin{tabular}{lrr}" in text


# ----- beside the reference


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Three methods on six clients of one seed; the second is the one that we recommend."""
    runs = tmp_path / "runs"
    made_run(runs / "a", [[0.5, 0.6, 0.5, 0.6, 0.5, 0.6]])
    made_run(runs / "plus", [[0.8, 0.95, 0.9, 0.8, 0.85, 1.0]])
    made_run(runs / "c", [[0.9, 0.8, 1.0, 0.7, 0.85, 1.0]])
    rows = ["a", "subflot-plus", "c"]
    cells = [cell(row, "x", [run]) for row, run in zip(rows, ["a", "plus", "c"], strict=True)]
    return made_sheet(tmp_path, rows, ["x"], cells=cells)


def test_cells_are_compared_with_the_recommended_method_client_by_client(pairs: Path) -> None:
    sheet = read_sheet(pairs)
    assert sheet.reference == "subflot-plus"
    assert set(sheet.paired) == {("a", "x"), ("c", "x")}
    assert sheet.paired["a", "x"].mean == pytest.approx(-200 / 6)  # -30, -35, -40, -20, -35, -40.
    assert sheet.paired["a", "x"].is_certain
    assert sheet.paired["c", "x"].mean == pytest.approx(-5 / 6)  # +10, -15, +10, -10, 0, 0.
    assert not sheet.paired["c", "x"].is_certain


def test_without_it_they_are_compared_with_the_first_row(pairs: Path) -> None:
    part = read_sheet(pairs).part(["c", "a"], [])
    assert part.reference == "a"
    assert part.paired["c", "x"].mean == pytest.approx(195 / 6)
    assert not read_sheet(pairs).part(["a"], []).paired


def test_differences_stand_in_every_format_and_below_is_what_they_mean(pairs: Path) -> None:
    sheet = read_sheet(pairs)
    text = markdown(sheet)
    assert f"| a | 55.00<br>Δ {sheet.paired['a', 'x']} |" in text
    assert str(sheet.paired["a", "x"]).endswith(" †")
    assert "| subflot-plus | 88.33 |" in text
    assert "less that of subflot-plus on the same clients" in text
    assert "over the clients of one division, not over seeds" in text
    shown = [str(one) for one in terminal(sheet).columns[1].cells]
    assert shown[0] == f"55.00\nΔ {sheet.paired['a', 'x']}"
    small = latex(sheet).splitlines()
    place = next(i for i, line in enumerate(small) if line.startswith("a & "))
    assert small[place + 1].startswith(r" & {\footnotesize $-$33.33 [$-$")
    assert small[place + 1].endswith(r"]$^\dagger$} \\")
    first, second, third = csv.DictReader(io.StringIO(csv_text(sheet)))
    assert (first["reference"], first["paired_clients"]) == ("subflot-plus", "6")
    assert float(first["paired_low"]) < float(first["paired_difference"]) < 0
    assert second["reference"] == ""
    assert float(third["paired_low"]) < 0 < float(third["paired_high"])


def test_counts_of_another_unit_are_compared_as_shares(tmp_path: Path) -> None:
    made = {"row": "a", "column": "x", "values": [99.0], "printed": 100.0}
    sheet = read_sheet(made_sheet(tmp_path, ["a"], ["x"], cells=[made], unit="million"))
    assert papers(sheet.cells["a", "x"], sheet) == "paper 100.00, -1.00%"
    assert sheet.cells["a", "x"].rank is None


def test_every_format_is_written_beside_the_sheet(path: Path) -> None:
    written = write_all(read_sheet(path), path)
    assert [file.suffix for file in written] == [".md", ".csv", ".tex"]
    assert all(file.parent == path.parent and file.stat().st_size > 100 for file in written)


def test_a_sheet_that_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"there is no sheet .*absent\.json"):
        read_sheet(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(SubflotError, match=r"broken\.json is damaged"):
        read_sheet(tmp_path / "broken.json")


def test_equal_numbers_share_a_rank(tmp_path: Path) -> None:
    for name in ("p", "q"):
        made_run(tmp_path / "runs" / name, [[0.5]])
    cells = [cell(n, "x", [n], printed=p) for n, p in (("p", 9.0), ("q", 8.0))]
    sheet = read_sheet(made_sheet(tmp_path, ["p", "q"], ["x"], cells=cells))
    assert [(c.rank, c.printed_rank) for c in sheet.column("x")] == [(1, 1), (1, 2)]
    assert sheet.agreement("x") == (0, 1)
