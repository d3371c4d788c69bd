"""Who brings a model of its own to a run, and how clients train one alone before they join."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from subflot.algorithms.base import Client, Turn
from subflot.channels.resize import state_of
from subflot.channels.scale import keep_scale
from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.experiments.own import SUFFIX, Folder
from subflot.seeding import generator
from subflot.simulation.federation import Federation
from subflot.simulation.roster import Roster
from subflot.simulation.workers import Workers, default_workers
from subflot.training import train_locally
from subflot.weights import Weights, write_weights

Build = Callable[[int], nn.Module]
"""Makes a full model, drawn with a seed."""


@dataclass(frozen=True)
class Joining:
    """A roster that some clients join later than the others."""

    roster: Roster
    late: frozenset[int]
    round: int
    """The first in which they are there."""

    def __call__(self, round: int) -> list[Client]:
        """Return who there is in a round."""
        is_open = round >= self.round
        return [client for client in self.roster(round) if is_open or client.id not in self.late]


def joined_late(config: RunConfig, roster: Roster, num_clients: int) -> Roster:
    """Let clients with models of their own join when the config says."""
    if config.own_round == 1:
        return roster
    return Joining(roster, frozenset(owners(config, num_clients)), config.own_round)


def owners(config: RunConfig, num_clients: int) -> Sequence[int]:
    """List the clients that bring a model."""
    if config.models:
        return list(_given(config))
    if not config.own_epochs:
        return []
    order = torch.randperm(num_clients, generator=generator(config.seed, "owners"))
    return sorted(order[: max(1, round(config.owner_share * num_clients))].tolist())


@contextmanager
def brought(
    config: RunConfig, federation: Federation, roster: Roster, build: Build, workers: int | None
) -> Iterator[Mapping[int, Weights] | None]:
    """Provide the models that clients bring; None if nobody does, or the run has them already.

    Args:
        config: of the run.
        federation: what the clients hold, and how they train.
        roster: who there is.
        build: makes a full model for a client that trains its own.
        workers: processes; None: one per core.
    """
    if not config.has_own or federation.store.manifest() is not None:
        yield None
    elif config.models:
        yield _given(config)
    else:
        named = set(owners(config, federation.data.num_clients))
        clients = [client for client in roster(config.own_round) if client.id in named]
        crew = Workers(federation, workers or default_workers(config.device))
        with tempfile.TemporaryDirectory(prefix="subflot-") as folder:
            try:
                settings = build, config.own_epochs, config.seed, Path(folder)
                promises = [crew.submit(_train_alone, client, *settings) for client in clients]
                for promise in promises:
                    promise.result()
            finally:
                crew.close()
            yield Folder(folder)


def _given(config: RunConfig) -> Folder:
    models = Folder(config.models)
    if models.digest() != config.models_digest:
        raise SubflotError(
            f"{config.models} has changed since the run was named",
            hint="put the models back as they were; `subflot run` begins a new run with them as "
            "they are now",
        )
    return models


@torch.enable_grad()
def _train_alone(
    federation: Federation, client: Client, build: Build, epochs: int, seed: int, folder: Path
) -> None:
    """Let a client train a model of an initialisation of its own, and write it to a file."""
    task, turn = federation.task, Turn(0, 0, seed)
    draw = turn.generator("initial", client.id)
    full = state_of(build(int(torch.randint(2**62, (), generator=draw))))
    # As if it had been drawn with fewer inputs.
    narrow = keep_scale(task.narrow(full, client.pruning_rate), task.channels, power=0.5)
    trained = train_locally(
        replace(task, local=replace(task.local, epochs=epochs)),
        narrow,
        federation.data.train(client.id),
        turn.generator("batches", client.id),
    )
    write_weights(folder / f"{client.id}{SUFFIX}", trained.weights)
