"""The loop over rounds. It exists once."""

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from subflot.algorithms import make
from subflot.algorithms.base import Algorithm, Client, State, Turn, in_order
from subflot.data.federated import FederatedData
from subflot.errors import SubflotError
from subflot.results import METRICS, TIMING
from subflot.simulation.begun import begun_with, claim
from subflot.simulation.crew import Crew
from subflot.simulation.federation import Federation
from subflot.simulation.fit import check_fit
from subflot.simulation.merging import check_merges
from subflot.simulation.models import check_models
from subflot.simulation.record import metrics_line, timing_line
from subflot.simulation.roster import Roster
from subflot.simulation.server import Report, Server
from subflot.simulation.store import Manifest
from subflot.simulation.workers import Workers, default_workers
from subflot.task import Task
from subflot.threads import one_thread
from subflot.training import Measurement
from subflot.transport.warm import warm_up
from subflot.weights import Weights

DIVERGED = "training may have diverged; a lower learning_rate or max_norm=1 often helps"
SILENT = "look at the clients' own logs, or give them more time"


@dataclass(frozen=True)
class Round:
    """A round that is over, and saved. Its models can be had until the next round replaces them."""

    round: int
    metrics: dict[str, Any]
    """What `metrics.jsonl` says of it."""
    seconds: float
    manifest: Manifest
    server: Server
    clients: Sequence[Client]
    """Who there was, whether or not they took part."""
    turn: Turn

    @property
    def state(self) -> State:
        """The server's state after the round, read from the folder of the run."""
        self._check_last()
        return self.server.store.state(self.manifest)

    def model(self, client: int | None = None) -> nn.Module:
        """Build a client's model after the round, as wide as it can hold; with None the global one.

        It is the model as the client last trained it, where the method keeps it, and otherwise what
        the server would send it next. The module is ready for inference.
        """
        self._check_last()
        if not isinstance(self.server, Federation):
            raise SubflotError("the models of devices cannot be built here: their data are there")
        found = {one.id: one for one in self.clients}
        if client is not None and client not in found:
            raise SubflotError(
                f"there is no client {client}", hint=f"there are those from 0 to {max(found)}"
            )
        chosen = None if client is None else found[client]
        after = replace(self.turn, round=self.round + 1)
        return self.server.model(self.manifest, chosen, after)

    def _check_last(self) -> None:
        there = self.server.store.manifest()
        if there is not None and there.round != self.round:
            raise SubflotError(
                f"the models of round {self.round} were replaced by those of round {there.round}",
                hint="use those of the last round, or take each round's inside the loop",
            )


def simulate(
    algorithm: Algorithm | str,
    task: Task,
    data: FederatedData,
    clients: Sequence[Client] | Roster,
    *,
    rounds: int,
    per_round: int | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
    workers: int | None = None,
    evaluate_every: int = 1,
    min_uploads: int = 1,
    models: Mapping[int, Weights] | None = None,
    merging: str = "mean",
) -> Iterator[Round]:
    """Run rounds, and yield each one when it is saved.

    Started again on the same folder it goes on after the last round that was saved, to the same
    bits; another method, model, training, data, clients or seed than it was begun with is an error.
    Results do not depend on the number of workers.

    Args:
        algorithm: the method, or the name of one with its usual settings.
        task: the model and how it is trained.
        data: what each client holds.
        clients: who there is, or a function that says so for every round; some of those that the
            data knows will do.
        rounds: T.
        per_round: clients that take part in a round; None: all.
        seed: fixes everything that is drawn.
        folder: where the run is kept; None: in a temporary folder, which is removed when nobody
            holds one of its rounds any more.
        workers: processes, of one thread each; None: one per core.
        evaluate_every: models are measured in every round that this divides, and in the last.
        min_uploads: a round with fewer good uploads is an error.
        models: client -> weights of a model of its own that it brings, of any width. The run begins
            with them; one that goes on needs them no more.
        merging: `mean`, or what holds against hostile clients: `clipped`, `median`, `trimmed`.
    """
    if workers is not None and workers < 1:
        raise SubflotError(f"workers is {workers}", hint="at least 1")
    method = make(algorithm) if isinstance(algorithm, str) else algorithm
    if not isinstance(method, Algorithm):
        raise SubflotError(
            f"the algorithm is {method!r}", hint='give its name, or make("subflot", ...)'
        )
    check_fit(task, data, clients, per_round)
    prepared = method.prepare(task)
    check_models(method, prepared, models or {}, data.num_clients)
    federation = Federation(method, prepared, data, _place(folder), merging)
    if folder is None:
        weakref.finalize(federation.store, _remove, federation.store.folder, os.getpid())
    yield from run_rounds(
        federation,
        clients if callable(clients) else (lambda _: clients),
        lambda: Workers(federation, workers or default_workers(task.device)),
        rounds=rounds,
        per_round=per_round,
        seed=seed,
        evaluate_every=evaluate_every,
        min_uploads=min_uploads,
        num_clients=data.num_clients,
        models=models,
    )


