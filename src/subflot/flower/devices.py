"""The clients' parts of a round, done by whatever answers on a Flower grid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from subflot.algorithms.base import Client, Download, Turn
from subflot.errors import SubflotError
from subflot.flower.decode import (
    LONGEST_FAULT,
    NO_ANSWER,
    Refused,
    content_of,
    read_answer,
    read_measurement,
)
from subflot.flower.exchange import exchange
from subflot.flower.members import Members
from subflot.flower.privacy import fault_of_change
from subflot.flower.records import Invitation, invitation_records, weights_records
from subflot.flower.settings import FlowerSettings
from subflot.simulation.server import Report, Server
from subflot.simulation.store import Manifest, file_of, round_of
from subflot.texts import clean
from subflot.training import Measurement
from subflot.weights import num_bytes


@dataclass(frozen=True)
class Devices:
    """A crew of Flower nodes. What they send is checked before anything else is done with it."""

    server: Server
    grid: Grid
    members: Members
    settings: FlowerSettings

    def take_part(
        self, invited: Sequence[Client], turn: Turn, is_measured: bool
    ) -> Iterator[Report]:
        """Invite clients; report in their order, at the latest when the deadline is over."""
        sent: dict[int, Download] = {}
        done: dict[int, Report] = {}
        replies = exchange(
            self.grid, self._messages(invited, turn, is_measured, sent), self.settings.round_timeout
        )
        clients = {client.id: client for client in invited}
        for client in invited:
            while client.id not in done:
                key, reply = next(replies, (None, None))
                if key is None or reply is None:
                    break
                done[key] = self._report(clients[key], turn, sent[key], reply)
            yield done.get(client.id) or self._left_out(client, sent[client.id], NO_ANSWER)

    def _messages(
        self, invited: Sequence[Client], turn: Turn, is_measured: bool, sent: dict[int, Download]
    ) -> Iterator[tuple[int, Message]]:
        """Make the messages one by one; of what is sent, only shapes are kept.

        Where changes are clipped, the values are kept too: what comes is measured against them.
        """
        manifest, _ = self.server.before(turn.round)
        clipping = self.settings.clipping_norm if self.settings.privacy == "clipping" else None
        for client in invited:
            download = self.server.offer(client, turn)
            file = manifest.memory.get(str(client.id))
            invitation = Invitation(
                self.members.run, client, turn, round_of(file) if file else 0, is_measured
            )
            records = invitation_records(invitation, download, clipping)
            shapes = download.weights
            if not self.settings.privacy:
                shapes = {name: tensor.to("meta") for name, tensor in shapes.items()}
            extras = {name: tensor.to("meta") for name, tensor in download.extras.items()}
            sent[client.id] = replace(download, weights=shapes, extras=extras)
            yield client.id, self._message(records, client.id, MessageType.TRAIN, turn.round)

    def _message(self, records: RecordDict, client: int, kind: str, round: int) -> Message:
        return Message(
            records,
            self.members.node(client),
            kind,
            ttl=self.settings.round_timeout,
            group_id=str(round),
        )

    def _report(
        self, client: Client, turn: Turn, sent: Download, reply: Message | Refused
    ) -> Report:
        """Say what became of a reply."""
        server = self.server
        try:
            content = content_of(reply)
            answer, is_remembering = read_answer(content, sent, num_bytes(server.task.initial))
        except Refused as refused:
            return self._left_out(client, sent, str(refused), reply)
        tests = [one.num_examples for one in (answer.trained, answer.extracted) if one]
        if fault := self.members.fault_of_counts(client.id, answer.upload.num_examples, tests):
            return self._left_out(client, sent, fault, reply)
        if self.settings.privacy:
            fault = fault_of_change(
                sent, answer.upload, self.settings.clipping_norm, self.settings.deviation
            )
            if fault:
                return self._left_out(client, sent, fault, reply)
        try:
            report = server.accept(client, turn, sent, answer)
        except (SubflotError, RuntimeError, ValueError, KeyError, IndexError) as error:
            # It passed the checks, and yet a step of the method cannot make sense of it.
            return self._left_out(client, sent, f"{type(error).__name__}: {error}", reply)
        if report.fault:
            return replace(report, fault=clean(report.fault, LONGEST_FAULT))
        if not is_remembering:
            return report
        files = {**report.files, "memory": file_of("memory", client.id, turn.round)}
        return replace(report, files=files)

    def _left_out(
        self, client: Client, sent: Download, fault: str, reply: Message | Refused | None = None
    ) -> Report:
        """Report on a client of which nothing is used."""
        came = 0
        if isinstance(reply, Message) and reply.has_content():
            arrays = reply.content.array_records.values()
            came = sum(len(array.data) for record in arrays for array in record.values())
        # What was sent costs what any weights of its shapes cost.
        shapes = {n: torch.zeros(t.shape, dtype=t.dtype) for n, t in sent.weights.items()}
        cost = self.server.task.cost(shapes) if shapes else None
        return Report(
            client,
            0,
            None,
            None,
            cost.parameters if cost else 0.0,
            cost.multiply_adds if cost else 0.0,
            sent.num_bytes,
            came,
            dict(sent.metrics),
            {},
            fault=clean(fault.partition("\n  hint: ")[0], LONGEST_FAULT),
        )

    def measure_global(self, manifest: Manifest, clients: Sequence[int]) -> dict[int, Measurement]:
        """Ask every client how the new global model does on its own test examples."""
        if not self.settings.measure_global:
            return {}
        weights = self.server.store.state(manifest).weights
        messages = (
            (
                client,
                self._message(
                    weights_records(weights, {}), client, MessageType.EVALUATE, manifest.round
                ),
            )
            for client in clients
        )
        found: dict[int, Measurement] = {}
        for client, reply in exchange(self.grid, messages, self.settings.round_timeout):
            try:
                one = read_measurement(content_of(reply))
            except Refused:
                continue
            if one and not self.members.fault_of_counts(client, 0, [one.num_examples]):
                found[client] = one
        return found

    def close(self) -> None:
        """Nothing is held."""
