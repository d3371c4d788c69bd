"""Who does the clients' parts of a round: processes on this machine, or devices elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from subflot.algorithms.base import Client, Turn
from subflot.simulation.server import Report
from subflot.simulation.store import Manifest
from subflot.training import Measurement


class Crew(Protocol):
    """What the loop over rounds asks for."""

    def take_part(
        self, invited: Sequence[Client], turn: Turn, is_measured: bool
    ) -> Iterable[Report]:
        """Let clients take part; report in the order of the invitations, as each is ready.

        The uploads of reports without a fault wait in the store.
        """

    def measure_global(
        self, manifest: Manifest, clients: Sequence[int]
    ) -> Mapping[int, Measurement]:
        """Measure the model that a round wrote on the test examples of those clients that can."""

    def close(self) -> None:
        """Let go of what was held for the rounds."""
