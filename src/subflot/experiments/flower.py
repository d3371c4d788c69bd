"""Run a config on Flower: simulated on Ray, or with the apps that `flwr run` starts."""

import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from subflot.data.federated import Examples, FederatedData, federate
from subflot.data.own import from_arrays
from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig, grid, parse, read_config
from subflot.experiments.engines import without_flower
from subflot.experiments.maps import note_channels, note_plans
from subflot.experiments.runner import assemble, bare_task, divided_data, recorded, task_of
from subflot.flower.client import Device, client_app
from subflot.flower.server import serve
from subflot.flower.settings import PRIVATE, FlowerSettings
from subflot.results import FLOWER
from subflot.simulation import Round
from subflot.simulation.federation import calibration_of
from subflot.simulation.roster import Roster
from subflot.simulation.workers import default_workers
from subflot.task import Task
from subflot.texts import toml_value, write_text

FILE = "run.toml"
"""The file of settings in the folder of a Flower app."""


# ----- in one command


def run_on_ray(
    config: RunConfig,
    folder: Path,
    workers: int | None,
    on_round: Callable[[Round], None],
    settings: FlowerSettings,
) -> None:
    """Run the rounds that are left of a config on Ray, which is started and stopped."""
    from subflot.flower.ray import on_ray  # Slow to import, and no need of a device.

    _refuse_own(config)
    _claim(folder, settings)
    task, data, roster = assemble(config)
    settings = replace(settings, min_nodes=data.num_clients)

    def main(grid: Grid) -> None:
        _serve(grid, config, task, folder.absolute(), settings, roster, on_round)

    load = part_loader(config.toml(), str(folder.absolute()))
    app = client_app(load, settings)
    on_ray(main, app, data.num_clients, workers or default_workers(config.device))


def _refuse_own(config: RunConfig) -> None:
    if config.has_own:
        raise SubflotError(
            "on Flower clients bring no models of their own yet",
            hint="run it on the built-in engine, or leave out models and own_epochs",
        )


def _claim(folder: Path, settings: FlowerSettings) -> None:
    """Note the settings of a run; one that was begun with other privacy is an error."""
    path = folder / FLOWER
    if path.is_file():
        found = tomllib.loads(path.read_text())
        if found.get("privacy") == "local-dp":  # Where none is named, this was the default.
            found = {"sensitivity": 1.0, **found}
        there = FlowerSettings.of(found)
        odd = [name for name in PRIVATE if getattr(there, name) != getattr(settings, name)]
        if odd:
            raise SubflotError(
                f"{folder} holds a run of other settings: {', '.join(odd)}",
                hint="name another folder, or add --force to replace it",
            )
    lines = [f"{key} = {toml_value(value)}\n" for key, value in settings.table().items()]
    write_text(path, "".join(lines))


def _serve(
    grid: Grid,
    config: RunConfig,
    task: Task,
    folder: Path,
    settings: FlowerSettings,
    roster: Roster | None,
    on_round: Callable[[Round], None],
) -> None:
    note_channels(folder, config, task)
    rounds = serve(
        grid,
        config.method,
        task,
        folder,
        rounds=config.rounds,
        per_round=config.per_round or None,
        seed=config.seed,
        evaluate_every=config.evaluate_every,
        merging=config.merging,
        settings=settings,
        roster=roster,
        say=_say,
    )
    for done in rounds:
        on_round(done)
    note_plans(folder, config, task)


def part_loader(toml: str, folder: str) -> Callable[[Context], Device]:
    """Clients that hold the parts of a divided data set.

    Only text is kept: the rest is made once in every process.
    """

    def load(context: Context) -> Device:
        return _part(toml, int(context.node_config["partition-id"]), Path(folder))

    return load


def _part(toml: str, part: int, folder: Path) -> Device:
    config, data = _data(toml)
    validation = data.validation(part)
    return Device(
        config.method,
        lambda: _task(toml),
        data.train(part),
        data.test(part),
        validation if len(validation) else None,
        lambda: _calibration(toml),
        folder,
        partition=part,
    )


@cache
def _data(toml: str) -> tuple[RunConfig, FederatedData]:
    config = RunConfig.of(**tomllib.loads(toml))
    return config, divided_data(config)


@cache
def _task(toml: str) -> Task:
    config, data = _data(toml)
    return config.method.prepare(task_of(config, data))


@cache
def _calibration(toml: str) -> Examples:
    return calibration_of(_data(toml)[1])


# ----- the apps of `flwr run`


