"""Every method does the same on Flower as in the built-in engine. A new one is tested at once."""

from pathlib import Path

import pytest
from federations import differing, metrics_of, run_rounds
from flower_runs import run_on_grid

from subflot.algorithms import ALGORITHMS, make


@pytest.mark.parametrize("name", ALGORITHMS)
def test_three_rounds_on_a_grid_equal_three_rounds_of_the_simulator(
    name: str, tmp_path: Path
) -> None:
    """Weights, history, what clients remember and all metrics, bit for bit; with a break."""
    own = run_rounds(make(name), tmp_path / "own", rounds=3)
    for stop in (1, None):
        run_on_grid(make(name), tmp_path / "flower", rounds=3, stop_after=stop)
    assert differing(own, tmp_path / "flower") == []


def test_robust_rounds_on_a_grid_equal_those_of_the_simulator(tmp_path: Path) -> None:
    own = run_rounds(make("heterofl"), tmp_path / "own", rounds=2, merging="median")
    on_grid = run_on_grid(make("heterofl"), tmp_path / "flower", rounds=2, merging="median")
    assert differing(own, on_grid) == []
    assert "num_shortened" in metrics_of(on_grid)[-1]
