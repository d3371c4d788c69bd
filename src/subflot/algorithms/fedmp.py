"""FedMP: every client trains the strongest channels, and the server fills up what was pruned.

Paper: "FedMP: Federated Learning through Adaptive Model Pruning in Heterogeneous Edge Computing",
ICDE 2022, doi:10.1109/ICDE53745.2022.00062.

The server prunes the global model for each client by the l1 norm of its filters and keeps what it
removed. It adds that back to what the client returns before it takes the mean over all (R2SP), so
pruned weights are never lost and a channel may come back.

Where this departs from the paper: rates are given, so the bandit that chooses them (E-UCB) is left
out; where several layers make the channels of a residual sum their norms are added; channels
are removed whole, with their biases and norms; uploads count by their examples, not alike.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from subflot.algorithms.averaging import residual_recovery
from subflot.algorithms.base import Arrival, Client, State, Turn
from subflot.algorithms.cut import CutFedAvg
from subflot.channels import Channels
from subflot.channels.keep import largest
from subflot.task import Task


@dataclass(frozen=True)
class FedMP(CutFedAvg):
    """Submodels of the largest filters, averaged over all clients after residual recovery.

    Attributes:
        scale: whether layers keep their scale on the client when their inputs are cut.
    """

    name: ClassVar[str] = "fedmp"
    paper: ClassVar[str] = "ICDE 2022"
    remark: ClassVar[str] = "with assigned rates"

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        return largest(task.channels, client.pruning_rate, state.weights)

    def aggregate(self, task: Task, state: State, arrivals: Iterable[Arrival], turn: Turn) -> State:
        return State(residual_recovery(state.weights, task.channels, arrivals), state.extras)
