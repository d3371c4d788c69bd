"""What a run notes of its model is what its next round would do with it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from subflot.algorithms.base import Client, Turn
from subflot.experiments import RunConfig, run
from subflot.experiments.maps import MOST_CELLS, SHADES, binned, channel_map, last_plans
from subflot.experiments.runner import assemble
from subflot.results import CHANNELS, PLANS, RunRecord
from subflot.simulation.store import Store
from subflot.transport import solve

CONFIG = RunConfig.of(
    algorithm="subflot-partial",
    global_share=1.0,
    num_clients=4,
    client_rates=(0.0, 0.25, 0.75, 0.75),
    rounds=2,
    epochs=1,
    partition="iid",
)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return run(CONFIG, tmp_path_factory.mktemp("runs") / "run", workers=1)


def matrix(picture: dict[str, Any]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    levels = [SHADES.index(cell) / (len(SHADES) - 1) for cell in picture["cells"]]
    return np.array(levels).reshape(picture["grid"])


# ----- pictures of plans


@given(st.integers(1, 90), st.integers(1, 90), st.integers(0, 99))
def test_columns_of_a_picture_still_sum_to_one(sources: int, targets: int, seed: int) -> None:
    cost = np.random.default_rng(seed).random((sources, targets))
    plan = solve(torch.from_numpy(cost))
    shares = binned(plan.share, plan.source, plan.target, plan.shape)
    assert shares.shape == (min(sources, MOST_CELLS), min(targets, MOST_CELLS))
    np.testing.assert_allclose(shares.sum(0), 1)


def test_a_small_plan_is_drawn_entry_by_entry() -> None:
    share, source, target = np.array([0.25, 0.75, 1.0]), np.array([0, 1, 2]), np.array([0, 0, 1])
    np.testing.assert_array_equal(
        binned(share, source, target, (3, 2)), [[0.25, 0], [0.75, 0], [0, 1]]
    )


def test_neighbouring_channels_of_a_large_plan_share_a_cell() -> None:
    size = 2 * MOST_CELLS
    index = np.arange(size)
    shares = binned(np.ones(size), index, index[::-1], (size, size))
    np.testing.assert_array_equal(shares, np.eye(MOST_CELLS)[::-1])


# ----- what runs note


def test_plans_carry_the_global_model_to_what_a_client_would_receive(record: RunRecord) -> None:
    assert [(p["client"], p["pruning_rate"], p["round"]) for p in record.plans] == [
        (0, 0, 2),
        (1, 0.25, 2),
        (2, 0.75, 2),
    ]
    store = Store(record.folder)
    manifest = store.manifest()
    assert manifest is not None
    state, task = store.state(manifest), assemble(CONFIG)[0]
    for one in record.plans:
        client = Client(one["client"], one["pruning_rate"])
        received = CONFIG.method.download(task, state, client, Turn(3, 3, CONFIG.seed)).weights
        first = one["layers"][0]
        assert first["layer"] == "features.0.weight"
        shares = torch.from_numpy(matrix(first)).float()
        carried = torch.einsum("st,s...->t...", shares, state.weights[first["layer"]])
        torch.testing.assert_close(carried, received[first["layer"]])


def test_the_channel_map_says_what_is_left_at_each_rate(record: RunRecord) -> None:
    model = record.channels
    assert model is not None
    assert (model["model"], model["data"]) == ("digits-cnn", "digits")
    assert model["rates"] == [0.0, 0.25, 0.5, 0.75]
    spaces = {space["name"]: space for space in model["spaces"]}
    assert spaces["features.0"]["kept"] == [16, 12, 8, 4]
    assert spaces["features.0"]["frozen"] == ""
    assert spaces["classifier.2"]["kept"] == [10, 10, 10, 10]
    assert spaces["classifier.2"]["frozen"] == "output"
    assert ["classifier.2.weight", "10 x 128", "classifier.2 | classifier.0"] in model["tensors"]


def test_without_a_checkpoint_there_are_no_plans(record: RunRecord, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(record.folder, kept, ignore=shutil.ignore_patterns("*.safetensors"))
    assert last_plans(kept, CONFIG, assemble(CONFIG)[0]) == []


def test_a_method_without_plans_notes_its_channels_alone(tmp_path: Path) -> None:
    config = RunConfig.of(algorithm="fedavg", num_clients=2, rounds=1, epochs=1, max_examples=60)
    found = run(config, tmp_path / "run", workers=1)
    assert found.plans == []
    assert not (found.folder / PLANS).exists()
    assert found.channels is not None
    assert found.channels["ignores_budgets"]
    assert not channel_map(CONFIG, assemble(CONFIG)[0])["ignores_budgets"]


def test_a_run_that_goes_on_or_anew_has_the_notes_of_its_own_settings(tmp_path: Path) -> None:
    settings = {"num_clients": 2, "rounds": 1, "epochs": 1, "max_examples": 60}
    first = run(RunConfig.of(**settings), tmp_path, workers=1)
    assert first.plans
    notes = [(tmp_path / name).read_bytes() for name in (CHANNELS, PLANS)]
    (tmp_path / "summary.json").unlink()
    run(RunConfig.of(**settings), tmp_path, workers=1)
    assert [(tmp_path / name).read_bytes() for name in (CHANNELS, PLANS)] == notes
    other = RunConfig.of(**settings, algorithm="heterofl", client_rates=(0.5, 0.5))
    again = run(other, tmp_path, workers=1, force=True)
    assert again.channels is not None
    assert (again.channels["rates"][-1], again.plans) == (0.75, [])
