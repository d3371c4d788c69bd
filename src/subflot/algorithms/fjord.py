"""FjORD: a client trains its submodel and the narrower ones inside it, a width drawn per batch.

Paper: "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered
Dropout", NeurIPS 2021, arXiv:2102.13451.

A submodel is the first channels of every layer. For each batch a client draws one of the widths up
to its own and trains that part of its model, so the first channels learn to do without the others
(ordered dropout). With distillation its widest model learns on every batch too, and the narrower
one learns the widest one's answers. Each entry is averaged over the clients that own it.

Where this departs from the paper: uploads count by their examples, as in the authors' code. Widths
lie evenly between 0 and 1, four by default as the usual pruning rates are, and a client's own is
always one of them. The authors hold norm statistics for each width; here a narrower pass leaves
none, because they are recomputed before a model is tested. Distillation is off by default, for it
takes two passes a batch where other methods take one; its alpha and temperature are 1, as in the
authors' code, so the narrower model learns the answers of the widest alone and not the labels.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.widths import Sizes, narrowed
from subflot.channels import ChannelMap, Channels
from subflot.channels.keep import prefix
from subflot.channels.resize import state_of
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import Objective


@dataclass(frozen=True)
class FjORD(FedAvg):
    """Ordered dropout.

    Attributes:
        widths: how many there are: 4 for a quarter, half, three quarters and the whole; a client
            draws from those below its own width, and from its own. 1 is HeteroFL.
        distillation: whether a client's widest model trains on every batch and teaches the
            narrower one.
    """

    name: ClassVar[str] = "fjord"
    paper: ClassVar[str] = "NeurIPS 2021, arXiv:2102.13451"
    ignores_budgets: ClassVar[bool] = False

    widths: int = 4
    distillation: bool = False

    def __post_init__(self) -> None:
        if self.widths < 1:
            raise SubflotError(f"widths is {self.widths}", hint="at least 1")

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        return prefix(task.channels, client.pruning_rate)

    def narrower(self, channels: ChannelMap, pruning_rate: float) -> list[Sizes]:
        """List the submodels that lie inside a client's own, without it, the narrowest first."""
        own = channels.kept_sizes(pruning_rate)
        shares = (step / self.widths for step in range(1, self.widths))
        inside: list[Sizes] = []
        for share in shares:
            sizes = channels.kept_sizes(1 - share)
            # Few channels round to the same numbers at several widths.
            if share < 1 - pruning_rate and sizes != own and sizes not in inside:
                inside.append(sizes)
        return inside

    def objective(self, task: Task, download: Download, context: ClientContext) -> Objective:
        inside = self.narrower(task.channels, context.client.pruning_rate)
        channels = task.channels.resized(task.channels.sizes_of(download.weights))
        draw = context.generator("width")

        def ordered_dropout(model: nn.Module, batch: Examples) -> Tensor:
            drawn = int(torch.randint(len(inside) + 1, (), generator=draw))
            if drawn == len(inside):
                return task.loss(model(batch.inputs), batch.labels)
            if not self.distillation:
                narrow = run_narrow(task, model, channels, inside[drawn], batch.inputs)
                return task.loss(narrow, batch.labels)
            logits = model(batch.inputs)
            narrow = run_narrow(task, model, channels, inside[drawn], batch.inputs)
            wanted = logits.detach().log_softmax(1)
            learned = F.kl_div(
                narrow.log_softmax(1), wanted, reduction="batchmean", log_target=True
            )
            return task.loss(logits, batch.labels) + learned

        return ordered_dropout


def run_narrow(
    task: Task, model: nn.Module, channels: ChannelMap, sizes: Sizes, inputs: Tensor
) -> Tensor:
    """Return what the first channels of a model say in training; gradients reach its parameters.

    Args:
        task: whose model it is.
        model: of any width; its norm statistics are not changed.
        channels: the map of that width.
        sizes: the channels that are left in every prunable space.
        inputs: a batch.
    """
    part = narrowed(state_of(model), channels, sizes)
    used = {n: t if n in task.parameters else t.detach().clone() for n, t in part.items()}
    with task.lend({name: tensor.detach() for name, tensor in part.items()}) as module:
        module.train()
        logits: Tensor = functional_call(module, used, (inputs,))
    return logits
