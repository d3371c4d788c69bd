"""HeteroFL: nested submodels, the scaler and the masked loss."""

import pytest
import torch
from rounds import (
    CLASSES,
    CLIENTS,
    FULL_CLIENTS,
    RATES,
    TinyNet,
    arrival,
    linear_task,
    parameters_of,
    play,
    tiny_examples,
    tiny_task,
)
from tolerances import EXACT, FLOAT32
from torch import nn

from subflot.algorithms.averaging import owner_average
from subflot.algorithms.base import Client, ClientContext, State, Turn, Upload
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.heterofl import LABELS, HeteroFL, class_space
from subflot.algorithms.scaler import scaled
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.models import MODELS
from subflot.task import LocalTraining, Task

TASK = tiny_task()
LACKING = Examples(tiny_examples(1, 8).inputs, torch.tensor([0, 2, 2, 0, 0, 2, 0, 2]))
"""Of a client that has no example of class 1."""


def kept(rate: float, round: int = 1) -> dict[str, list[int]]:
    chosen = HeteroFL().kept(TASK, State({}), Client(0, rate), Turn(round, 99, 0))
    return {space: index.tolist() for space, index in chosen.items()}


def test_narrow_models_are_the_first_channels_of_wide_ones_in_every_round() -> None:
    for narrow, wide in zip(RATES[:0:-1], RATES[-2::-1], strict=True):
        inner, outer = kept(narrow), kept(wide)
        assert all(outer[space][: len(inner[space])] == inner[space] for space in inner)
        assert inner != outer
        assert kept(narrow, round=17) == inner


def test_owners_average_by_hand() -> None:
    task = linear_task(1, 2, 1)
    (space,) = task.channels.prunable
    old = {
        "0.weight": torch.tensor([[7.0], [7.0]]),
        "0.bias": torch.tensor([7.0, 7.0]),
        "2.weight": torch.tensor([[7.0, 7.0]]),
        "2.bias": torch.tensor([7.0]),
    }
    whole = {name: torch.ones_like(tensor) for name, tensor in old.items()}
    half = {
        "0.weight": torch.tensor([[5.0]]),
        "0.bias": torch.tensor([5.0]),
        "2.weight": torch.tensor([[5.0]]),
        "2.bias": torch.tensor([5.0]),
    }
    merged = owner_average(
        old, task.channels, [arrival(whole, 1), arrival(half, 3, {space: torch.tensor([0])})]
    )
    # The corner is the mean by examples, (1 + 3 * 5) / 4; the rest is the full client's.
    torch.testing.assert_close(merged["0.weight"], torch.tensor([[4.0], [1.0]]), **EXACT)
    torch.testing.assert_close(merged["0.bias"], torch.tensor([4.0, 1.0]), **EXACT)
    torch.testing.assert_close(merged["2.weight"], torch.tensor([[4.0, 1.0]]), **EXACT)
    torch.testing.assert_close(merged["2.bias"], torch.tensor([4.0]), **EXACT)


def test_entries_outside_the_largest_corner_stay_to_the_bit() -> None:
    state, _ = play(HeteroFL(), TASK, [Client(0, 0.5), Client(1, 0.75)])
    torch.testing.assert_close(
        state.weights["hidden.weight"][6:], TASK.initial["hidden.weight"][6:], **EXACT
    )
    assert not torch.equal(
        state.weights["hidden.weight"][:6, :16], TASK.initial["hidden.weight"][:6, :16]
    )


