"""Run one config: build what it names, go on where it stopped, leave a record."""

import json
import os
import platform
import signal
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import nn

from subflot.data import load as load_data
from subflot.data.federated import Examples, FederatedData, federate
from subflot.data.subset import subset
from subflot.errors import SubflotError
from subflot.experiments.alone import brought, joined_late
from subflot.experiments.config import RESULTS_VERSION, RunConfig, config_of
from subflot.experiments.maps import note_channels, note_plans
from subflot.models import find as find_model
from subflot.models.load import digest
from subflot.models.load import load as load_model
from subflot.results import CHANNELS, CONFIG, ENVIRONMENT, FLOWER, PLANS, SUMMARY, RunRecord
from subflot.seeding import generator
from subflot.simulation import Round, simulate
from subflot.simulation.federation import Federation
from subflot.simulation.roster import Roster, drawn, given, rate_within
from subflot.simulation.store import clear
from subflot.task import Task, check_device
from subflot.texts import write_text
from subflot.training.local import seeded

Engine = Callable[[RunConfig, Path, int | None, Callable[[Round], None]], None]
"""Runs the rounds that are left of a config in a folder, with some workers, and tells of each."""


def run(
    config: RunConfig,
    folder: Path,
    *,
    workers: int | None = None,
    force: bool = False,
    on_round: Callable[[Round], None] = lambda _: None,
    engine: Engine | None = None,
) -> RunRecord:
    """Run a config, or the rest of it; a finished run is not run again.

    Args:
        config: what to run.
        folder: where its record is kept, and where it goes on if it was interrupted.
        workers: processes; None: one per core.
        force: throw away what is there and start anew.
        on_round: called after every round, when it is saved.
        engine: runs the rounds that are left; None: the built-in one.
    """
    with recorded(config, folder, force=force) as is_finished:
        if not is_finished:
            (engine or _built_in)(config, folder, workers, on_round)
    return RunRecord(folder)


