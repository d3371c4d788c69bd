"""Average ranks and critical distances, by hand and as Demšar (2006) prints them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from subflot.errors import SubflotError
from subflot.paper.ranks import (
    LEVEL,
    Ranking,
    average_ranks,
    caption,
    chance_of,
    critical_distance,
    diagram,
    draw_ranks,
    ranking,
)
from subflot.paper.sheet import Cell, Sheet

PRINTED = {
    2: 1.960,
    3: 2.343,
    4: 2.569,
    5: 2.728,
    6: 2.850,
    7: 2.949,
    8: 3.031,
    9: 3.102,
    10: 3.164,
}
"""Methods -> quantile of Nemenyi's test at 0.05, table 5 of the paper."""


def sheet_of(numbers: Mapping[str, Sequence[float | None]], **about: str) -> Sheet:
    """A table of methods and columns with one seed each; None for a run that is missing."""
    rows = {name: {"title": name.upper()} for name in numbers}
    count = len(next(iter(numbers.values())))
    columns = {f"c{n}": {"title": f"Set {n}"} for n in range(count)}
    cells = {
        (row, f"c{n}"): Cell(row, f"c{n}", (f"{row}-{n}",), values=() if one is None else (one,))
        for row, found in numbers.items()
        for n, one in enumerate(found)
    }
    return Sheet({"name": "made", "title": "Made", "source": "here", **about}, rows, columns, cells)


FOUR = {
    "a": (90.0, 80.0, 70.0, 60.0),
    "b": (80.0, 80.0, 71.0, 50.0),
    "c": (70.0, 20.0, 30.0, 50.0),
}


def test_ties_share_their_places() -> None:
    # Ranks by column: 1 2 3; 1.5 1.5 3; 2 1 3; 1 2.5 2.5.
    found = ranking(sheet_of(FOUR))
    assert found.ranks == {"A": 5.5 / 4, "B": 7 / 4, "C": 11.5 / 4}
    assert list(found.ranks) == ["A", "B", "C"]
    assert average_ranks(np.array([[0.1 + 0.2, 0.3]])).tolist() == [1.5, 1.5]


def test_the_papers_example_has_its_statistics() -> None:
    ranks = np.array([3.143, 2.000, 2.893, 1.964])  # Of four methods on 14 data sets.
    # Friedman's statistic is 9.28 and that of Iman and Davenport 3.69, with 3 and 39 degrees.
    assert chance_of(ranks, 14) == pytest.approx(stats.f.sf(3.69, 3, 39), rel=0.01)
    assert critical_distance(4, 14) == pytest.approx(1.25, abs=0.005)


@pytest.mark.parametrize("num_methods", PRINTED)
def test_quantiles_are_those_that_are_printed(num_methods: int) -> None:
    found = critical_distance(num_methods, 10) / (num_methods * (num_methods + 1) / 60) ** 0.5
    assert found == pytest.approx(PRINTED[num_methods], abs=0.0015)


def test_friedmans_statistic_is_scipys() -> None:
    numbers = np.random.default_rng(0).random((9, 5))
    chi = stats.friedmanchisquare(*numbers.T).statistic
    expected = stats.f.sf(8 * chi / (9 * 4 - chi), 4, 32)
    assert chance_of(average_ranks(numbers), 9) == pytest.approx(expected)


def test_where_all_columns_agree_chance_is_zero() -> None:
    assert chance_of(np.array([1.0, 2.0, 3.0]), 3) == 0.0
    assert chance_of(np.array([2.0, 2.0, 2.0]), 3) == 1.0


def test_methods_that_are_alike_are_seldom_told_apart() -> None:
    numbers = np.random.default_rng(0).random((4000, 20, 5))
    ranks = (-numbers).argsort(-1).argsort(-1).mean(1)  # All alike, so are their ranks.
    told = (np.ptp(ranks, axis=-1) > critical_distance(5, 20)).mean()
    assert 0.03 <= told <= LEVEL + 0.01


@pytest.mark.parametrize(
    ("ranks", "distance", "groups"),
    [
        ((1.0, 2.0, 3.0), 1.5, [(0, 1), (1, 2)]),
        ((1.0, 2.0, 3.0), 2.0, [(0, 2)]),
        ((1.0, 2.0, 3.0), 0.9, []),
        ((1.0, 1.2, 1.4, 4.0, 4.1), 1.0, [(0, 2), (3, 4)]),
    ],
)
def test_bars_join_all_that_lie_within_the_distance(
    ranks: Sequence[float], distance: float, groups: list[tuple[int, int]]
) -> None:
    named = {str(place): rank for place, rank in enumerate(ranks)}
    assert Ranking(named, ("x",), 0.01, distance).groups == groups
    # Without a difference at all there is nothing to tell apart.
    assert Ranking(named, ("x",), 0.2, distance).groups == [(0, len(ranks) - 1)]


def test_rows_that_lack_a_number_are_left_out_and_named() -> None:
    sheet = sheet_of({**FOUR, "d": (99.0, None, 99.0, 99.0)})
    found = ranking(sheet)
    assert list(found.ranks) == ["A", "B", "C"]
    assert "Left out, for want of results: D." in caption(found, sheet)


def test_a_cell_without_all_its_seeds_does_not_count() -> None:
    sheet = sheet_of(FOUR)
    short = Cell("a", "c1", ("a-1", "a-2", "a-3"), values=(80.0,))
    part = Sheet(sheet.about, sheet.rows, sheet.columns, {**sheet.cells, ("a", "c1"): short})
    with pytest.raises(SubflotError, match=r"there are 4 .* and 2"):
        ranking(part)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({n: row[:2] for n, row in FOUR.items()}, r"there are 2 \(c0, c1\) and 3"),
        ({n: FOUR[n] for n in "ab"}, r"there are 4 \(c0, c1, c2, c3\) and 2"),
        (dict.fromkeys("abc", (None, None, None)), r"there are 0 \(none\) and 0"),
    ],
    ids=["columns", "methods", "nothing"],
)
def test_too_few_columns_or_methods_are_refused(
    numbers: Mapping[str, Sequence[float | None]], told: str
) -> None:
    with pytest.raises(
        SubflotError, match=f"needs 3 columns .* and 3 methods.*{told}\n.*--columns"
    ):
        ranking(sheet_of(numbers))


def test_what_is_no_accuracy_has_no_ranks() -> None:
    with pytest.raises(SubflotError, match="the table is in million, and ranks are of accuracies"):
        ranking(sheet_of(FOUR, unit="million"))


def test_columns_of_the_same_runs_are_told() -> None:
    sheet = sheet_of(FOUR)
    assert "same runs" not in caption(ranking(sheet), sheet)
    twin = Cell("a", "c1", ("a-0",), values=(80.0,))
    part = Sheet(sheet.about, sheet.rows, sheet.columns, {**sheet.cells, ("a", "c1"): twin})
    assert "Some columns are parts of the same runs" in caption(ranking(part), part)


def test_the_diagram_names_every_method_with_its_rank(tmp_path: Path) -> None:
    sheet = sheet_of(FOUR)
    (axes,) = diagram(sheet).axes
    assert {"A  1.38", "B  1.75", "2.88  C"} <= {text.get_text() for text in axes.texts}
    assert sum(line.get_linewidth() > 3 for line in axes.lines) == len(ranking(sheet).groups) == 1
    files = draw_ranks(sheet, tmp_path / "made-ranks")
    assert [file.name for file in files] == ["made-ranks.png", "made-ranks.pdf"]
    assert all(file.stat().st_size > 1000 for file in files)
