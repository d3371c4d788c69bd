"""FedBN: everything is averaged but the norms.

Paper: "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021,
arXiv:2102.07623.

Where the clients' inputs differ in style, a norm of one's own brings them to the same terms. Each
client keeps its norm layers to itself, scales, offsets and statistics, and all else is averaged.

Where this departs from the paper: uploads count by their examples, where the authors count clients
alike. Norms of every kind stay, not batch norms alone: torch's own and modules whose class is
called a norm. Statistics are recomputed on the client's examples before a model is tested, for all
methods here, so what sets this one apart are scales and offsets. Within budgets (`fedbn-sub`) a
client holds the first channels, and each entry is averaged over its owners.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from subflot.algorithms.partly import PartlyShared
from subflot.channels.resize import state_of
from subflot.task import Task

KINDS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
"""Torch's norms that hold tensors; the first stands for batch and instance norms."""
NAMED = re.compile(r"Norm(\dd)?$")
"""Names of classes that others write, such as `LlamaRMSNorm` or `FrozenBatchNorm2d`."""


@dataclass(frozen=True)
class FedBN(PartlyShared):
    """Federated averaging with norm layers of one's own."""

    name: ClassVar[str] = "fedbn"
    paper: ClassVar[str] = "ICLR 2021, arXiv:2102.07623"

    def private(self, task: Task) -> frozenset[str]:
        return norm_tensors(task.template)


@dataclass(frozen=True)
class FedBNSub(FedBN):
    """FedBN on submodels of the first channels."""

    name: ClassVar[str] = "fedbn-sub"
    ignores_budgets: ClassVar[bool] = False


def norm_tensors(model: nn.Module) -> frozenset[str]:
    """Name the parameters and statistics that norm layers of a model hold themselves.

    Example:
        >>> sorted(norm_tensors(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))))
        ['1.bias', '1.weight']
    """
    norms = {
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, KINDS) or NAMED.search(type(module).__name__)
    }
    return frozenset(name for name in state_of(model) if name.rpartition(".")[0] in norms)
