"""FedMA: what an upload's channels are called makes no difference to the mean."""

from dataclasses import replace

import pytest
import torch
from equations import distances, matching
from rounds import CLIENTS, FULL_CLIENTS, arrival, linear_task, play, tiny_task
from tolerances import EXACT, FLOAT32
from torch import Tensor

from subflot.algorithms.base import Arrival, Client, State, Turn, Upload
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.fedma import FedMA
from subflot.algorithms.heterofl import HeteroFL
from subflot.channels import take
from subflot.task import Task
from subflot.weights import Weights

TURN = Turn(1, 5, 0)
METHOD = FedMA()


def shuffled(task: Task, weights: Weights, seed: int) -> Weights:
    """The same function with its channels in another order."""
    draw = torch.Generator().manual_seed(seed)
    sizes = task.channels.sizes_of(weights)
    order = {s: torch.randperm(sizes[s], generator=draw) for s in task.channels.prunable}
    return take(weights, task.channels.resized(sizes), order)


def nudged(weights: Weights, seed: int) -> Weights:
    """Weights after a little training, as it were."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: t + 0.01 * torch.randn(t.shape, generator=draw) if t.is_floating_point() else t
        for name, t in weights.items()
    }


def merged(method: FedAvg, task: Task, uploads: dict[Client, Weights]) -> Weights:
    state = State(task.initial)
    placed = [
        Arrival(client, method.place(task, state, client, Upload(weights, 5), TURN))
        for client, weights in uploads.items()
    ]
    return method.aggregate(task, state, placed, TURN).weights


@pytest.mark.parametrize("seed", range(3))
def test_copies_of_the_global_model_in_any_order_merge_to_it(seed: int) -> None:
    task = tiny_task()
    uploads = {c: shuffled(task, task.initial, seed + c.id) for c in FULL_CLIENTS}
    for name, tensor in merged(METHOD, task, uploads).items():
        torch.testing.assert_close(tensor, task.initial[name], **FLOAT32)


def test_the_order_of_an_uploads_channels_does_not_matter() -> None:
    task = tiny_task()
    uploads = {c: nudged(task.narrow(task.initial, c.pruning_rate), c.id) for c in CLIENTS}
    other = {c: shuffled(task, weights, 7) for c, weights in uploads.items()}
    ours, theirs = merged(METHOD, task, uploads), merged(METHOD, task, other)
    for name, tensor in ours.items():
        torch.testing.assert_close(theirs[name], tensor, **FLOAT32)
    assert not torch.equal(ours["hidden.weight"], task.initial["hidden.weight"])


def test_averaging_by_position_mixes_channels_that_differ() -> None:
    task, whole = tiny_task(), CLIENTS[0]
    found = merged(HeteroFL(), task, {whole: shuffled(task, task.initial, 0)})
    assert not torch.allclose(found["hidden.weight"], task.initial["hidden.weight"], atol=0.01)


def best(source: Tensor, target: Tensor) -> Tensor:
    """The cheapest one-to-one matching, by trying them all."""
    return torch.tensor(matching(distances(source, target)))


def test_channels_are_matched_layer_by_layer_at_the_least_distance() -> None:
    task = linear_task(3, 5, 4, 2)
    first, second, last = "0.weight", "2.weight", "4.weight"
    client = Client(0, 0.5)
    draw = torch.Generator().manual_seed(3)
    part = {
        name: torch.randn(t.shape, generator=draw)
        for name, t in task.narrow(task.initial, client.pruning_rate).items()
    }
    state = State(task.initial)
    kept = METHOD.place(task, state, client, Upload(part, 1), TURN).kept
    one = best(part[first], task.initial[first])
    entered = torch.zeros(len(part[second]), 5).index_copy(1, one, part[second])
    two = best(entered, task.initial[second])
    spaces = list(task.channels.prunable)
    torch.testing.assert_close(kept[spaces[0]], one, **EXACT)
    torch.testing.assert_close(kept[spaces[1]], two, **EXACT)
    assert one.tolist() != [0, 1, 2], "a case in which channels move"
    # One client alone owns what it has; the others keep what they had.
    found = METHOD.aggregate(task, state, [replace(arrival(part, 9, kept), client=client)], TURN)
    expected = task.initial[last].index_copy(1, two, part[last])
    torch.testing.assert_close(found.weights[last], expected, **FLOAT32)


def test_clients_receive_the_first_channels_and_report_what_moved() -> None:
    task = tiny_task()
    _, parts = play(METHOD, task, CLIENTS)
    for part in parts:
        first = task.narrow(task.initial, part.client.pruning_rate)
        for name, tensor in part.download.weights.items():
            torch.testing.assert_close(tensor, first[name], **EXACT)
        told = {name for name in part.upload.metrics if name.startswith("moved/")}
        assert told == {f"moved/{name}.weight" for name in ("stem", "inner", "outer", "hidden")}
