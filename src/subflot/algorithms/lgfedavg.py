"""LG-FedAvg: representations of one's own under a head that all share.

Paper: "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
2020, arXiv:2001.01523.

The layers near the input stay on the client and learn a representation of its data; the last
layers are averaged, and see the same kind of representation everywhere. Fewer tensors are sent
than with FedAvg.

Where this departs from the authors' code: everybody begins at the initial model, where theirs goes
on from a model that FedAvg trained, and uploads count by their examples, where it counts clients
alike. Devices that never trained are not measured, for which the paper has ensembles of the
clients' models, and its auxiliary and adversarial losses are left out: labels are the only task
here. A model without more layers than are to be shared is shared as a whole. Within budgets
(`lg-fedavg-sub`) a client holds the first channels, and each entry is averaged over its owners.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from subflot.algorithms.partly import PartlyShared
from subflot.channels.resize import state_of
from subflot.errors import SubflotError
from subflot.task import Task


@dataclass(frozen=True)
class LGFedAvg(PartlyShared):
    """Federated averaging of the last layers.

    Attributes:
        shared_layers: how many layers are averaged, counted from the outputs.
    """

    name: ClassVar[str] = "lg-fedavg"
    paper: ClassVar[str] = "2020, arXiv:2001.01523"
    tuned: ClassVar[Mapping[str, tuple[Any, ...]]] = {"shared_layers": (1, 2, 3)}

    shared_layers: int = 2

    def __post_init__(self) -> None:
        if self.shared_layers < 1:
            raise SubflotError(
                f"shared_layers is {self.shared_layers}",
                hint="at least 1; `local` is the method that shares nothing",
            )

    def private(self, task: Task) -> frozenset[str]:
        own = layers(task)[: -self.shared_layers]
        return frozenset(name for layer in own for name in layer)


@dataclass(frozen=True)
class LGFedAvgSub(LGFedAvg):
    """LG-FedAvg on submodels of the first channels."""

    name: ClassVar[str] = "lg-fedavg-sub"
    ignores_budgets: ClassVar[bool] = False


def layers(task: Task) -> list[list[str]]:
    """List the tensors of each layer, in the order in which the model runs them.

    A layer is a module that holds a matrix or kernel, with the norms that follow it. Tensors in
    front of the first one, or of which the map does not say where they come in, count to it. What
    is used twice, such as an embedding that is also the head, counts where it is used last.
    """
    state = state_of(task.template)
    # The first of a tensor's names stands for all of them.
    names = {id(tensor): name for name, tensor in reversed(state.items())}
    modules = {name: names[id(tensor)].rpartition(".")[0] for name, tensor in state.items()}
    seen = [modules[name] for name, _ in task.channels.shares]
    ran = list(dict.fromkeys(reversed(seen)))[::-1]
    found = [[name for name, module in modules.items() if module not in ran]]
    has_matrix = False
    for module in ran:
        own = [name for name, its in modules.items() if its == module]
        is_matrix = any(name in task.parameters and state[name].dim() > 1 for name in own)
        if is_matrix and has_matrix:
            found.append([])
        found[-1] += own
        has_matrix |= is_matrix
    return found