@pytest.mark.parametrize("scaler", [False, True])
def test_full_clients_reproduce_fedavg_to_the_bit(scaler: bool) -> None:
    nested, _ = play(HeteroFL(scaler=scaler), TASK, FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(nested.weights, plain.weights, **EXACT)


def test_clients_train_within_their_budgets_and_know_all_classes() -> None:
    for part in play(HeteroFL(), TASK)[1]:
        used = TASK.cost(part.upload.weights).parameters
        assert used == parameters_of(TASK, part.client.pruning_rate)
        assert len(part.upload.weights["head.bias"]) == CLASSES


# ----- the scaler


def test_the_scaler_divides_what_every_layer_of_the_narrow_model_puts_out() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    task = Task.of(net, torch.randn(2, 3))
    x = torch.randn(5, 3)
    plain = net(x)
    with scaled(net, task.channels, 0.5):
        larger = net(x)
    expected = net[4](torch.relu(net[2](torch.relu(net[0](x) / 0.5)) / 0.5))
    torch.testing.assert_close(larger, expected, **FLOAT32)
    # The hooks are gone, so evaluation and the next borrower see the plain layers.
    torch.testing.assert_close(net(x), plain, **EXACT)
    assert not any(module._forward_hooks for module in net.modules())


def test_the_scaler_leaves_nothing_behind_after_an_error() -> None:
    net = TinyNet()
    with pytest.raises(RuntimeError), scaled(net, TASK.channels, 0.5):
        net(torch.zeros(1, 2, 4, 4))
    assert not any(module._forward_hooks for module in net.modules())


def test_the_scaler_does_nothing_at_full_width() -> None:
    net = TinyNet()
    with scaled(net, TASK.channels, 1.0):
        assert not any(module._forward_hooks for module in net.modules())


def test_before_batch_norm_the_scaler_hardly_matters_and_elsewhere_it_does() -> None:
    net, x = TinyNet(), torch.randn(4, 1, 4, 4)
    with_norm = TASK.channels
    only_stem = Task.of(nn.Sequential(net.stem, net.norm, nn.Conv2d(8, 2, 1)), x).channels
    first = nn.Sequential(net.stem, net.norm, nn.Conv2d(8, 2, 1))
    with scaled(first, only_stem, 0.5):
        scaled_up = first(x)
    # Batch norm adds 1e-5 to a variance of about 0.3.
    torch.testing.assert_close(scaled_up, first(x), rtol=1e-3, atol=1e-3)
    with scaled(net, with_norm, 0.5):
        assert (net(x) - TinyNet()(x)).abs().max() > 1e-3


def test_the_scaler_changes_what_a_narrow_client_trains() -> None:
    clients = [Client(0, 0.5)]
    plain, _ = play(HeteroFL(), TASK, clients)
    larger, _ = play(HeteroFL(scaler=True), TASK, clients)
    assert not torch.equal(plain.weights["head.weight"], larger.weights["head.weight"])


# ----- the masked loss


def test_absent_classes_count_as_zero_and_get_no_gradient() -> None:
    context = ClientContext(Client(0), LACKING, {}, Turn(1, 1, 0))
    algorithm = HeteroFL(masked_loss=True)
    download = algorithm.download(TASK, State(TASK.initial), Client(0), Turn(1, 1, 0))
    objective = algorithm.objective(TASK, download, context)
    assert objective is not None
    model = TASK.build(TASK.initial).train()
    loss = objective(model, LACKING)
    logits = TASK.build(TASK.initial).train()(LACKING.inputs).detach()
    logits[:, 1] = 0
    torch.testing.assert_close(
        loss.detach(), nn.functional.cross_entropy(logits, LACKING.labels), **FLOAT32
    )
    loss.backward()
    gradient = model.get_parameter("head.weight").grad
    assert gradient is not None
    assert gradient[1].eq(0).all()
    assert gradient[[0, 2]].abs().sum() > 0


def test_models_are_measured_with_absent_classes_at_zero() -> None:
    context = ClientContext(Client(0, 0.5), LACKING, {}, Turn(1, 1, 0))
    inputs = tiny_examples(2, 9).inputs
    masked, plain = HeteroFL(masked_loss=True), HeteroFL()
    download = masked.download(TASK, State(TASK.initial), context.client, context.turn)
    upload = Upload(download.weights, 8, download.kept)
    with TASK.lend(download.weights) as model:
        logits = model.eval()(inputs).detach()
    for method in (masked, plain):
        expected = logits.clone()
        if method is masked:
            assert (expected[:, 1] != 0).all()
            expected[:, 1] = 0
        for measured in (
            method.extracted(TASK, download, context),
            method.trained(TASK, upload, context),
        ):
            with TASK.lend(measured) as model:
                torch.testing.assert_close(model.eval()(inputs).detach(), expected, **FLOAT32)


def test_classifier_rows_are_averaged_over_the_clients_that_have_the_class() -> None:
    clients = [Client(0, 0.0), Client(1, 0.5)]
    examples = {0: tiny_examples(0, 12), 1: LACKING}
    assert set(examples[0].labels.tolist()) == {0, 1, 2}
    decay = tiny_task(LocalTraining(epochs=1, batch_size=4, weight_decay=0.1))
    state, parts = play(HeteroFL(masked_loss=True), decay, clients, examples=examples)
    assert parts[1].upload.extras[LABELS].tolist() == [True, False, True]
    full = parts[0].upload.weights["head.bias"]
    # Weight decay moved the absent row of the second client; it counts for nothing.
    torch.testing.assert_close(state.weights["head.bias"][1], full[1], **FLOAT32)
    both = (full * 12 + parts[1].upload.weights["head.bias"] * 8) / 20
    torch.testing.assert_close(state.weights["head.bias"][[0, 2]], both[[0, 2]], **FLOAT32)


def test_rows_of_a_class_that_nobody_has_stay_to_the_bit() -> None:
    decay = tiny_task(LocalTraining(epochs=1, batch_size=4, weight_decay=0.1))
    clients = [Client(0, 0.0), Client(1, 0.5)]
    examples = {0: LACKING, 1: LACKING}
    state, _ = play(HeteroFL(masked_loss=True), decay, clients, examples=examples)
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(state.weights[name][1], TASK.initial[name][1], **EXACT)
        assert not torch.equal(state.weights[name][0], TASK.initial[name][0])


def test_a_client_that_lies_about_its_classes_does_not_count_in_the_classifier() -> None:
    algorithm = HeteroFL(masked_loss=True)
    changed = {name: tensor + 1 for name, tensor in TASK.initial.items()}
    for claim in (torch.ones(7, dtype=torch.bool), torch.ones(CLASSES)):
        came = arrival(changed, 5)
        came.upload.extras[LABELS] = claim  # type: ignore[index]
        state = algorithm.aggregate(TASK, State(TASK.initial), [came], Turn(1, 1, 0))
        torch.testing.assert_close(state.weights["head.bias"], TASK.initial["head.bias"], **EXACT)
        torch.testing.assert_close(
            state.weights["hidden.bias"], TASK.initial["hidden.bias"] + 1, **FLOAT32
        )


def test_the_classes_are_found_in_networks_and_their_absence_is_explained() -> None:
    net = MODELS["harcnn"]
    channels = Task.of(net.model(), net.example()).channels
    assert channels.sizes[class_space(channels)] == net.num_classes

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            hidden = torch.relu(self.first(x))
            return self.left(hidden), self.right(hidden)

    with pytest.raises(SubflotError, match="2 layers of outputs"):
        class_space(Task.of(Two(), torch.randn(2, 3)).channels)


def test_masking_is_off_unless_asked_for() -> None:
    context = ClientContext(CLIENTS[1], LACKING, {}, Turn(1, 1, 0))
    algorithm = HeteroFL()
    download = algorithm.download(TASK, State(TASK.initial), CLIENTS[1], Turn(1, 1, 0))
    assert algorithm.objective(TASK, download, context) is None
