"""The loop over rounds. It exists once."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from subflot.algorithms.base import Algorithm, Client, State, Turn, in_order
from subflot.data.federated import FederatedData
from subflot.errors import SubflotError
from subflot.results import METRICS, TIMING
from subflot.simulation.federation import Federation, Report
from subflot.simulation.record import metrics_line, timing_line
from subflot.simulation.roster import Roster
from subflot.simulation.store import Manifest, Store
from subflot.simulation.workers import Workers, default_workers
from subflot.task import Task
from subflot.training import Measurement


@dataclass(frozen=True)
class Round:
    """A round that is over, and saved."""

    round: int
    metrics: dict[str, Any]
    """What `metrics.jsonl` says of it."""
    seconds: float
    manifest: Manifest
    store: Store

    @property
    def state(self) -> State:
        """The server's state after the round, read from the folder of the run."""
        return self.store.state(self.manifest)


def simulate(
    algorithm: Algorithm,
    task: Task,
    data: FederatedData,
    clients: Sequence[Client] | Roster,
    *,
    rounds: int,
    per_round: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    workers: int | None = None,
    evaluate_every: int = 1,
    min_uploads: int = 1,
) -> Iterator[Round]:
    """Run rounds, and yield each one when it is saved.

    Started again on the same folder it goes on after the last round that was saved, to the same
    bits. Results do not depend on the number of workers.

    Args:
        algorithm: the method.
        task: the model and how it is trained.
        data: what each client holds.
        clients: who there is, or a function that says so for every round.
        rounds: T.
        per_round: clients that take part in a round; None: all.
        seed: fixes everything that is drawn.
        folder: where the run is kept; None: in a temporary folder, which is removed at the end.
        workers: processes, of one thread each; None: one per core.
        evaluate_every: models are measured in every round that this divides, and in the last.
        min_uploads: a round with fewer good uploads is an error.
    """
    for name, value in (("rounds", rounds), ("per_round", per_round), ("workers", workers)):
        if value is not None and value < 1:
            raise SubflotError(f"{name} is {value}", hint="at least 1")
    with _in_folder(folder) as place, _one_thread():
        federation = Federation(algorithm, algorithm.prepare(task), data, place)
        roster = clients if callable(clients) else (lambda _: clients)
        loop = _Loop(federation, roster, rounds, per_round, seed, evaluate_every, min_uploads)
        now = loop.begin()
        if now.round >= rounds:
            return
        pool = Workers(federation, workers or default_workers(task.device))
        try:
            while now.round < rounds:
                done = loop.next(now, pool)
                now = done.manifest
                yield done
        finally:
            pool.close()


@dataclass(frozen=True)
class _Loop:
    """What stays the same from round to round."""

    federation: Federation
    roster: Roster
    rounds: int
    per_round: int | None
    seed: int
    evaluate_every: int
    min_uploads: int

    def begin(self) -> Manifest:
        """Return the last round that was saved; round 0 is the start."""
        store = self.federation.store
        now = store.open()
        if now is None:
            turn = Turn(0, self.rounds, self.seed)
            now = Manifest(0)
            store.write(now, self.federation.algorithm.start(self._task, self.clients(1), turn))
            now = store.commit(now, {})
        return now

    @property
    def _task(self) -> Task:
        return self.federation.task

    def clients(self, round: int) -> Sequence[Client]:
        """Return who there is in a round."""
        found = self.roster(round)
        ids = [client.id for client in found]
        known = self.federation.data.num_clients
        if not ids or len(set(ids)) != len(ids) or not 0 <= min(ids) <= max(ids) < known:
            raise SubflotError(
                f"the clients of round {round} are {ids[:10]}",
                hint=f"give each once; the data knows those from 0 to {known - 1}",
            )
        return found

    def next(self, now: Manifest, pool: Workers) -> Round:
        """Run one round and save it."""
        start = time.perf_counter()
        federation, store = self.federation, self.federation.store
        turn = Turn(now.round + 1, self.rounds, self.seed)
        is_measured = turn.round % self.evaluate_every == 0 or turn.round == self.rounds
        clients, state = self.clients(turn.round), store.state(now)
        count = len(clients) if self.per_round is None else min(self.per_round, len(clients))
        invited = in_order(federation.algorithm.invite(self._task, state, clients, count, turn))
        promises = [pool.submit(Federation.take_part, c, turn, is_measured) for c in invited]
        reports: list[Report] = []

        def ready() -> Iterator[Report]:
            for promise in promises:
                reports.append(promise.result())
                yield reports[-1]

        arrivals = federation.arrivals(ready())
        after = federation.algorithm.aggregate(self._task, state, arrivals, turn)
        for _ in arrivals:  # A method may have looked at none.
            pass
        self._check(reports, turn)
        manifest = Manifest(
            turn.round,
            {**now.history, **_files(reports, "history")},
            {**now.memory, **_files(reports, "memory")},
        )
        store.write(manifest, after)
        measured = self._measured(manifest, clients, pool) if is_measured else None
        metrics = metrics_line(turn.round, reports, measured)
        seconds = time.perf_counter() - start
        lines = {METRICS: metrics, TIMING: timing_line(turn.round, reports, seconds)}
        return Round(turn.round, metrics, seconds, store.commit(manifest, lines), store)

    def _check(self, reports: Sequence[Report], turn: Turn) -> None:
        good = [report for report in reports if not report.fault]
        if len(good) < min(self.min_uploads, len(reports)):
            faults = "; ".join(f"client {r.client.id}: {r.fault}" for r in reports if r.fault)
            raise SubflotError(
                f"round {turn.round} has {len(good)} good uploads of {len(reports)}: {faults}",
                hint="training may have diverged; a lower learning_rate or max_norm=1 often helps",
            )

    def _measured(
        self, manifest: Manifest, clients: Sequence[Client], pool: Workers
    ) -> Measurement | None:
        """Measure the new global model on all test examples, each worker a part of them."""
        if not self.federation.algorithm.has_global:
            return None
        ids = sorted(client.id for client in clients)
        parts = [ids[start :: pool.num_workers] for start in range(pool.num_workers)]
        promises = [
            pool.submit(Federation.measure_global, manifest, part) for part in parts if part
        ]
        found = {client: one for promise in promises for client, one in promise.result().items()}
        if not found:
            return None
        return Measurement(
            sum(found[client].num_examples for client in sorted(found)),
            sum(found[client].num_correct for client in sorted(found)),
            sum(found[client].loss for client in sorted(found)),
        )


def _files(reports: Sequence[Report], kind: str) -> dict[str, str]:
    return {str(r.client.id): r.files[kind] for r in reports if kind in r.files}


@contextmanager
def _in_folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="subflot-") as name:
        yield Path(name)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the workers do: sums then have one order everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
