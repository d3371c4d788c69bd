"""Curves land in a real TensorBoard log, and in MLflow where it is installed."""

from pathlib import Path

import pytest

from subflot.errors import SubflotError
from subflot.experiments import RunConfig, run
from subflot.experiments.track import tracked, tracker

CONFIG = RunConfig.of(
    name="tracked", algorithm="heterofl", num_clients=4, rounds=2, epochs=1, batch_size=64
)


def test_tensorboard_shows_the_records_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = run(CONFIG, tmp_path, workers=1, on_round=tracker("tensorboard", CONFIG, tmp_path))
    log = EventAccumulator(str(tmp_path / "tensorboard"))
    log.Reload()
    for line in record.rounds:
        for name, value in tracked(line).items():
            drawn = {event.step: event.value for event in log.Scalars(name)}
            assert drawn[line["round"]] == pytest.approx(value, rel=1e-6)


def test_mlflow_shows_the_records_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="pip install 'subflot[track]'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # No database is at hand.
    folder = tmp_path / "run"
    folder.mkdir()
    record = run(CONFIG, folder, workers=1, on_round=tracker("mlflow", CONFIG, folder))
    client = mlflow.MlflowClient()
    [found] = client.search_runs([client.get_experiment_by_name("tracked").experiment_id])
    drawn = {m.step: m.value for m in client.get_metric_history(found.info.run_id, "trained/mean")}
    assert drawn == {line["round"]: line["trained"]["mean"] for line in record.rounds}
    assert found.data.params["algorithm"] == "heterofl"


def test_an_unknown_tracker_is_named_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match="did you mean `tensorboard`"):
        tracker("tensorbord", CONFIG, tmp_path)
