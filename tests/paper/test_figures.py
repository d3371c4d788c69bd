"""Figures show what the records say, and say what is missing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_records import made_run, made_sheet
from matplotlib.figure import Figure
from matplotlib.image import imread

from subflot.algorithms import ALGORITHMS
from subflot.paper import bars, curves, evidence
from subflot.paper.bars import gains, seconds_until, target
from subflot.paper.canvas import legend, panels, styles
from subflot.paper.curves import computed, sent
from subflot.paper.results import RESULTS, Order, find
from subflot.paper.results import Figure as Drawn
from subflot.paper.scales import Terms
from subflot.paper.sheet import Sheet, read_sheet

METHODS = ("heterofl", "subflot")
FIGURES = [name for name, one in RESULTS["figure"].items() if isinstance(one, Drawn)]


def draw(name: str, path: Path, out: Path, **cells: Any) -> list[Path]:
    return find("figure", name).draw(path, Order(Terms(**cells), out))


def cells(runs: Mapping[tuple[str, str], list[str]]) -> list[dict[str, Any]]:
    return [
        {"row": row, "column": column, "runs": names, "part": None}
        for (row, column), names in runs.items()
    ]


@pytest.fixture
def courses(tmp_path: Path) -> Path:
    """Two methods on HAR, SubFLOT with two seeds; nothing on CIFAR-10."""
    runs = tmp_path / "runs"
    made_run(runs / "h", [[0.2, 0.4], [0.6, 0.8]], seconds=[2.0, 3.0])
    made_run(runs / "s0", [[0.5, 0.5], [0.9, 0.9]], seconds=[5.0, 5.0])
    made_run(runs / "s1", [[0.5, 0.7], [0.7, 0.9]], seconds=[5.0, 7.0], seed=1)
    found = {
        ("heterofl", "cifar10"): ["none"],
        ("subflot", "cifar10"): ["none"],
        ("heterofl", "har"): ["h"],
        ("subflot", "har"): ["s0", "s1"],
    }
    return made_sheet(tmp_path, METHODS, ["cifar10", "har"], cells=cells(found))


def axes_of(figure: Figure, title: str) -> list[Any]:
    return [axes for axes in figure.axes if title in axes.get_title()]


def test_what_was_sent_and_computed_is_added_up(courses: Path) -> None:
    record = read_sheet(courses).records(read_sheet(courses).cells["heterofl", "har"])[0]
    assert sent(record) == [3.0, 3.0]  # Two clients, 1 MB down and 0.5 MB up each.
    # Two clients, ten examples of 1e8 multiply-adds, three passes, one epoch.
    assert computed(record) == [6.0, 6.0]


def test_multiply_adds_grow_with_the_epochs(tmp_path: Path) -> None:
    record = made_run(tmp_path / "r", [[0.5]], epochs=5)
    assert computed(record) == [3 * 5 * 10 * 1e8 / 1e9]


def test_the_cost_figure_follows_the_mean_of_the_seeds(courses: Path) -> None:
    figure = curves.spending(read_sheet(courses))
    drawn = axes_of(figure, "har")[0].containers
    line, _, (bars,) = next(one for one in drawn if one.get_label() == "subflot")
    assert np.asarray(line.get_xdata()).tolist() == [3.0, 6.0]
    # Seed 0 has 50 and 90 %, seed 1 has 60 and 80 %.
    assert np.asarray(line.get_ydata()) == pytest.approx([55.0, 85.0])
    lengths = [high - low for (_, low), (_, high) in bars.get_segments()]
    assert lengths == pytest.approx([2 * 50**0.5] * 2)  # A standard deviation to each side.


def test_a_panel_without_records_says_so(courses: Path) -> None:
    for make in (curves.spending, bars.times, bars.per_client):
        figure = make(read_sheet(courses))
        for axes in axes_of(figure, "cifar10"):
            assert "missing" in [text.get_text() for text in axes.texts]
        for axes in axes_of(figure, "har"):
            assert "missing" not in [text.get_text() for text in axes.texts]


def test_time_until_an_accuracy_is_wall_time_to_its_first_round(tmp_path: Path) -> None:
    record = made_run(tmp_path / "r", [[0.5], [0.7], [0.6]], seconds=[2.0, 3.0, 4.0])
    assert seconds_until(record, 0.5) == 2.0
    assert seconds_until(record, 0.65) == 5.0
    assert seconds_until(record, 0.75) is None


def test_the_target_falls_until_half_of_the_methods_reach_it(tmp_path: Path) -> None:
    def runs(*best: float) -> dict[str, list[Any]]:
        folder = tmp_path / "-".join(map(str, best))
        return {str(i): [made_run(folder / str(i), [[one]])] for i, one in enumerate(best)}

    assert target(runs(0.9, 0.85, 0.3)) == 0.8
    assert target(runs(0.9, 0.55, 0.3)) == 0.55
    assert target(runs(0.25, 0.2)) == 0.25
    assert target({}) == 0.8


def test_a_target_that_is_never_reached_is_written_out(courses: Path) -> None:
    figure = bars.times(read_sheet(courses))
    until = next(axes for axes in axes_of(figure, "har") if "until" in axes.get_title())
    assert "80%" in until.get_title()
    assert " not reached" in [text.get_text() for text in until.texts]  # HeteroFL ends at 70 %.
    widths = [patch.get_width() for patch in until.patches]
    assert widths == pytest.approx([11.0])  # Seeds take 10 and 12 seconds.


def test_seeds_that_never_reach_the_target_are_counted(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "fast", [[0.9]], seconds=[4.0])
    made_run(tmp_path / "runs" / "slow", [[0.1]], seconds=[4.0], seed=1)
    made = cells({("subflot", "har"): ["fast", "slow"]})
    figure = bars.times(read_sheet(made_sheet(tmp_path, ["subflot"], ["har"], cells=made)))
    until = next(axes for axes in axes_of(figure, "har") if "until" in axes.get_title())
    assert [text.get_text() for text in until.texts] == [" 1 of 2 seeds"]


def test_every_row_is_inside_its_panel(courses: Path) -> None:
    for figure in (bars.times(read_sheet(courses)), bars.per_client(read_sheet(courses))):
        for axes in axes_of(figure, "har"):
            low, high = sorted(axes.get_ylim())
            assert all(low < place < high for place in axes.get_yticks())


@pytest.mark.parametrize("name", ["cost", "time", "per-client"])
def test_only_what_is_asked_for_is_drawn(
    courses: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("subflot.paper.results.save", lambda figure, _: drawn.append(figure))
    draw(name, courses, tmp_path, rows=("heterofl",), columns=("har",))
    (figure,) = drawn
    assert axes_of(figure, "har")
    assert axes_of(figure, "cifar10") == []
    names = [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()]
    assert "subflot" not in names
    assert all(one.get_label() != "subflot" for axes in figure.axes for one in axes.containers)


@pytest.mark.parametrize("num_panels", [1, 2])
def test_a_legend_lies_within_its_figure(num_panels: int) -> None:
    figure, grid = panels(num_panels)
    for name in ALGORITHMS:
        grid[0].plot([0, 1], [0, 1], label=ALGORITHMS[name].__name__)
    legend(figure, grid)
    figure.draw_without_rendering()
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 < box.x1 <= whole.x1


def test_phases_stack_to_their_sum(courses: Path) -> None:
    figure = bars.times(read_sheet(courses))
    all_rounds = next(axes for axes in axes_of(figure, "har") if "all" in axes.get_title())
    ends = max(patch.get_x() + patch.get_width() for patch in all_rounds.patches)
    assert ends == pytest.approx(1.5 * 11.0)  # Training, and half of it for alignment.


def test_gains_are_counted_over_clients_that_both_have() -> None:
    own = {(0, 0): 80.0, (0, 1): 60.0, (0, 2): 50.0}
    other = {(0, 0): 70.0, (0, 1): 65.0, (1, 2): 10.0}
    assert gains(own, other) == [10.0, -5.0]


def test_the_per_client_figure_counts_who_gains_and_loses(courses: Path) -> None:
    figure = bars.per_client(read_sheet(courses))
    right = next(axes for axes in axes_of(figure, "har") if "gain" in axes.get_title())
    # With seed 0 clients have 90, 90 against 60, 80; HeteroFL has no seed 1.
    assert "+2 -0" in [text.get_text() for text in right.texts]


@pytest.fixture
def rates(tmp_path: Path) -> Sheet:
    made_run(tmp_path / "runs" / "low", [[0.8]])
    made_run(tmp_path / "runs" / "high", [[0.4]])
    made_run(tmp_path / "runs" / "again", [[0.6]], seed=1)
    columns = [
        {"name": f"har-{x}", "title": f"HAR, {x}", "x": x, "line": "HAR"} for x in (0.0, 0.5, 0.9)
    ]
    found = {
        ("subflot", "har-0.0"): ["low"],
        ("subflot", "har-0.5"): ["none"],
        ("subflot", "har-0.9"): ["high", "again"],
    }
    return read_sheet(made_sheet(tmp_path, ["subflot"], columns, cells=cells(found)))


def test_pruning_rates_are_drawn_with_error_bars_and_gaps(rates: Sheet) -> None:
    (axes,) = curves.pruning_rates(rates).axes
    (line, _, (bars_,)) = axes.containers[0]
    assert np.asarray(line.get_xdata()).tolist() == [0.0, 0.9]
    assert np.asarray(line.get_ydata()) == pytest.approx([80.0, 50.0])
    spans = [segment[1, 1] - segment[0, 1] for segment in bars_.get_segments()]
    assert spans == pytest.approx([0.0, 2 * 200**0.5])  # 40 and 60 %, one deviation each way.


def test_settings_are_drawn_at_their_values(tmp_path: Path) -> None:
    made_run(tmp_path / "runs" / "r", [[0.5]])
    rows = [
        {"name": "alpha-0.3", "title": "alpha 0.3", "group": "alpha"},
        {"name": "lambda-5", "title": "lambda 5", "group": "lambda"},
    ]
    found = {("alpha-0.3", "har"): ["r"], ("lambda-5", "har"): ["r"]}
    sheet = read_sheet(made_sheet(tmp_path, rows, ["har"], cells=cells(found)))
    alpha, weight = curves.sensitivity(sheet).axes
    assert np.asarray(alpha.containers[0][0].get_xdata()).tolist() == [0.3]
    assert np.asarray(weight.containers[0][0].get_xdata()).tolist() == [5.0]
    assert weight.get_xscale() == "log"


def test_lines_differ_without_colour() -> None:
    names = [f"method {number}" for number in range(10)] + ["subflot"]
    found = styles(names)
    assert len({(one.marker, one.dashes) for one in found.values()}) == len(names)
    assert found["subflot"].width > max(found[name].width for name in names[:-1])


def test_the_gap_and_the_bound_are_drawn_from_the_record(tmp_path: Path) -> None:
    record = {
        "title": "Gap",
        "constants": {"smoothness": 2.5},
        "terms": {"drift": 0.125},
        "gaps": [1.0, 0.5],
        "bounds": [3.0, 2.0],
        "proof_bounds": [30.0, 20.0],
    }
    path = tmp_path / "convergence-smoke.json"
    path.write_text(json.dumps(record))
    (axes,) = evidence.convergence(path).axes
    drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()]
    assert drawn == [[1.0, 0.5], [3.0, 2.0], [30.0, 20.0]]
    assert "smoothness = 2.5" in axes.texts[0].get_text()
    assert "drift = 0.125" in axes.texts[0].get_text()


def test_maps_are_drawn_over_their_images_with_their_similarity(tmp_path: Path) -> None:
    path = tmp_path / "attention.json"
    kinds = {"history": "historical model", "otp": "OTP"}
    similar = {"otp": {"mean": 0.75, "deviation": 0.1}}
    path.write_text(
        json.dumps({"kinds": kinds, "similarity": similar, "num_images": 7, "num_empty": 1})
    )
    maps = np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 2, 2)
    np.savez(tmp_path / "attention.npz", images=np.zeros((2, 6, 6, 3)), history=maps, otp=1 - maps)
    figure = evidence.attention(path)
    titles = [axes.get_title() for axes in figure.axes[:3]]
    assert titles == ["test image", "historical model", "OTP\n0.750 ± 0.100"]
    shown = figure.axes[5].get_images()[-1].get_array()
    assert np.allclose(np.asarray(shown), 1 - maps[1])


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_as_png_and_pdf_and_is_not_blank(
    tmp_path: Path, courses: Path, rates: Sheet, name: str
) -> None:
    path = courses if name in ("cost", "time", "per-client") else _sheet_for(name, tmp_path)
    png, pdf = draw(name, path, tmp_path)
    assert float(np.ptp(imread(png))) > 0.5
    assert pdf.read_bytes().startswith(b"%PDF")


def test_drawing_twice_gives_the_same_files(tmp_path: Path) -> None:
    path = _sheet_for("pruning-rates", tmp_path)
    one, other = (draw("pruning-rates", path, tmp_path / name) for name in ("one", "other"))
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in other]


def _sheet_for(name: str, tmp_path: Path) -> Path:
    made_run(tmp_path / "other" / "runs" / "r", [[0.5]])
    row = {"name": "alpha-0.3", "title": "alpha 0.3", "group": "alpha"}
    column = {"name": "har", "title": "HAR", "x": 0.5, "line": "HAR"}
    found = cells({("alpha-0.3", "har"): ["r"]})
    return made_sheet(tmp_path / "other", [row], [column], cells=found)