def server_app(home: Path) -> ServerApp:
    """Make the server app of a folder that holds a file of settings."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config, settings = _read(home, context)
        _refuse_own(config)
        folder = Path(str(context.run_config["folder"])).expanduser() / config.run_id
        is_real = bool(context.run_config["devices"])
        if is_real:
            task, roster = bare_task(config), None
        else:
            task, data, roster = assemble(config)
            settings = replace(settings, min_nodes=data.num_clients)
        _say(f"records: {folder}")
        with recorded(config, folder) as is_finished:
            _claim(folder, settings)
            if not is_finished:
                _serve(grid, config, task, folder, settings, roster, _tell(config))

    return app


def app_of_clients(home: Path) -> ClientApp:
    """Make the client app of a folder that holds a file of settings."""
    settings = FlowerSettings.of(without_flower(read_config(home / FILE))[1])

    def load(context: Context) -> Device:
        config, _ = _read(home, context)
        if not context.run_config["devices"]:
            folder = Path(str(context.run_config["folder"])).expanduser() / config.run_id
            return _part(config.toml(), int(context.node_config["partition-id"]), folder)
        return _device(config, context.node_config)

    return client_app(load, settings)


def _read(home: Path, context: Context) -> tuple[RunConfig, FlowerSettings]:
    """Read the settings of an app; `set` of the run's own settings changes some of them."""
    changes = parse(str(context.run_config["set"]).split())
    written = read_config(home / FILE)
    flat, table = without_flower({**written, **changes})
    own = without_flower(written)[1]
    odd = [name for name in PRIVATE if own.get(name) != table.get(name)]
    if odd:
        raise SubflotError(
            f"{', '.join(odd)} of [flower] would be changed for the server alone",
            hint=f"write it into {home / FILE}, from which devices take it too",
        )
    runs = grid(flat)
    if len(runs) != 1:
        raise SubflotError(
            f"{home / FILE} describes {len(runs)} runs",
            hint="an app is one run: name one algorithm and one seed",
        )
    return runs[0], FlowerSettings.of(table)


def _device(config: RunConfig, node: Any) -> Device:
    """Make a device of what its own configuration says."""
    home = Path(str(node.get("home", "~/.subflot"))).expanduser()
    if "data" in node:
        device = _own(config, Path(str(node["data"])).expanduser(), home)
    elif "partition-id" in node:
        device = _part(config.toml(), int(node["partition-id"]), home)
    else:
        raise SubflotError(
            "this node has no examples", hint='add data="FILE.npz" to its --node-config'
        )
    budget, rate = node.get("budget"), node.get("pruning-rate")
    return replace(
        device,
        pruning_rate=None if rate is None else float(rate),
        budget=None if budget is None else float(budget),
        quantity=str(node.get("quantity", "parameters")),
        num_threads=int(node.get("threads", 1)),
    )


def _own(config: RunConfig, path: Path, home: Path) -> Device:
    """A device with a file of its own examples, which never leave it."""
    import numpy as np

    task = bare_task(config)
    try:
        with np.load(path, allow_pickle=False) as found:
            inputs, labels = found["inputs"], found["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise SubflotError(
            f"cannot read {path}: {error}",
            hint="it is a .npz file with the arrays `inputs` and `labels`",
        ) from None
    classes = [str(number) for number in range(_num_classes(task))]
    dataset = from_arrays(inputs, labels, classes=classes, name=path.stem)
    share = None if config.test_share < 0 else config.test_share
    data = federate(
        dataset,
        partition="iid",
        num_clients=1,
        seed=config.seed,
        test_share=share,
        validation_share=config.validation_share,
    )
    validation = data.validation(0)
    return Device(
        config.method,
        lambda: config.method.prepare(task),
        data.train(0),
        data.test(0),
        validation if len(validation) else None,
        lambda: data.train(0),
        home,
    )


def _num_classes(task: Task) -> int:
    with task.lend(task.initial) as model:
        return int(model.eval()(task.example.to(task.device)).shape[1])


def _tell(config: RunConfig) -> Callable[[Round], None]:
    def tell(done: Round) -> None:
        line = done.metrics
        trained = "" if line["trained"] is None else f"  trained {line['trained']['mean']:.1%}"
        faults = line["clients"].get("fault", [])
        bad = [
            f"client {client}: {fault}"
            for client, fault in zip(line["clients"]["client"], faults, strict=False)
            if fault
        ]
        _say(f"round {done.round}/{config.rounds}{trained}  {done.seconds:.1f} s")
        for one in bad:
            _say(f"  left out: {one}")

    return tell


def _say(message: str) -> None:
    sys.stderr.write(f"subflot: {message}\n")
    sys.stderr.flush()
