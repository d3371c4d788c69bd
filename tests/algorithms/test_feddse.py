"""FedDSE: clients choose the channels that their data activate."""

from dataclasses import replace

import pytest
import torch
from rounds import (
    CLIENTS,
    FULL_CLIENTS,
    RATES,
    arrival,
    linear_task,
    parameters_of,
    play,
    tiny_examples,
    tiny_task,
)
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from traced import traced

from subflot.algorithms.activations import watch
from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.feddse import FedDSE, most_active
from subflot.channels import take
from subflot.channels.keep import largest
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import Task

TASK = tiny_task()
INPUTS = tiny_examples(0, 20).inputs
TURN = Turn(1, 1, 0)
# Four channels that look at one of four inputs each.
EYES = linear_task(4, 4, 2)
EYES_WEIGHTS = {**EYES.initial, "0.weight": torch.eye(4), "0.bias": torch.zeros(4)}


def looks(*seen: float) -> Tensor:
    return torch.tensor([list(seen)] * 3, dtype=torch.float32)


def activations() -> dict[str, Tensor]:
    """What the tiny network's layers read, worked out by hand: space -> (channels, values)."""
    w = TASK.initial
    x = F.conv2d(INPUTS, w["stem.weight"], w["stem.bias"], padding=1)
    x = torch.relu(F.batch_norm(x, None, None, w["norm.weight"], w["norm.bias"], True))
    inner = torch.relu(F.conv2d(x, w["inner.weight"], w["inner.bias"], padding=1))
    y = torch.relu(x + F.conv2d(inner, w["outer.weight"], w["outer.bias"], padding=1))
    pooled = F.max_pool2d(y, 2)
    hidden = torch.relu(F.linear(pooled.flatten(1), w["hidden.weight"], w["hidden.bias"]))
    # `stem` is read by `inner`, and after the sum by `hidden`.
    both = torch.cat([x.transpose(0, 1).flatten(1), pooled.transpose(0, 1).flatten(1)], dim=1)
    return {"stem": both, "inner": inner.transpose(0, 1).flatten(1), "hidden": hidden.T}


def test_layers_read_what_a_second_forward_pass_says() -> None:
    found: dict[str, list[Tensor]] = {}
    watch(
        TASK, TASK.initial, INPUTS, lambda space, values: found.setdefault(space, []).append(values)
    )
    for space, values in activations().items():
        seen = torch.cat(found[space], dim=1)
        torch.testing.assert_close(seen.sort(1).values, values.sort(1).values, **FLOAT32)


@pytest.mark.parametrize("rate", RATES[1:])
def test_the_kept_channels_are_the_most_active_ones(rate: float) -> None:
    kept = most_active(TASK, TASK.initial, INPUTS, rate)
    for space, values in activations().items():
        count = TASK.channels.kept_sizes(rate)[space]
        expected = values.sum(1).topk(count).indices.sort().values
        assert kept[space].tolist() == expected.tolist()


def test_clients_keep_the_channels_that_their_own_data_activate() -> None:
    (space,) = EYES.channels.prunable
    assert most_active(EYES, EYES_WEIGHTS, looks(9, 5, 1, 1), 0.5)[space].tolist() == [0, 1]
    assert most_active(EYES, EYES_WEIGHTS, looks(1, 5, 1, 9), 0.5)[space].tolist() == [1, 3]
    # The rectifier silences the first and third: they come last, whatever their size.
    assert most_active(EYES, EYES_WEIGHTS, looks(-9, 0.1, -9, 0.2), 0.5)[space].tolist() == [1, 3]


def test_the_same_data_choose_the_same_channels() -> None:
    contexts = [ClientContext(Client(i, 0.5), tiny_examples(7, 30), {}, TURN) for i in (0, 1)]
    whole = Download(TASK.initial)
    every = [FedDSE(num_scored=0).extracted(TASK, whole, context) for context in contexts]
    torch.testing.assert_close(every[0], every[1], **EXACT)


def test_only_so_many_examples_are_scored_and_drawn_anew_every_round() -> None:
    inputs = torch.cat([looks(9, 9, 0, 0), looks(0, 0, 9, 9)])
    examples = Examples(inputs, torch.zeros(6, dtype=torch.int64))
    chosen = set()
    for round in range(1, 20):
        context = ClientContext(Client(0, 0.5), examples, {}, Turn(round, 20, 0))
        part = FedDSE(num_scored=1).extracted(EYES, Download(EYES_WEIGHTS), context)
        chosen.add(tuple(part["0.weight"].nonzero()[:, 1].tolist()))
    assert chosen == {(0, 1), (2, 3)}


