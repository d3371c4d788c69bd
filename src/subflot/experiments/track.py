"""Live tracking of runs in TensorBoard or MLflow, for those who have them open anyway."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from subflot.errors import SubflotError, UnknownName
from subflot.experiments.config import RunConfig
from subflot.simulation import Round

Tracker = Callable[[Round], None]


def tracked(metrics: dict[str, Any]) -> dict[str, float]:
    """Pick the numbers of a round that are drawn as curves.

    Example:
        >>> tracked({"trained": {"mean": 0.5, "worst": 0.25, "loss": 1.0}, "extracted": None,
        ...          "global": {"accuracy": 0.75, "loss": 2.0}, "bytes_down": 3, "bytes_up": 4})
        {'trained/mean': 0.5, 'trained/worst': 0.25, 'trained/loss': 1.0, 'global/accuracy': 0.75, \
'global/loss': 2.0, 'bytes_down': 3, 'bytes_up': 4}
    """
    wanted = ("mean", "worst", "accuracy", "loss")
    found = {
        f"{group}/{name}": metrics[group][name]
        for group in ("trained", "extracted", "global")
        for name in wanted
        if metrics[group] and metrics[group].get(name) is not None
    }
    return {**found, "bytes_down": metrics["bytes_down"], "bytes_up": metrics["bytes_up"]}


def tracker(kind: str, config: RunConfig, folder: Path) -> Tracker:
    """Return what is to be told of every round of a run.

    Args:
        kind: `tensorboard`, which writes into the run's folder, or `mlflow`, which goes where
            MLFLOW_TRACKING_URI says.
        config: the run's settings.
        folder: the run's folder.
    """
    if kind not in TRACKERS:
        raise UnknownName("tracker", kind, TRACKERS, "subflot run --help")
    try:
        return TRACKERS[kind](config, folder)
    except ImportError as error:
        raise SubflotError(
            f"{kind} is not installed: {error}", hint="pip install 'subflot[track]'"
        ) from None


def _tensorboard(config: RunConfig, folder: Path) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    writer.add_text("settings", f"```\n{config.toml()}```")

    def told(done: Round) -> None:
        for name, value in tracked(done.metrics).items():
            writer.add_scalar(name, value, done.round)
        writer.flush()

    return told


def _mlflow(config: RunConfig, folder: Path) -> Tracker:
    import mlflow

    mlflow.set_experiment(config.name)
    run = mlflow.start_run(run_name=config.run_id)
    mlflow.log_params(config.flat())
    mlflow.end_run()
    client = mlflow.MlflowClient()

    def told(done: Round) -> None:
        for name, value in tracked(done.metrics).items():
            client.log_metric(run.info.run_id, name, value, step=done.round)

    return told


TRACKERS: dict[str, Callable[[RunConfig, Path], Tracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}
