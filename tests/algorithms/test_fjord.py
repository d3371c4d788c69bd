"""FjORD: which widths are drawn, and that a narrow step is the narrow model's own."""

from dataclasses import replace

import pytest
import torch
from rounds import CLIENTS, play, tiny_examples, tiny_task
from tolerances import EXACT, FLOAT32
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.base import Client, ClientContext, Download, State, Turn
from subflot.algorithms.fjord import FjORD, run_narrow
from subflot.algorithms.heterofl import HeteroFL
from subflot.algorithms.widths import first_channels
from subflot.channels import ChannelMap, put, take
from subflot.channels.resize import state_of
from subflot.errors import SubflotError
from subflot.task import LocalTraining, Task
from subflot.training import train_locally

ONE_STEP = LocalTraining(epochs=1, batch_size=8, learning_rate=0.1)
METHOD = FjORD()
CLIENT = Client(1, 0.25)


def one_step(task: Task, seed: int, method: FjORD = METHOD) -> tuple[Download, ClientContext, int]:
    """What a client of width 3/4 receives, and which of its three widths it will draw."""
    turn = Turn(1, 1, seed)
    context = ClientContext(CLIENT, tiny_examples(1, 8), {}, turn)
    download = method.download(task, State(task.initial), CLIENT, turn)
    drawn = int(torch.randint(3, (), generator=context.generator("width")))
    return download, context, drawn


def map_of(task: Task, download: Download) -> ChannelMap:
    return task.channels.resized(task.channels.sizes_of(download.weights))


def test_a_client_draws_from_the_widths_below_its_own() -> None:
    channels = ChannelMap({}, {"a": 8, "b": 20})
    assert METHOD.narrower(channels, 0.0) == [
        {"a": 2, "b": 5},
        {"a": 4, "b": 10},
        {"a": 6, "b": 15},
    ]
    assert METHOD.narrower(channels, 0.5) == [{"a": 2, "b": 5}]
    assert METHOD.narrower(channels, 0.6) == [{"a": 2, "b": 5}]
    assert METHOD.narrower(channels, 0.75) == []
    assert FjORD(widths=1).narrower(channels, 0.0) == []
    # Two channels have one narrower width, drawn no more often than any other.
    assert METHOD.narrower(ChannelMap({}, {"a": 2}), 0.0) == [{"a": 1}]


@pytest.mark.parametrize("seed", range(6))
def test_a_step_is_that_of_the_narrow_model_and_leaves_the_other_channels(seed: int) -> None:
    task = tiny_task(ONE_STEP)
    download, context, drawn = one_step(task, seed)
    upload, _ = METHOD.train(task, download, context)
    own, sizes = map_of(task, download), METHOD.narrower(task.channels, 0.25)
    kept = first_channels(sizes[drawn]) if drawn < 2 else {}
    narrow = take(download.weights, own, kept)
    alone = train_locally(task, narrow, context.examples, context.generator("batches"))
    values, owned = put(alone.weights, download.weights, own, kept)
    for name in task.parameters:
        expected = torch.where(owned[name], values[name], download.weights[name])
        torch.testing.assert_close(upload.weights[name], expected, **FLOAT32)
        assert (drawn == 2) == bool(owned[name].all()) or not own.moving[name]


def test_every_width_is_drawn() -> None:
    task = tiny_task(ONE_STEP)
    assert {one_step(task, seed)[2] for seed in range(6)} == {0, 1, 2}


def test_the_narrow_model_learns_what_the_widest_says_which_learns_the_labels() -> None:
    task, method = tiny_task(ONE_STEP), FjORD(distillation=True)
    seed = next(seed for seed in range(6) if one_step(task, seed)[2] == 0)
    download, context, _ = one_step(task, seed, method)
    own, batch = map_of(task, download), context.examples
    kept = first_channels(method.narrower(task.channels, 0.25)[0])
    wide = task.build(download.weights).train()
    narrow = task.build(take(download.weights, own, kept)).train()
    said = wide(batch.inputs)
    F.cross_entropy(said, batch.labels).backward()
    F.cross_entropy(narrow(batch.inputs), said.detach().softmax(1)).backward()
    slopes: dict[str, Tensor] = {}
    for name, parameter in narrow.named_parameters():
        assert parameter.grad is not None
        slopes[name] = parameter.grad
    padded, _ = put(slopes, download.weights, own, kept)
    upload, _ = method.train(task, download, context)
    for name, parameter in wide.named_parameters():
        assert parameter.grad is not None
        expected = parameter.detach() - 0.1 * (parameter.grad + padded[name])
        torch.testing.assert_close(upload.weights[name], expected, **FLOAT32)


def test_a_narrow_pass_leaves_norm_statistics_alone() -> None:
    task = tiny_task()
    model = task.build(task.initial).train()
    before = {name: tensor.clone() for name, tensor in state_of(model).items()}
    sizes = METHOD.narrower(task.channels, 0.0)[0]
    run_narrow(task, model, task.channels, sizes, tiny_examples(1).inputs).sum().backward()
    for name, tensor in state_of(model).items():
        torch.testing.assert_close(tensor.detach(), before[name], **EXACT)
    assert model.get_parameter("stem.weight").grad is not None


def test_with_one_width_it_is_heterofl() -> None:
    own, _ = play(FjORD(widths=1), tiny_task(), rounds=2)
    plain, _ = play(HeteroFL(), tiny_task(), rounds=2)
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(own.weights[name], tensor, **EXACT)


def test_the_narrowest_client_trains_as_in_heterofl() -> None:
    narrowest = [replace(CLIENTS[3], id=0)]
    own, _ = play(METHOD, tiny_task(), narrowest)
    plain, _ = play(HeteroFL(), tiny_task(), narrowest)
    for name, tensor in plain.weights.items():
        torch.testing.assert_close(own.weights[name], tensor, **EXACT)


def test_there_is_at_least_one_width() -> None:
    with pytest.raises(SubflotError, match="widths is 0"):
        FjORD(widths=0)
