"""FedMA: channels are matched before they are averaged.

Paper: "Federated Learning with Matched Averaging", ICLR 2020, arXiv:2002.06440. "Model Fusion via
Optimal Transport", NeurIPS 2020, arXiv:1910.05653, has the same idea; between models of one width
its exact plans are one to one too.

The channels of a layer can be permuted without changing what a network computes, so channels of
one number need not belong together. Layer by layer, each channel of an upload is matched to one of
the global model by what it computes from channels that are matched already, and is averaged there
over the clients that have one.

Where this departs from the paper: all layers are matched in one round, where it takes a round for
each layer and trains the layers above anew. Uploads are matched to the global model that they
started from, by the distance of their weights, where the paper infers global channels from a
Bayesian nonparametric model; so the global model does not grow. Uploads count by their examples.
Behind a residual sum all branches are matched together. Clients receive the first channels of the
global model, as many as their budgets leave.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from subflot.algorithms.base import Client, State, Turn, Upload
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.subflot import matched
from subflot.channels import Channels
from subflot.channels.keep import prefix
from subflot.task import Task
from subflot.transport import align


@dataclass(frozen=True)
class FedMA(FedAvg):
    """Nested submodels, averaged over the owners of the channels that they match."""

    name: ClassVar[str] = "fedma"
    paper: ClassVar[str] = "ICLR 2020, arXiv:2002.06440"
    needs_transport: ClassVar[bool] = True
    ignores_budgets: ClassVar[bool] = False

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        return prefix(task.channels, client.pruning_rate)

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        found = align(
            upload.weights, state.weights, task.channels, plan="partial", residual="joint"
        )
        kept = matched(task, upload.weights, found)
        moved = {
            f"moved/{layer}": plan.share_moved()
            for plans in found.plans.values()
            for (layer, _), plan in plans.items()
        }
        return replace(upload, kept=kept, metrics={**upload.metrics, **moved})
