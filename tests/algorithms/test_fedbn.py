"""FedBN: norms are found in any model, stay on the client, and follow it to another width."""

from dataclasses import replace
from pathlib import Path

import federations
import pytest
import torch
from rounds import CLIENTS, FULL_CLIENTS, linear_task, play, tiny_examples, tiny_task
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn

from subflot.algorithms.base import Client, ClientContext, Memory, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.fedbn import FedBN, FedBNSub, norm_tensors
from subflot.algorithms.heterofl import HeteroFL
from subflot.algorithms.partly import recall, remember
from subflot.channels import take
from subflot.channels.keep import prefix
from subflot.data.federated import Examples
from subflot.simulation import simulate
from subflot.task import Task, weights_of
from subflot.training import train_locally

NORM = {f"norm.{of}" for of in ("weight", "bias", "running_mean", "running_var")} | {
    "norm.num_batches_tracked"
}


class OwnRMSNorm(nn.Module):
    """A norm that is none of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))


class PreNorm(nn.Module):
    """A norm and what comes after it: called a norm, but it holds other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LayerNorm(4)
        self.then = nn.Linear(4, 4)


def context_of(client: Client, memory: Memory, round: int = 1) -> ClientContext:
    return ClientContext(client, tiny_examples(client.id), memory, Turn(round, 5, 0))


@pytest.mark.parametrize(
    ("norm", "tensors"),
    [
        (nn.BatchNorm1d(4), 5),
        (nn.BatchNorm2d(4, affine=False), 3),
        (nn.SyncBatchNorm(4), 5),
        (nn.InstanceNorm2d(4), 0),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), 5),
        (nn.LayerNorm(4), 2),
        (nn.GroupNorm(2, 4), 2),
        (nn.RMSNorm(4), 1),
        (OwnRMSNorm(), 1),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), 0),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_norms_of_every_kind_are_found_and_nothing_else(norm: nn.Module, tensors: int) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Linear(4, 4))
    found = norm_tensors(model)
    assert len(found) == tensors
    assert all(name.startswith("1.") for name in found)


def test_what_a_norm_is_wrapped_with_is_not_one_and_shared_norms_are_found_twice() -> None:
    assert norm_tensors(PreNorm()) == {"first.weight", "first.bias"}
    norm = nn.LayerNorm(4)
    assert len(norm_tensors(nn.ModuleDict({"a": norm, "b": norm}))) == 4


def test_no_norm_crosses_the_wire_or_is_held_by_the_server() -> None:
    task = tiny_task()
    state, parts = play(FedBNSub(), task, CLIENTS)
    rest = task.initial.keys() - NORM
    assert state.weights.keys() == rest
    for part in parts:
        assert part.download.weights.keys() == part.upload.weights.keys() == rest


def test_a_round_is_that_of_a_client_with_its_own_norm_and_the_others_average() -> None:
    task, method = tiny_task(), FedBNSub()
    state = method.start(task, CLIENTS, Turn(0, 5, 0))
    client = CLIENTS[2]
    own = {n: torch.rand_like(t.float()) + 1 for n, t in task.initial.items() if n in NORM}
    own["norm.num_batches_tracked"] = torch.tensor(7)
    own = dict(task.narrow(own, client.pruning_rate))
    context = context_of(client, remember(own, client.pruning_rate))
    download = method.download(task, state, client, context.turn)
    upload, memory = method.train(task, download, context)
    whole = {**task.narrow(task.initial, client.pruning_rate), **own}
    for name, tensor in method.extracted(task, download, context).items():
        torch.testing.assert_close(tensor, whole[name], **EXACT)
    alone = train_locally(task, whole, context.examples, context.generator("batches")).weights
    after = method.trained(task, upload, replace(context, memory=memory))
    assert list(after) == list(task.initial)
    for name, tensor in alone.items():
        torch.testing.assert_close((memory if name in NORM else upload.weights)[name], tensor)
        torch.testing.assert_close(after[name], tensor, **EXACT)


@pytest.mark.parametrize(
    ("own", "plain", "clients"),
    [(FedBN(), FedAvg(), FULL_CLIENTS), (FedBNSub(), HeteroFL(), CLIENTS)],
    ids=["full", "within budgets"],
)
def test_without_norms_it_is_plain_averaging(
    own: FedBN, plain: FedAvg, clients: list[Client]
) -> None:
    task = linear_task(5, 8, 3)
    examples = {
        client.id: Examples(torch.randn(6, 5), torch.randint(3, (6,))) for client in clients
    }
    ours, parts = play(own, task, clients, rounds=2, examples=examples)
    theirs, _ = play(plain, task, clients, rounds=2, examples=examples)
    for name, tensor in theirs.weights.items():
        torch.testing.assert_close(ours.weights[name], tensor, **FLOAT32)
    context = context_of(clients[0], {})
    assert own.train(task, parts[0].download, replace(context, examples=examples[0]))[1] == {}


def widened(task: Task, memory: Memory, rate: float) -> Tensor:
    initial = {"norm.weight": task.initial["norm.weight"]}
    return recall(task, memory, initial, rate)["norm.weight"]


def test_a_client_takes_its_norm_along_when_its_width_changes() -> None:
    task = tiny_task()
    memory = remember({"norm.weight": torch.tensor([5.0, 6.0, 7.0, 8.0])}, 0.5)
    assert widened(task, memory, 0.5).tolist() == [5, 6, 7, 8]
    assert widened(task, memory, 0.75).tolist() == [5, 6]
    assert widened(task, memory, 0.25).tolist() == [5, 6, 7, 8, 1, 1]
    assert widened(task, {}, 0.75).tolist() == [1, 1]


def test_the_model_of_a_client_after_a_run_has_its_own_norm_and_the_shared_rest(
    tmp_path: Path,
) -> None:
    task = federations.tiny_task()
    (done,) = simulate(
        FedBNSub(), task, federations.tiny_data(), CLIENTS, rounds=1, folder=tmp_path, workers=1
    )
    model = weights_of(done.model(3))
    own = done.server.store.memory(done.manifest, 3)
    torch.testing.assert_close(model["norm.weight"], own["norm.weight"], **EXACT)
    assert not torch.equal(own["norm.weight"], torch.ones(1))
    head = take(done.state.weights, task.channels, prefix(task.channels, 0.75))["head.weight"]
    torch.testing.assert_close(model["head.weight"], head, **EXACT)


def test_the_full_form_ignores_budgets() -> None:
    task, method = tiny_task(), FedBN()
    download = method.download(task, State(task.initial), CLIENTS[3], Turn(1, 5, 0))
    context = context_of(CLIENTS[3], {})
    for name, tensor in method.extracted(task, download, context).items():
        assert tensor.shape == task.initial[name].shape
