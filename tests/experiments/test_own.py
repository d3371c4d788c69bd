"""Runs whose clients bring models of their own: from files, or trained alone before they join."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import contents, metrics_of

from subflot.algorithms.base import Client
from subflot.errors import SubflotError
from subflot.experiments import RunConfig, run
from subflot.experiments.alone import Joining, brought, owners
from subflot.experiments.config import config_of
from subflot.experiments.export import export
from subflot.experiments.own import Folder
from subflot.experiments.runner import _model, assemble
from subflot.simulation.federation import Federation
from subflot.weights import read_weights, write_weights

TINY: dict[str, Any] = {
    "algorithm": "subflot-plus",
    "num_clients": 4,
    "client_rates": (0.0, 0.25, 0.5, 0.75),
    "max_examples": 160,
    "epochs": 1,
    "rounds": 2,
    "learning_rate": 0.1,
}
OWN = RunConfig.of(**TINY, own_epochs=2)


def trained(config: RunConfig, folder: Path, workers: int = 1) -> Path:
    """Write the models that clients of a config train alone into a folder."""
    task, data, roster = assemble(config)
    build = partial(_model, config, task.example, len(data.dataset.classes))
    federation = Federation(config.method, task, data, folder / "none")
    with brought(config, federation, roster, build, workers) as models:
        assert isinstance(models, Folder)
        shutil.copytree(models.path, folder)
    return folder


def differing(one: Path, other: Path) -> list[str]:
    first, second = contents(one), contents(other)
    ignored = ("config.toml", "manifest")  # The latter with a checksum of the former.
    names = (first.keys() | second.keys()) - set(ignored)
    return sorted(name for name in names if first.get(name) != second.get(name))


def stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_models_trained_alone_give_the_same_run_as_the_same_in_files(tmp_path: Path) -> None:
    files = trained(OWN, tmp_path / "models")
    given = RunConfig.of(**TINY, models=str(files))
    for config, name, workers in ((OWN, "own", 1), (OWN, "many", 2), (given, "given", 1)):
        run(config, tmp_path / name, workers=workers)
    assert differing(tmp_path / "own", tmp_path / "many") == []
    assert differing(tmp_path / "own", tmp_path / "given") == []
    run(RunConfig.of(**TINY), tmp_path / "none", workers=1)
    assert "state-2.safetensors" in differing(tmp_path / "own", tmp_path / "none")


def test_every_client_trains_from_a_start_of_its_own_at_its_width(tmp_path: Path) -> None:
    task, models = assemble(OWN)[0], Folder(trained(OWN, tmp_path / "models"))
    assert list(models) == [0, 1, 2, 3]
    for client, rate in enumerate(TINY["client_rates"]):
        sizes = task.channels.sizes_of(models[client])
        assert sizes == {**sizes, **task.channels.kept_sizes(rate)}
    for name in task.parameters:
        assert len({float(models[client][name].flatten()[0]) for client in models}) == 4, name


def test_a_run_that_stopped_goes_on_without_training_anyone_alone_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(OWN, tmp_path / "whole", workers=1)
    with pytest.raises(KeyboardInterrupt):
        run(OWN, tmp_path / "stopped", workers=1, on_round=stop)
    monkeypatch.setattr("subflot.experiments.alone._train_alone", stop)
    run(OWN, tmp_path / "stopped", workers=1)
    assert differing(tmp_path / "whole", tmp_path / "stopped") == []


def test_clients_join_late_with_the_models_that_they_bring(tmp_path: Path) -> None:
    config = RunConfig.of(**{**TINY, "rounds": 3}, own_epochs=1, owner_share=0.5, own_round=2)
    late = owners(config, 4)
    assert len(late) == 2
    run(config, tmp_path / "run", workers=1)
    there = [line["clients"]["client"] for line in metrics_of(tmp_path / "run")]
    assert set(there[0]) == {0, 1, 2, 3} - set(late)
    assert set(there[1]) == set(there[2]) == {0, 1, 2, 3}


def test_late_clients_are_in_a_roster_from_their_round_on() -> None:
    roster = Joining(lambda _: [Client(0), Client(1), Client(2)], frozenset({1}), 3)
    found = [[client.id for client in roster(round)] for round in (1, 2, 3, 4)]
    assert found == [[0, 2], [0, 2], [0, 1, 2], [0, 1, 2]]


# ----- files


def test_an_exported_model_can_be_brought_to_another_run(tmp_path: Path) -> None:
    run(OWN, tmp_path / "run", workers=1)
    (tmp_path / "models").mkdir()
    export(tmp_path / "run", 2, tmp_path / "models" / "2.safetensors")
    config = RunConfig.of(**{**TINY, "rounds": 1}, models=str(tmp_path / "models"))
    assert run(config, tmp_path / "next", workers=1).is_finished


def test_a_run_with_other_models_has_another_name_and_refuses_changed_ones(tmp_path: Path) -> None:
    files = trained(OWN, tmp_path / "models")
    first = RunConfig.of(**TINY, models=str(files))
    with pytest.raises(KeyboardInterrupt):
        run(first, tmp_path / first.run_id, workers=1, on_round=stop)
    weights = read_weights(files / "1.safetensors")
    write_weights(files / "1.safetensors", {n: t + 1 for n, t in weights.items()})
    second = RunConfig.of(**TINY, models=str(files))
    assert first.run_id != second.run_id
    with pytest.raises(SubflotError, match="has changed since the run was named"):
        run(first, tmp_path / "new", workers=1)
    shutil.rmtree(files)  # What has begun needs them no more.
    assert run(config_of(tmp_path / first.run_id), tmp_path / first.run_id, workers=1).is_finished


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "holds no models"),
        (["0", "best"], r"names no client in best\.safetensors"),
        (None, "there is no folder"),
    ],
)
def test_a_folder_without_models_of_clients_is_refused(
    names: list[str] | None, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "models"
    for name in names or ():
        folder.mkdir(exist_ok=True)
        write_weights(folder / f"{name}.safetensors", {"w": torch.zeros(1)})
    if names == []:
        folder.mkdir()
    with pytest.raises(SubflotError, match=message):
        RunConfig.of(**TINY, models=str(folder))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"own_epochs": -1}, "own_epochs is -1"),
        ({"owner_share": 0.5}, "about clients with a model of their own"),
        ({"own_round": 2}, "about clients with a model of their own"),
        ({"own_epochs": 1, "owner_share": 0.0}, r"owner_share is 0\.0"),
        ({"own_epochs": 1, "own_round": 2}, "all clients join in round 2"),
        ({"own_epochs": 1, "algorithm": "heterofl"}, "heterofl cannot take models"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SubflotError, match=message):
        RunConfig.of(**{**TINY, **settings})


def test_on_flower_clients_bring_no_models_yet(tmp_path: Path) -> None:
    flower = pytest.importorskip("subflot.experiments.flower")
    with pytest.raises(SubflotError, match="bring no models of their own yet"):
        flower.run_on_ray(OWN, tmp_path, 1, print, None)
    assert not list(tmp_path.iterdir())