def test_a_client_trains_what_it_chose_and_says_so() -> None:
    for part in play(FedDSE(), TASK)[1]:
        rate = part.client.pruning_rate
        assert TASK.cost(part.upload.weights).parameters == parameters_of(TASK, rate)
        assert TASK.cost(part.download.weights).parameters == parameters_of(TASK, 0)
        examples = part.context.examples.inputs
        for space, index in most_active(TASK, TASK.initial, examples, rate).items():
            assert part.upload.kept[space].tolist() == index.tolist()
    idle = replace(TASK, local=replace(TASK.local, epochs=0))
    part = play(FedDSE(), idle, [CLIENTS[2]])[1][0]
    sent = take(TASK.initial, TASK.channels, part.upload.kept)
    torch.testing.assert_close(part.upload.weights, sent, **EXACT)


def test_full_clients_reproduce_fedavg_to_the_bit() -> None:
    chosen, _ = play(FedDSE(), TASK, FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(chosen.weights, plain.weights, **EXACT)


def test_the_old_model_may_count_as_one_more_client() -> None:
    old = {name: torch.zeros_like(tensor) for name, tensor in EYES.initial.items()}
    ones = {name: torch.ones_like(tensor) for name, tensor in EYES.initial.items()}
    arrivals = [arrival(ones, 6), arrival(ones, 2)]
    merged = FedDSE(counts_old=True).aggregate(EYES, State(old), arrivals, TURN)
    # Two clients of 6 and 2 examples, and the old zeros with the mean of 4.
    assert merged.weights["0.bias"].tolist() == pytest.approx([8 / 12] * 4)
    plain = FedDSE().aggregate(EYES, State(old), arrivals, TURN)
    assert plain.weights["0.bias"].tolist() == [1.0] * 4
    nothing = FedDSE(counts_old=True).aggregate(EYES, State(old), [], TURN)
    torch.testing.assert_close(nothing.weights, old, **EXACT)


@pytest.mark.parametrize("name", ["dense blocks", "grouped", "own attention", "shuffle", "tied"])
def test_any_network_can_be_cut_by_its_activations(name: str) -> None:
    model, channels, example = traced(name)
    task = Task(model, channels, example[0])
    kept = most_active(task, task.initial, example[0], 0.5)
    assert {s: len(index) for s, index in kept.items()} == channels.kept_sizes(0.5)
    assert all(len(index.unique()) == len(index) for index in kept.values())
    task.build(take(task.initial, channels, kept))(example[0])


def test_spaces_that_no_plain_layer_reads_keep_the_largest_weights() -> None:
    model, channels, example = traced("lstm")
    task = Task(model, channels, example[0])
    seen: set[str] = set()
    watch(task, task.initial, example[0], lambda space, values: seen.add(space))
    assert "words" not in seen
    kept = most_active(task, task.initial, example[0], 0.5)
    assert kept["words"].tolist() == largest(channels, 0.5, task.initial)["words"].tolist()


def test_what_a_transposed_convolution_reads_is_seen() -> None:
    model, channels, example = traced("u-net")
    task = Task(model, channels, example[0])
    found: dict[str, Tensor] = {}
    watch(task, task.initial, example[0], lambda space, values: found.update({space: values}))
    bottom = torch.relu(seen_by(model, "up2", example[0]))
    torch.testing.assert_close(found["bottom"], bottom.transpose(0, 1).flatten(1), **FLOAT32)


def seen_by(model: nn.Module, layer: str, inputs: Tensor) -> Tensor:
    """What goes into a layer, caught by a hook of its own."""
    caught: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_pre_hook(
        lambda module, args: caught.append(args[0])
    )
    with torch.no_grad():
        model(inputs)
    hook.remove()
    return caught[0]


def test_looking_at_activations_leaves_no_hooks() -> None:
    most_active(TASK, TASK.initial, INPUTS, 0.5)
    with TASK.lend(TASK.initial) as model:
        assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_negative_number_of_examples_is_refused() -> None:
    with pytest.raises(SubflotError, match="num_scored is -1"):
        FedDSE(num_scored=-1)
