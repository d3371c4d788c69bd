"""LG-FedAvg: the last layers are found in any model and averaged, the others stay."""

from dataclasses import replace

import pytest
import torch
from rounds import CLIENTS, FULL_CLIENTS, play, tiny_examples, tiny_task
from tolerances import EXACT
from torch import Tensor, nn
from traced import traced

from subflot.algorithms.base import Client, ClientContext, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.heterofl import HeteroFL
from subflot.algorithms.lgfedavg import LGFedAvg, LGFedAvgSub, layers
from subflot.algorithms.partly import remember
from subflot.algorithms.subflot_plus import head_of
from subflot.errors import SubflotError
from subflot.task import Task
from subflot.training import train_locally

HEAD = {"head.weight", "head.bias"}
HIDDEN = {"hidden.weight", "hidden.bias"}
OUTER = {"outer.weight", "outer.bias"}
INNER = {"inner.weight", "inner.bias"}


class Backwards(nn.Module):
    """Layers that run in another order than they are written in, behind a norm and an offset."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.hidden = nn.Linear(5, 6)
        self.first = nn.Linear(4, 5)
        self.offset = nn.Parameter(torch.zeros(4))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.norm(x + self.offset)))
        logits: Tensor = self.head(torch.relu(self.hidden(x)))
        return logits


class Tied(nn.Module):
    """The outputs are compared with the embedding of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.hidden = nn.Linear(6, 8)
        self.back = nn.Linear(8, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.back(torch.relu(self.hidden(self.embedding(tokens).mean(1))))
        logits: Tensor = self.head(x)
        return logits


def test_a_layer_has_its_matrix_and_the_norms_behind_it() -> None:
    first, *others = layers(tiny_task())
    assert set(first) == {n for n in tiny_task().initial if n.startswith(("stem.", "norm."))}
    assert [set(layer) for layer in others] == [INNER, OUTER, HIDDEN, HEAD]


def test_layers_are_ordered_as_they_run_and_what_is_in_front_counts_to_the_first() -> None:
    found = layers(Task.of(Backwards(), torch.randn(2, 4)))
    assert [{name.split(".")[0] for name in layer} for layer in found] == [
        {"offset", "norm", "first"},
        {"hidden"},
        {"head"},
    ]
    assert sum(map(len, found)) == len(Backwards().state_dict())


@pytest.mark.parametrize("name", ["transformer", "two inputs"])
def test_layers_of_any_model_have_every_tensor_once_and_the_outputs_last(name: str) -> None:
    model, channels, example = traced(name)
    found = layers(Task(model, channels, example[0]))
    assert sorted(tensor for layer in found for tensor in layer) == sorted(model.state_dict())
    assert head_of(channels) == set(found[-1])


@pytest.mark.parametrize(
    ("shared_layers", "shared"),
    [(1, HEAD), (2, HEAD | HIDDEN), (3, HEAD | HIDDEN | OUTER)],
)
def test_only_the_last_layers_cross_the_wire(shared_layers: int, shared: set[str]) -> None:
    state, parts = play(LGFedAvgSub(shared_layers=shared_layers), tiny_task(), CLIENTS)
    assert state.weights.keys() == shared
    for part in parts:
        assert part.download.weights.keys() == part.upload.weights.keys() == shared


def test_an_embedding_that_is_also_the_head_is_shared_under_both_names() -> None:
    task = Task.of(Tied(), torch.randint(0, 7, (2, 5)))
    assert LGFedAvg(shared_layers=1).private(task) == {
        *("hidden.weight", "hidden.bias", "back.weight", "back.bias")
    }


def test_a_round_is_that_of_a_client_with_its_own_first_layers_and_the_last_ones_average() -> None:
    task, method = tiny_task(), LGFedAvgSub()
    client = CLIENTS[2]
    shared = HEAD | HIDDEN
    own = {n: torch.rand_like(t.float()) for n, t in task.initial.items() if n not in shared}
    own["norm.num_batches_tracked"] = torch.tensor(7)
    own = dict(task.narrow(own, client.pruning_rate))
    memory = remember(own, client.pruning_rate)
    context = ClientContext(client, tiny_examples(2), memory, Turn(1, 5, 0))
    state = method.start(task, CLIENTS, context.turn)
    download = method.download(task, state, client, context.turn)
    upload, after = method.train(task, download, context)
    whole = {**task.narrow(task.initial, client.pruning_rate), **own}
    alone = train_locally(task, whole, context.examples, context.generator("batches")).weights
    trained = method.trained(task, upload, replace(context, memory=after))
    for name, tensor in alone.items():
        torch.testing.assert_close((upload.weights if name in shared else after)[name], tensor)
        torch.testing.assert_close(trained[name], tensor, **EXACT)
        assert not torch.equal(tensor, whole[name]), "nothing was trained"


@pytest.mark.parametrize(
    ("own", "plain", "clients"),
    [
        (LGFedAvg(shared_layers=5), FedAvg(), FULL_CLIENTS),
        (LGFedAvgSub(shared_layers=9), HeteroFL(), CLIENTS),
    ],
    ids=["full", "within budgets"],
)
def test_with_all_layers_shared_it_is_plain_averaging(
    own: LGFedAvg, plain: FedAvg, clients: list[Client]
) -> None:
    ours, _ = play(own, tiny_task(), clients, rounds=2)
    theirs, _ = play(plain, tiny_task(), clients, rounds=2)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, tensor in theirs.weights.items():
        torch.testing.assert_close(ours.weights[name], tensor, **EXACT)


def test_sharing_nothing_is_refused() -> None:
    with pytest.raises(SubflotError, match=r"shared_layers is 0\n.*`local` is the method"):
        LGFedAvg(shared_layers=0)