def run_rounds(
    server: Server,
    roster: Roster,
    hire: Callable[[], Crew],
    *,
    rounds: int,
    per_round: int | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    min_uploads: int = 1,
    num_clients: int | None = None,
    models: Mapping[int, Weights] | None = None,
) -> Iterator[Round]:
    """Run the rounds that are left on a server's folder, and yield each one when it is saved.

    Args:
        server: what goes on between rounds.
        roster: who there is in a round.
        hire: gives those who do the clients' parts; not called if no round is left.
        rounds: T.
        per_round: clients that take part in a round; None: all.
        seed: fixes everything that is drawn.
        evaluate_every: models are measured in every round that this divides, and in the last.
        min_uploads: a round with fewer good uploads is an error.
        num_clients: how many can take part; None if nobody knows.
        models: what clients bring when the run begins.
    """
    for name, value in (("rounds", rounds), ("per_round", per_round)):
        if value is not None and value < 1:
            raise SubflotError(f"{name} is {value}", hint="at least 1")
    with one_thread():
        loop = _Loop(
            server, roster, rounds, per_round, seed, evaluate_every, min_uploads, num_clients
        )
        now = loop.begin(models)
        check_merges(server.merging, server.algorithm, server.store.state(now))
        if now.round >= rounds:
            return
        if server.algorithm.needs_transport:
            warm_up()  # Before the clock of a round starts, and once for all processes.
        crew = hire()
        try:
            while now.round < rounds:
                done = loop.next(now, crew)
                now = done.manifest
                yield done
        finally:
            crew.close()


@dataclass(frozen=True)
class _Loop:
    """What stays the same from round to round."""

    server: Server
    roster: Roster
    rounds: int
    per_round: int | None
    seed: int
    evaluate_every: int
    min_uploads: int
    num_clients: int | None

    def begin(self, models: Mapping[int, Weights] | None = None) -> Manifest:
        """Return the last round that was saved; round 0 is the start."""
        store = self.server.store
        is_new = store.manifest() is None
        if isinstance(self.server, Federation):  # Nobody else knows the data.
            begun = begun_with(
                self.server.algorithm,
                self._task,
                self.server.data,
                self.clients(1),
                per_round=self.per_round,
                seed=self.seed,
                models=(models or {}) if is_new else models,
            )
            begun["merging"] = self.server.merging
            claim(store.folder, begun, is_new=is_new)
        now = store.open()
        if now is None:
            now = self._start(models or {})
        return now

    def _start(self, models: Mapping[int, Weights]) -> Manifest:
        algorithm, store, clients = self.server.algorithm, self.server.store, self.clients(1)
        turn = Turn(0, self.rounds, self.seed)
        state = algorithm.start(self._task, clients, turn)
        now = Manifest(0, {str(id): store.keep("history", id, 0, models[id]) for id in models})
        if models:
            state = algorithm.adopt(self._task, store.with_clients(state, now), clients)
        store.write(now, state)
        return store.commit(now, {})

    @property
    def _task(self) -> Task:
        return self.server.task

    def clients(self, round: int) -> Sequence[Client]:
        """Return who there is in a round."""
        found = self.roster(round)
        ids = [client.id for client in found]
        known = max(ids, default=0) + 1 if self.num_clients is None else self.num_clients
        if not ids or len(set(ids)) != len(ids) or not 0 <= min(ids) <= max(ids) < known:
            raise SubflotError(
                f"the clients of round {round} are {ids[:10]}",
                hint=f"give each once; the data knows those from 0 to {known - 1}",
            )
        return found

    def next(self, now: Manifest, crew: Crew) -> Round:
        """Run one round and save it."""
        start = time.perf_counter()
        server, store = self.server, self.server.store
        turn = Turn(now.round + 1, self.rounds, self.seed)
        is_measured = turn.round % self.evaluate_every == 0 or turn.round == self.rounds
        clients, state = self.clients(turn.round), store.state(now)
        count = len(clients) if self.per_round is None else min(self.per_round, len(clients))
        invited = in_order(server.algorithm.invite(self._task, state, clients, count, turn))
        reports = server.judged(state, crew.take_part(invited, turn, is_measured))
        arrivals = server.arrivals(state, reports)
        after = server.algorithm.aggregate(self._task, state, arrivals, turn)
        for _ in arrivals:  # A method may have looked at none.
            pass
        self._check(reports, turn)
        server.check(after, reports, turn.round)
        manifest = Manifest(
            turn.round,
            {**now.history, **_files(reports, "history")},
            {**now.memory, **_files(reports, "memory")},
            checksums=now.checksums,
        )
        store.write(manifest, after)
        measured = self._measured(manifest, clients, crew) if is_measured else None
        metrics = metrics_line(turn.round, reports, measured)
        seconds = time.perf_counter() - start
        lines = {METRICS: metrics, TIMING: timing_line(turn.round, reports, seconds)}
        whole = store.commit(manifest, lines)
        return Round(turn.round, metrics, seconds, whole, server, clients, turn)

    def _check(self, reports: Sequence[Report], turn: Turn) -> None:
        good = [report for report in reports if not report.fault]
        if len(good) >= min(self.min_uploads, len(reports)):
            return
        bad = [report for report in reports if report.fault]
        faults = "; ".join(f"client {report.client.id}: {report.fault}" for report in bad)
        is_silent = not any(report.seconds for report in bad)
        raise SubflotError(
            f"round {turn.round} has {len(good)} good uploads of {len(reports)}: {faults}",
            hint=SILENT if is_silent else DIVERGED,
        )

    def _measured(
        self, manifest: Manifest, clients: Sequence[Client], crew: Crew
    ) -> Measurement | None:
        """Measure the new global model on all test examples."""
        if not self.server.algorithm.has_global:
            return None
        found = crew.measure_global(manifest, sorted(client.id for client in clients))
        if not found:
            return None
        return Measurement(
            sum(found[client].num_examples for client in sorted(found)),
            sum(found[client].num_correct for client in sorted(found)),
            sum(found[client].loss for client in sorted(found)),
        )


def _files(reports: Sequence[Report], kind: str) -> dict[str, str]:
    return {str(r.client.id): r.files[kind] for r in reports if kind in r.files}


def _place(folder: Path | str | None) -> Path:
    place = Path(tempfile.mkdtemp(prefix="subflot-") if folder is None else folder)
    place.mkdir(parents=True, exist_ok=True)
    return place


def _remove(folder: Path, owner: int) -> None:
    """Remove a temporary folder; a process that was forked from its owner leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
