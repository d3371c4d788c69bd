"""Federated Dropout: every client trains channels drawn at random, anew in every round.

Paper: "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements",
arXiv:1812.07210. Others are called FedDrop too: arXiv:2109.15258, which sets dropout rates by the
state of the wireless channel, and a method that weights dropout by trajectories (see `flado.py`).

A fixed number of channels of every layer is drawn, the client trains the smaller network of them,
and what it returns goes back to their places.

Where this departs from the paper: each client has a pruning rate of its own, where the paper has
one for all, and a draw of its own. A residual sum is one draw. The paper says that updates are
averaged, not over whom: here over the clients that trained an entry, or over all of them
(`merge`). Nothing is rescaled by the width, as in the paper.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from subflot.algorithms.averaging import owner_average, residual_recovery
from subflot.algorithms.base import Arrival, Client, State, Turn
from subflot.algorithms.cut import CutFedAvg
from subflot.channels import Channels
from subflot.channels.keep import random
from subflot.task import Task


@dataclass(frozen=True)
class FedDrop(CutFedAvg):
    """Random submodels. A client has no model of its own to keep: its `extracted` is one draw.

    Attributes:
        merge: an entry is averaged over its `owners`, or over all clients, filled up with the
            global model (`residual`).
        scale: whether layers keep their scale on the client when their inputs are cut.
    """

    name: ClassVar[str] = "feddrop"
    paper: ClassVar[str] = "arXiv:1812.07210"

    merge: Literal["owners", "residual"] = "owners"

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        return random(task.channels, client.pruning_rate, turn.generator("kept", client.id))

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        merge = owner_average if self.merge == "owners" else residual_recovery
        return State(merge(state.weights, task.channels, arrivals), state.extras)
