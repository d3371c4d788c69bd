"""Whether a task, its data and the clients fit each other, looked at before anything is run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from subflot.algorithms.base import Client
from subflot.data.federated import FederatedData
from subflot.errors import SubflotError
from subflot.simulation.roster import Everyone, Roster
from subflot.task import Task
from subflot.training.local import seeded


def check_fit(
    task: Task, data: FederatedData, clients: Sequence[Client] | Roster, per_round: int | None
) -> None:
    """Refuse what would fail in the middle of a round, or leave examples out unseen.

    Args:
        task: as the user made it.
        data: what each client holds.
        clients: who there is.
        per_round: clients that take part in a round; None: all.
    """
    _check_model(task, data)
    if isinstance(clients, Everyone) and clients.num_clients < data.num_clients:
        raise SubflotError(
            f"the data is divided among {data.num_clients} clients, and rates are given for "
            f"{clients.num_clients}",
            hint=f"give rates for {data.num_clients}, or divide the data among fewer",
        )
    if per_round is not None and per_round > data.num_clients:
        raise SubflotError(
            f"per_round is {per_round}", hint=f"there are {data.num_clients} clients"
        )


def _check_model(task: Task, data: FederatedData) -> None:
    """Call the model once; it must take the inputs and have an output for every class."""
    dataset, num_classes = data.dataset, len(data.dataset.classes)
    count = min(2, len(dataset))
    inputs = dataset.tensors(range(count))[0].to(task.device)
    name = type(task.template).__name__
    try:
        with torch.no_grad(), seeded(0, task.device), task.lend(task.initial) as model:
            outputs = model.eval()(inputs)
    except (RuntimeError, IndexError, ValueError) as error:
        raise SubflotError(
            f"{name} cannot take inputs of shape {tuple(inputs.shape[1:])} from data set "
            f"`{dataset.name}`: {error}"
        ) from None
    is_fit = isinstance(outputs, Tensor) and outputs.dim() == 2 and len(outputs) == count
    if not is_fit or outputs.shape[1] < num_classes:
        shown = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise SubflotError(
            f"{name} returns {shown} for {count} examples",
            hint=f"data set `{dataset.name}` has {num_classes} classes: return one number for each",
        )
