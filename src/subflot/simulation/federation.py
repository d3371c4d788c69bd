"""One client's part in a round, and how the global model does: the work that any process can do."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from subflot.algorithms.base import Algorithm, Arrival, Client, ClientContext, State, Turn, Upload
from subflot.algorithms.check import fault_of
from subflot.channels import Channels
from subflot.data.federated import Examples, FederatedData
from subflot.errors import SubflotError
from subflot.simulation.store import Manifest, Store, flattened, joined
from subflot.task import Task
from subflot.training import Measurement, measure, recalibrate
from subflot.weights import Weights, num_bytes, read_weights, write_weights

CALIBRATION = 2048
"""Training examples, an equal number of every client, that the global model's statistics are
recomputed on."""


@dataclass(frozen=True)
class Report:
    """What is known of one client's part in a round."""

    client: Client
    num_examples: int
    trained: Measurement | None
    extracted: Measurement | None
    parameters: float
    multiply_adds: float
    bytes_down: int
    bytes_up: int
    metrics: Mapping[str, float]
    seconds: Mapping[str, float]
    files: Mapping[str, str] = field(default_factory=dict)
    """`history`, `memory`: what was written for the next round."""
    fault: str = ""
    """Why the upload was not merged; nothing if it was."""


class Federation:
    """A method, a task and the clients' data, on the folder of a run."""

    def __init__(self, algorithm: Algorithm, task: Task, data: FederatedData, folder: Path) -> None:
        self.algorithm, self.task, self.data = algorithm, task, data
        self.store = Store(folder)
        self._before: tuple[int, Manifest, State] | None = None

    def before(self, round: int) -> tuple[Manifest, State]:
        """Return what stood before a round; it is read once for all clients of the round."""
        if self._before is None or self._before[0] != round:
            manifest = self.store.manifest()
            if manifest is None or manifest.round != round - 1:
                raise SubflotError(f"round {round} has no round before it in {self.store.folder}")
            self._before = (round, manifest, self.store.state(manifest))
        return self._before[1:]

    @torch.enable_grad()  # Where it runs, gradients may be off.
    def take_part(self, client: Client, turn: Turn, is_measured: bool) -> Report:
        """Let a client take part in a round; its upload waits in the store."""
        try:
            return self._take_part(client, turn, is_measured)
        except SubflotError as error:
            message = str(error).partition("\n  hint: ")[0]
            raise SubflotError(
                f"{message}\n  while client {client.id} (pruning_rate={client.pruning_rate:g}) "
                f"took part in round {turn.round} of {self.algorithm.name}",
                hint=error.hint,
            ) from error

    def _take_part(self, client: Client, turn: Turn, is_measured: bool) -> Report:
        algorithm, task, clock = self.algorithm, self.task, _Clock()
        manifest, state = self.before(turn.round)
        validation = self.data.validation(client.id)
        context = ClientContext(
            client,
            self.data.train(client.id),
            self.store.memory(manifest, client.id),
            turn,
            validation if len(validation) else None,
        )
        with clock.phase("extract"):
            download = algorithm.download(task, state, client, turn)
        with clock.phase("evaluate"):
            weights = algorithm.extracted(task, download, context) if is_measured else None
            extracted = self._measured(weights, context)
        with clock.phase("train"):
            upload, memory = algorithm.train(task, download, context)
        after = replace(context, memory=memory)
        with clock.phase("evaluate"):
            own = algorithm.trained(task, upload, after)
            trained = self._measured(own, after) if is_measured else None
            cost = task.cost(own)
        fault, files, metrics = fault_of(task, download, upload), {}, upload.metrics
        if not fault:
            with clock.phase("align"):
                placed = algorithm.place(task, state, client, upload, turn)
                metrics = placed.metrics
            with clock.phase("store"):
                self._send(client, placed)
                if algorithm.keeps_history:
                    files["history"] = self.store.keep(
                        "history", client.id, turn.round, upload.weights
                    )
                if memory:
                    files["memory"] = self.store.keep("memory", client.id, turn.round, memory)
        return Report(
            client,
            upload.num_examples,
            trained,
            extracted,
            cost.parameters,
            cost.multiply_adds,
            download.num_bytes,
            upload.num_bytes + _bytes_of_choice(download.kept, upload.kept),
            {**download.metrics, **metrics},
            clock.seconds,
            files,
            fault,
        )

    def _measured(self, weights: Weights | None, context: ClientContext) -> Measurement | None:
        """Measure a client's model on its own test examples, if it has both."""
        examples = self.data.test(context.client.id)
        if weights is None or not len(examples):
            return None
        with self.task.lend(weights) as model:
            recalibrate(self.task, model, context.examples.inputs)
            return measure(self.task, model, examples)

    def _send(self, client: Client, upload: Upload) -> None:
        parts = {"weights": upload.weights, "kept": upload.kept, "extras": upload.extras}
        flat = flattened(parts)
        write_weights(self.store.arriving(client.id), flat, is_lasting=False)

    def arrivals(self, reports: Iterable[Report]) -> Iterator[Arrival]:
        """Read uploads one by one as they are ready; each file is gone when the next is asked."""
        for report in reports:
            if report.fault:
                continue
            path = self.store.arriving(report.client.id)
            parts = joined(read_weights(path))
            path.unlink()
            upload = Upload(
                parts.get("weights", {}),
                report.num_examples,
                parts.get("kept", {}),
                parts.get("extras", {}),
                report.metrics,
            )
            yield Arrival(report.client, upload)

    def measure_global(self, manifest: Manifest, clients: Iterable[int]) -> dict[int, Measurement]:
        """Measure the global model that a round wrote on the test examples of some clients."""
        with self.task.lend(self.store.state(manifest).weights) as model:
            recalibrate(self.task, model, self._calibration().inputs)
            tests = {client: self.data.test(client) for client in clients}
            return {
                client: measure(self.task, model, examples)
                for client, examples in tests.items()
                if len(examples)
            }

    def _calibration(self) -> Examples:
        """Some training examples of every client, the same each time."""
        each = max(1, CALIBRATION // self.data.num_clients)
        chosen = [shares.train[:: max(1, len(shares.train) // each)] for shares in self.data.shares]
        some = torch.cat([torch.from_numpy(index[:each].copy()) for index in chosen])
        return Examples(*self.data.dataset.tensors(some))


def _bytes_of_choice(sent: Channels, kept: Channels) -> int:
    """Count the indices that a client must send because it chose the channels itself."""
    is_told = sent.keys() == kept.keys() and all(torch.equal(sent[s], kept[s]) for s in kept)
    return 0 if is_told else num_bytes(kept)


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
