"""One client's whole part in a round, and how the global model does: what any process can do."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from subflot.algorithms.base import (
    Algorithm,
    Client,
    ClientContext,
    Memory,
    State,
    Turn,
    Upload,
)
from subflot.data.federated import Examples, FederatedData
from subflot.errors import SubflotError
from subflot.simulation.part import Clock, do_part
from subflot.simulation.server import Report, Server
from subflot.simulation.store import Manifest
from subflot.task import Task
from subflot.training import Measurement, measure, recalibrate
from subflot.weights import Weights

CALIBRATION = 2048
"""Training examples, an equal number of every client, that the global model's statistics are
recomputed on."""


class Federation(Server):
    """A server and its clients in one place: it holds everybody's data."""

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        data: FederatedData,
        folder: Path,
        merging: str = "mean",
    ) -> None:
        super().__init__(algorithm, task, folder, merging)
        self.data = data

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
        clock = Clock()
        with clock.phase("extract"):
            download = self.offer(client, turn)
        memory = self.store.memory(self.before(turn.round)[0], client.id)
        context = context_of(self.data, client, memory, turn)
        answer = do_part(
            self.algorithm, self.task, download, context, self.data.test(client.id), is_measured
        )
        report = self.accept(client, turn, download, answer)
        return replace(report, seconds={**clock.seconds, **report.seconds})

    def measure_global(self, manifest: Manifest, clients: Iterable[int]) -> dict[int, Measurement]:
        """Measure the global model that a round wrote on the test examples of some clients."""
        weights = self.store.state(manifest).weights
        tests = {client: self.data.test(client) for client in clients}
        return measure_on(self.task, weights, calibration_of(self.data), tests)

    def model(self, manifest: Manifest, client: Client | None, turn: Turn) -> nn.Module:
        """Build the model that a client has after a round; with None the global one.

        It is the model as the client last trained it, where the method keeps it, and otherwise what
        the server would send. Norm statistics are recomputed on training examples: the client's own
        or, for the global model, some of everybody's.

        Args:
            manifest: of the round.
            client: whose model.
            turn: the round after it.
        """
        state = self.store.state(manifest)
        if client is None:
            if not self.algorithm.has_global:
                raise SubflotError(
                    f"{self.algorithm.name} has no global model", hint="name a client"
                )
            weights, examples = state.weights, calibration_of(self.data)
        else:
            context = context_of(self.data, client, self.store.memory(manifest, client.id), turn)
            weights, examples = self._last(state, context), context.examples
        model = self.task.build(weights)
        recalibrate(self.task, model, examples.inputs)
        return model.eval()

    def _last(self, state: State, context: ClientContext) -> Weights:
        client, last = context.client, state.history.get(context.client.id, {})
        if last or context.memory:
            upload = Upload(last, len(context.examples))
            weights = self.algorithm.trained(self.task, upload, context)
            if weights:
                return weights
        download = self.algorithm.download(self.task, state, client, context.turn)
        return self.algorithm.extracted(self.task, download, context) or {}


def context_of(data: FederatedData, client: Client, memory: Memory, turn: Turn) -> ClientContext:
    """Return what a client holds in a round."""
    validation = data.validation(client.id)
    return ClientContext(
        client, data.train(client.id), memory, turn, validation if len(validation) else None
    )


def calibration_of(data: FederatedData) -> Examples:
    """Some training examples of every client, the same each time."""
    each = max(1, CALIBRATION // data.num_clients)
    chosen = [shares.train[:: max(1, len(shares.train) // each)] for shares in data.shares]
    some = torch.cat([torch.from_numpy(index[:each].copy()) for index in chosen])
    return Examples(*data.dataset.tensors(some))


def measure_on(
    task: Task, weights: Weights, calibration: Examples, tests: Mapping[int, Examples]
) -> dict[int, Measurement]:
    """Measure a full model on the test examples of clients that have some."""
    with task.lend(weights) as model:
        recalibrate(task, model, calibration.inputs)
        return {
            client: measure(task, model, examples)
            for client, examples in tests.items()
            if len(examples)
        }
