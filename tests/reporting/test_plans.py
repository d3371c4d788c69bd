"""Channel maps and plans on the page are those of the models in the run folders."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_runs import report, write_run

from subflot.algorithms.base import Client, Turn
from subflot.experiments import RunConfig, run
from subflot.experiments.runner import assemble
from subflot.reporting.plans import MOST_CELLS, SHADES, binned, study
from subflot.reporting.survey import Picture
from subflot.results import RunRecord
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


def matrix(picture: Picture) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    levels = [SHADES.index(cell) / (len(SHADES) - 1) for cell in picture.cells]
    return np.array(levels).reshape(picture.grid)


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


# ----- what runs tell


def test_plans_carry_the_global_model_to_what_a_client_would_receive(record: RunRecord) -> None:
    found = study([record])
    assert found.remarks == ()
    plans = found.plans[record.folder]
    assert [(p.client, p.pruning_rate, p.round) for p in plans] == [
        (0, 0, 2),
        (1, 0.25, 2),
        (2, 0.75, 2),
    ]

    store = Store(record.folder)
    manifest = store.manifest()
    assert manifest is not None
    state, task = store.state(manifest), assemble(CONFIG)[0]
    for one in plans:
        client = Client(one.client, one.pruning_rate)
        received = CONFIG.method.download(task, state, client, Turn(3, 3, CONFIG.seed)).weights
        first = one.layers[0]
        assert first.layer == "features.0.weight"
        shares = torch.from_numpy(matrix(first)).float()
        carried = torch.einsum("st,s...->t...", shares, state.weights[first.layer])
        torch.testing.assert_close(carried, received[first.layer])


def test_the_channel_map_says_what_is_left_at_each_rate(record: RunRecord) -> None:
    found = study([record])
    (model,) = found.models
    assert found.model_of == {record.folder: 0}
    assert (model.model, model.data) == ("digits-cnn", "digits")
    assert model.rates == (0.0, 0.25, 0.5, 0.75)
    spaces = {space.name: space for space in model.spaces}
    assert spaces["features.0"].kept == (16, 12, 8, 4)
    assert spaces["features.0"].frozen == ""
    assert spaces["classifier.2"].kept == (10, 10, 10, 10)
    assert spaces["classifier.2"].frozen == "output"
    assert ("classifier.2.weight", "10 x 128", "classifier.2 | classifier.0") in model.tensors


def test_a_record_without_its_checkpoint_still_has_a_channel_map(
    record: RunRecord, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(record.folder, kept, ignore=shutil.ignore_patterns("*.safetensors"))
    found = study([RunRecord(kept)])
    assert found.plans[kept] == ()
    assert len(found.models) == 1
    assert found.remarks == ()


def test_a_model_is_built_once_for_all_its_runs(tmp_path: Path) -> None:
    records = [
        write_run(tmp_path / name, [[report(0, 1)]], algorithm=name)
        for name in ("fedavg", "heterofl")
    ]
    found = study(records)
    assert len(found.models) == 1
    assert set(found.model_of.values()) == {0}
    assert found.ignore_budgets == {"fedavg"}


def test_code_that_a_record_names_is_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n")
    record = write_run(tmp_path / "run", [[report(0, 1)]], model=f"{trap}:Net")
    found = study([record])
    assert found.models == ()
    assert "is code, which is not run" in found.remarks[0][1]
    assert not (tmp_path / "sprung").exists()


def test_data_that_are_not_at_hand_are_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path / "nothing"))
    record = write_run(tmp_path / "run", [[report(0, 1)]], data="har", model="harcnn")
    found = study([record])
    assert found.models == ()
    assert found.remarks[0][0] == record.folder
    assert "data set `har`" in found.remarks[0][1]