@contextmanager
def recorded(config: RunConfig, folder: Path, *, force: bool = False) -> Iterator[bool]:
    """Hold the folder of a run and sum the run up at the end; say whether it is finished."""
    with _alone(folder):
        if force:
            for name in (SUMMARY, FLOWER, CHANNELS, PLANS):
                (folder / name).unlink(missing_ok=True)
            clear(folder)
        _claim(folder, config, force)
        is_finished = RunRecord(folder).is_finished
        yield is_finished
        if not is_finished:
            record = RunRecord(folder)
            summary = {**record.summary(), "checksums": record.checksums()}
            write_text(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")


def _built_in(
    config: RunConfig, folder: Path, workers: int | None, on_round: Callable[[Round], None]
) -> None:
    _refuse_private(folder)
    with _ctrl_c() as check:
        task, data, roster = assemble(config)
        note_channels(folder, config, task)
        federation = Federation(config.method, config.method.prepare(task), data, folder)
        build = partial(_model, config, task.example, len(data.dataset.classes))
        with brought(config, federation, roster, build, workers) as models:
            for done in simulate(
                config.method,
                task,
                data,
                roster,
                rounds=config.rounds,
                per_round=config.per_round or None,
                seed=config.seed,
                folder=folder,
                workers=workers,
                evaluate_every=config.evaluate_every,
                models=models,
                merging=config.merging,
            ):
                on_round(done)
                check()
        note_plans(folder, config, task)


def _refuse_private(folder: Path) -> None:
    """A run that was begun with privacy must not go on without it."""
    settings = folder / FLOWER
    if settings.is_file() and tomllib.loads(settings.read_text()).get("privacy"):
        raise SubflotError(
            f"{folder} holds a run on Flower with privacy, which the built-in engine has not",
            hint=f"`subflot resume {folder}` goes on with it; --force replaces it",
        )


def assemble(config: RunConfig) -> tuple[Task, FederatedData, Roster]:
    """Build what a config names: the task, the clients' data, and who there is."""
    data = divided_data(config)
    task = task_of(config, data)
    roster = _roster(config, task, data.num_clients)
    return task, data, joined_late(config, roster, data.num_clients)


def divided_data(config: RunConfig) -> FederatedData:
    """Divide the data that a config names among its clients."""
    check_device(config.device)
    dataset = load_data(config.data, **config.data_settings)
    if config.max_examples:
        dataset = subset(dataset, config.max_examples, config.seed)
    data = federate(
        dataset,
        partition=config.partition,
        num_clients=config.num_clients or None,
        seed=config.seed,
        test_share=None if config.test_share < 0 else config.test_share,
        validation_share=config.validation_share,
        **config.partition_settings,
    )
    if config.measure_on == "validation":
        empty = np.empty(0, dtype=np.int64)
        hidden = [replace(s, test=s.validation, validation=empty) for s in data.shares]
        data = FederatedData(dataset, tuple(hidden))
    if config.per_round > data.num_clients:
        raise SubflotError(
            f"per_round is {config.per_round}", hint=f"there are {data.num_clients} clients"
        )
    return data


def task_of(config: RunConfig, data: FederatedData) -> Task:
    """Build a config's model, for the inputs and classes of its data."""
    task = _task(config, data.dataset.tensors([0, 1])[0], len(data.dataset.classes))
    return replace(task, proxy=_proxy(config, data))


def bare_task(config: RunConfig) -> Task:
    """Build a config's task without its data: what a server of real devices knows."""
    check_device(config.device)
    if ":" in config.model:
        raise SubflotError(
            f"the inputs of {config.model} are not known here",
            hint="name a bundled model, or write the apps in Python (docs/flower.md)",
        )
    network = find_model(config.model)
    return _task(config, network.example(), network.num_classes)


def _task(config: RunConfig, example: torch.Tensor, num_classes: int) -> Task:
    seed = int(torch.randint(2**62, (), generator=generator(config.seed, "model")))
    model = _model(config, example, num_classes, seed)
    try:
        with torch.no_grad():
            logits = model.eval()(example)
    except (RuntimeError, IndexError) as error:
        raise SubflotError(
            f"{config.model} cannot take inputs of shape {tuple(example.shape[1:])} from data set "
            f"`{config.data}`: {error}"
        ) from None
    if logits.shape != (len(example), num_classes):
        raise SubflotError(
            f"{config.model} returns {tuple(logits.shape)} for {len(example)} examples",
            hint=f"data set `{config.data}` has {num_classes} classes",
        )
    return Task.of(model.train(), example, config.local, device=config.device)


def _model(config: RunConfig, example: torch.Tensor, num_classes: int, seed: int) -> nn.Module:
    """Build the full model that a config names, drawn with a seed."""
    with seeded(seed, config.device):
        if ":" not in config.model:
            return find_model(config.model).build(num_classes, **config.model_settings)
        _check_unchanged(config)
        shape = ",".join(map(str, example.shape[1:]))
        kind = "" if example.is_floating_point() else ":int"
        return load_model(config.model, [shape + kind])[0]


def _check_unchanged(config: RunConfig) -> None:
    """Refuse a model whose file is not the one that the run was begun with."""
    if config.model_digest in ("", digest(config.model)):
        return
    raise SubflotError(
        f"{config.model.rpartition(':')[0]} has changed since the run began",
        hint="put the file back as it was to go on; `subflot run` begins a new run with it as it "
        "is now",
    )


def _proxy(config: RunConfig, data: FederatedData) -> Examples | None:
    """Training examples that the server holds, drawn from all clients' own."""
    pool = np.concatenate([shares.train for shares in data.shares])
    count = round(config.proxy_share * len(pool))
    if not count:
        return None
    order = torch.randperm(len(pool), generator=generator(config.seed, "proxy"))[:count]
    return Examples(*data.dataset.tensors(pool[np.sort(order.numpy())]))


def _roster(config: RunConfig, task: Task, num_clients: int) -> Roster:
    if config.client_rates:
        return given(num_clients, config.client_rates)
    if not config.budgets:
        return drawn(num_clients, config.pruning_rates, config.seed, config.redraw_every)
    rates = [rate_within(task, budget, config.budget) for budget in config.budgets]
    return drawn(num_clients, rates, config.seed, config.redraw_every)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder, so that no second process writes into it."""
    lock = FileLock(folder / ".lock", blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise SubflotError(
            f"{folder} is in use by another process", hint="wait for it, or name another folder"
        ) from None
    except OSError as error:
        raise SubflotError(
            f"cannot write to {folder}: {error.strerror}", hint="name another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _ctrl_c() -> Iterator[Callable[[], None]]:
    """Make sure that Ctrl-C ends the work as itself; what is yielded raises it if it was lost.

    A library that it meets halfway may swallow it, or raise an error of its own in its place.
    """
    is_pressed = False

    def check() -> None:
        if is_pressed:
            raise KeyboardInterrupt

    def press(*_: object) -> None:
        nonlocal is_pressed
        is_pressed = True
        check()

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_ours:
        signal.signal(signal.SIGINT, press)
    try:
        yield check
    except Exception:
        check()
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _claim(folder: Path, config: RunConfig, force: bool) -> None:
    """Write the settings into a new folder; one that holds other settings is an error."""
    path = folder / CONFIG
    if path.exists() and not force:
        there = RunRecord(folder).config
        known = {**config.flat(), **{k: v for k, v in there.items() if k != "name"}}
        odd = sorted(k for k, v in config.flat().items() if _plain(known[k]) != _plain(v))
        odd += sorted(there.keys() - config.flat().keys())
        if odd:
            raise SubflotError(
                f"{folder} holds a run of other settings: {', '.join(odd[:5])}",
                hint="name another folder, or add --force to replace it",
            )
        config_of(folder, is_trusted=True)  # The caller named the same model.
        return
    write_text(folder / ENVIRONMENT, json.dumps(environment(), indent=1) + "\n")
    write_text(path, config.toml())  # Last: where it stands, all of it was written.


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def environment() -> dict[str, Any]:
    """Say what a run was made with."""
    return {
        "results_version": RESULTS_VERSION,
        "subflot": version("subflot"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
