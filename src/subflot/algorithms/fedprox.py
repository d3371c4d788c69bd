"""FedProx: FedAvg with a pull to the global model.

Paper: "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv:1812.06127.

Each client adds `proximal_weight / 2 * |w - w_start|^2` to its loss, so that uneven data draw the
clients less far apart. The paper's partial work of stragglers is left out: every client here
trains the same number of epochs, as for all methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from subflot.algorithms.base import ClientContext, Download
from subflot.algorithms.fedavg import FedAvg
from subflot.task import Task


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term.

    Attributes:
        proximal_weight: mu; 0 is FedAvg.
    """

    name: ClassVar[str] = "fedprox"
    paper: ClassVar[str] = "MLSys 2020, arXiv:1812.06127"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"proximal_weight": (0.01, 0.1, 1.0)}
    proximal_weight: float = 0.01

    def pull(self, task: Task, download: Download, context: ClientContext) -> float:
        return self.proximal_weight
