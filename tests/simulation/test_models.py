"""Models that clients bring along: what is checked, where they stand, and who uses them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import (
    CLIENTS,
    differing,
    final_state,
    metrics_of,
    run_rounds,
    tiny_task,
)
from torch import Tensor
from torch.testing import assert_close

from subflot.algorithms import ALGORITHMS, make
from subflot.algorithms.base import Place
from subflot.errors import SubflotError
from subflot.weights import Weights

TAKERS = [name for name, kind in ALGORITHMS.items() if kind.takes_models]
Models = dict[int, dict[str, Tensor]]


def brought(*clients: int, rate: float | None = None) -> Models:
    """Random weights of the width that each client can hold, or of another one."""
    task, draw = tiny_task(), torch.Generator().manual_seed(7)
    widths = {one: CLIENTS[one].pruning_rate if rate is None else rate for one in clients}
    return {
        client: {
            name: torch.rand(t.shape, generator=draw) / 4 if t.is_floating_point() else t
            for name, t in task.narrow(task.initial, width).items()
        }
        for client, width in widths.items()
    }


def run_with(name: str, folder: Path, models: Mapping[int, Weights] | None, **more: Any) -> Path:
    return run_rounds(make(name), folder, models=models, **{"rounds": 2, **more})


def test_a_model_stands_as_the_history_of_a_client_until_it_takes_part(tmp_path: Path) -> None:
    models = brought(0, 1, 2, 3)
    state = final_state(run_with("subflot-plus", tmp_path, models, rounds=1, per_round=2))
    waiting = [client for client in models if state.places[client].round == 0]
    assert len(waiting) == 2
    for client in waiting:
        assert state.places[client] == Place(0, {})
        assert_close(dict(state.history[client]), models[client], rtol=0, atol=0)


@pytest.mark.parametrize("name", TAKERS)
def test_models_change_what_is_learnt_and_no_worker_changes_a_bit(
    name: str, tmp_path: Path
) -> None:
    models = brought(0, 2)
    one = run_with(name, tmp_path / "one", models)
    many = run_with(name, tmp_path / "many", models, workers=3)
    without = run_with(name, tmp_path / "without", None)
    assert differing(one, many) == []
    assert "state-2.safetensors" in differing(one, without)


def test_a_run_goes_on_with_the_same_models_or_none_and_not_with_others(tmp_path: Path) -> None:
    models = brought(0, 2)
    whole = run_with("subflot-plus", tmp_path / "whole", models)
    for name, later in (("same", models), ("none", None)):
        run_with("subflot-plus", tmp_path / name, models, stop_after=1)
        assert differing(run_with("subflot-plus", tmp_path / name, later), whole) == []
    run_with("subflot-plus", tmp_path / "others", models, stop_after=1)
    with pytest.raises(SubflotError, match="begun with other settings: models was 2"):
        run_with("subflot-plus", tmp_path / "others", brought(0, 1))
    run_with("subflot-plus", tmp_path / "bare", None, stop_after=1)
    with pytest.raises(SubflotError, match="models was none, is 2"):
        run_with("subflot-plus", tmp_path / "bare", models)


def test_a_model_of_another_width_is_carried_to_what_its_client_can_hold(tmp_path: Path) -> None:
    folder = run_with("subflot-plus", tmp_path, brought(2, rate=0.25), rounds=1)
    assert metrics_of(folder)[0]["num_rejected"] == 0
    sizes = tiny_task().channels.sizes_of(final_state(folder).history[2])
    assert sizes == {**sizes, **tiny_task().channels.kept_sizes(0.5)}


def spoilt(**changes: Any) -> Models:
    models = brought(1)
    models[1].update(changes)
    return {1: {name: t for name, t in models[1].items() if t is not None}}


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (spoilt(**{"head.bias": None}), "not those of the model: head.bias"),
        (spoilt(extra=torch.zeros(2)), "not those of the model: extra"),
        (spoilt(**{"head.bias": torch.full((10,), float("nan"))}), "`head.bias` holds NaN"),
        (spoilt(**{"head.bias": torch.zeros(10).double()}), "`head.bias` is torch.float64"),
        (spoilt(**{"head.bias": torch.zeros(9)}), "`head.bias` has an axis of 9 entries"),
        (spoilt(**{"conv.weight": torch.zeros(3, 1, 5, 3)}), r"shape \(3, 1, 5, 3\), expected"),
        ({4: brought(1)[1]}, "there is a model for client 4"),
    ],
)
def test_what_is_no_model_of_the_family_is_refused(
    models: Models, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SubflotError, match=message):
        run_with("subflot-plus", tmp_path, models)
    assert not (tmp_path / "manifest.json").exists()


def test_a_model_wider_than_the_full_one_is_refused(tmp_path: Path) -> None:
    wide = brought(0)[0]
    for name in ("conv.weight", "conv.bias", *(n for n in wide if n.startswith("norm."))):
        if wide[name].ndim:
            wide[name] = torch.cat([wide[name]] * 2)
    wide["hidden.weight"] = torch.cat([wide["hidden.weight"]] * 2, 1)
    with pytest.raises(SubflotError, match="has 8 channels, and the full model 4"):
        run_with("subflot-plus", tmp_path, {0: wide})


@pytest.mark.parametrize("name", ["fedavg", "fedamp", "local"])
def test_methods_without_a_place_for_models_say_which_have_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"cannot take models[^\n]*\n[^\n]*subflot-plus"):
        run_with(name, tmp_path, brought(0))
