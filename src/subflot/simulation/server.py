"""The server's part in a round: what a client receives, and what becomes of its answer."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from subflot.algorithms.base import Algorithm, Arrival, Client, Download, State, Turn, Upload
from subflot.algorithms.check import fault_of, largest_value
from subflot.channels import Channels
from subflot.errors import SubflotError
from subflot.seeding import generator
from subflot.simulation.merging import (
    Bound,
    agreed,
    check_merging,
    clipped,
    extent_of,
    fault_among,
    is_odd,
    rms,
    usual,
)
from subflot.simulation.part import Answer, Clock
from subflot.simulation.store import Manifest, Store, flattened, joined
from subflot.task import Task
from subflot.training import Measurement, recalibrate
from subflot.weights import num_bytes, read_weights, write_weights

EXAMPLES = 4
"""Made inputs on which a merged model is tried."""


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
    largest: float = 0.0
    """The largest value in the upload."""
    size: float = 0.0
    """The root mean square of the upload's parameters, as placed."""
    bound: Bound | None = None
    """How much of it counts, where uploads are bounded."""


class Server:
    """A method and a task, on the folder of a run. It sees no client's examples."""

    def __init__(
        self, algorithm: Algorithm, task: Task, folder: Path, merging: str = "mean"
    ) -> None:
        check_merging(merging)
        self.algorithm, self.task, self.merging = algorithm, task, merging
        self.store = Store(folder)
        self._before: tuple[int, Manifest, State] | None = None
        self._largest = 0.0

    def before(self, round: int) -> tuple[Manifest, State]:
        """Return what stood before a round; it is read once for all clients of the round."""
        if self._before is None or self._before[0] != round:
            manifest = self.store.manifest()
            if manifest is None or manifest.round != round - 1:
                raise SubflotError(f"round {round} has no round before it in {self.store.folder}")
            self._before = (round, manifest, self.store.state(manifest))
            self._largest = largest_value(self._before[2].weights)
        return self._before[1:]

    def offer(self, client: Client, turn: Turn) -> Download:
        """Return what a client receives in a round."""
        _, state = self.before(turn.round)
        return self.algorithm.download(self.task, state, client, turn)

    def accept(self, client: Client, turn: Turn, download: Download, answer: Answer) -> Report:
        """Check an answer and place its upload, which then waits in the store.

        Of the download, only the shapes of its weights are looked at.
        """
        upload, clock = answer.upload, Clock(answer.seconds)
        _, state = self.before(turn.round)
        fault = fault_of(self.task, download, upload, self._largest)
        files, metrics, size = {}, upload.metrics, 0.0
        if not fault:
            with clock.phase("align"):
                placed = self.algorithm.place(self.task, state, client, upload, turn)
                metrics = placed.metrics
                size = rms(placed.weights, self.task.parameters)
            with clock.phase("store"):
                self._send(client, placed)
                if self.algorithm.keeps_history:
                    files["history"] = self.store.keep(
                        "history", client.id, turn.round, upload.weights, placed.kept
                    )
                if answer.memory:
                    files["memory"] = self.store.keep(
                        "memory", client.id, turn.round, answer.memory
                    )
        return Report(
            client,
            upload.num_examples,
            answer.trained,
            answer.extracted,
            answer.parameters,
            answer.multiply_adds,
            download.num_bytes,
            upload.num_bytes + _bytes_of_choice(download.kept, upload.kept),
            {**metrics, **download.metrics},
            clock.seconds,
            files,
            fault,
            largest_value(upload.weights),
            size,
        )

    def judged(self, state: State, reports: Iterable[Report]) -> list[Report]:
        """Compare the uploads of a round: leave out what is far beyond the others, and bound them.

        Args:
            state: before the round.
            reports: on all who took part.
        """
        found = list(reports)
        good = [report for report in found if not report.fault]
        counts = [report.num_examples for report in good]
        size = rms(state.weights or self.task.initial, self.task.parameters)
        odd = {r.client.id for r in good if is_odd(r.size, size, r.num_examples, counts)}
        if self.merging == "mean" and not odd:
            return found  # Nothing can come of measuring changes.
        extents = {
            report.client.id: extent_of(self.task, state, self._arrival(report).upload)
            for report in good
        }
        for at, report in enumerate(found):
            if report.client.id in odd:
                fault = fault_among(extents[report.client.id], list(extents.values()))
                files = {} if fault else report.files
                found[at] = replace(report, fault=fault, files=files)
        kept = [report.client.id for report in found if not report.fault]
        if self.merging == "mean" or not kept:
            return found
        most = usual([extents[client] for client in kept])
        return [
            report if report.fault else replace(report, bound=extents[report.client.id].bound(most))
            for report in found
        ]

    @torch.no_grad()
    def check(self, state: State, reports: Sequence[Report], round: int) -> None:
        """Raise an error if a merged state must not be saved: clients could not go on from it."""
        if not math.isfinite(largest_value({**state.weights, **state.extras})):
            fault = "holds NaN or infinity"
        elif self.algorithm.has_global and self._overflows(state):
            fault = "overflows"
        else:
            return
        good = sorted((r for r in reports if not r.fault), key=lambda r: -r.largest)
        named = ", ".join(f"client {r.client.id} ({r.largest:.3g})" for r in good[:3])
        raise SubflotError(
            f"round {round} is not saved: the merged model {fault}; "
            f"the largest values came from {named or 'nobody'}",
            hint=f"round {round - 1} stands, and the same command goes on after it: leave out a "
            "client whose values stick out; if all are large, training may have diverged, and a "
            "lower learning_rate or max_norm=1 often helps",
        )

    def _overflows(self, state: State) -> bool:
        """Say whether a model gives no finite answers to inputs of ordinary size."""
        example = self.task.example
        inputs = example
        if example.is_floating_point():
            shape = (EXAMPLES, *example.shape[1:])
            inputs = torch.randn(shape, generator=generator(0, "overflow")).to(example)
        with self.task.lend(state.weights) as model:
            recalibrate(self.task, model, inputs)
            return not bool(model.eval()(inputs.to(self.task.device)).isfinite().all())

    def _send(self, client: Client, upload: Upload) -> None:
        parts = {"weights": upload.weights, "kept": upload.kept, "extras": upload.extras}
        flat = flattened(parts)
        write_weights(self.store.arriving(client.id), flat, is_lasting=False)

    def arrivals(self, state: State, reports: Sequence[Report]) -> Iterator[Arrival]:
        """Read a round's uploads as the method shall merge them.

        They come one by one as they are ready; each file is gone when the next is asked for.

        Args:
            state: before the round.
            reports: as judged.
        """
        arrived = ((self._taken(report), report.bound) for report in reports if not report.fault)
        bounded = ((arrival, bound) for arrival, bound in arrived if bound)
        if self.merging == "mean":
            yield from (arrival for arrival, _ in arrived)
        elif self.merging == "clipped":
            yield from (clipped(self.task, state, *one) for one in bounded)
        else:
            yield from agreed(self.merging, self.task, state, list(bounded))

    def _taken(self, report: Report) -> Arrival:
        arrival = self._arrival(report)
        self.store.arriving(report.client.id).unlink()
        return arrival

    def _arrival(self, report: Report) -> Arrival:
        parts = joined(read_weights(self.store.arriving(report.client.id)))
        upload = Upload(
            parts.get("weights", {}),
            report.num_examples,
            parts.get("kept", {}),
            parts.get("extras", {}),
            report.metrics,
        )
        return Arrival(report.client, upload)


def is_told(sent: Channels, kept: Channels) -> bool:
    """Say whether a client kept the channels that the server chose, which it need not send."""
    return sent.keys() == kept.keys() and all(torch.equal(sent[s], kept[s]) for s in kept)


def _bytes_of_choice(sent: Channels, kept: Channels) -> int:
    """Count the indices that a client must send because it chose the channels itself."""
    return 0 if is_told(sent, kept) else num_bytes(kept)
