"""FedMP: the strongest channels, and what was pruned is filled up again."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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

from subflot.algorithms.averaging import owner_average, residual_recovery
from subflot.algorithms.base import Client, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.fedmp import FedMP
from subflot.channels import put, take
from subflot.channels.keep import random
from subflot.task import LocalTraining

TASK = tiny_task()
TURN = Turn(1, 1, 0)


def kept(weights: dict[str, torch.Tensor], rate: float, client: int = 0) -> dict[str, list[int]]:
    chosen = FedMP().kept(TASK, State(weights), Client(client, rate), TURN)
    return {space: index.tolist() for space, index in chosen.items()}


def test_the_kept_filters_are_at_least_as_strong_as_the_dropped_ones() -> None:
    strength = {
        "inner": TASK.initial["inner.weight"].abs().sum((1, 2, 3)),
        "hidden": TASK.initial["hidden.weight"].abs().sum(1),
        # A residual sum: the norms of both layers that make it.
        "stem": TASK.initial["stem.weight"].abs().sum((1, 2, 3))
        + TASK.initial["outer.weight"].abs().sum((1, 2, 3)),
    }
    for rate in RATES[1:]:
        for space, channels in kept(dict(TASK.initial), rate).items():
            dropped = [i for i in range(len(strength[space])) if i not in channels]
            assert strength[space][channels].min() >= strength[space][dropped].max()


def test_a_filter_that_grows_enters_every_submodel() -> None:
    weights = dict(TASK.initial)
    weakest = int(weights["hidden.weight"].abs().sum(1).argmin())
    assert weakest not in kept(weights, 0.25)["hidden"]
    weights["hidden.weight"] = weights["hidden.weight"].clone()
    weights["hidden.weight"][weakest] *= 10
    assert all(weakest in kept(weights, rate)["hidden"] for rate in RATES)


def test_one_rate_means_one_submodel_and_narrow_ones_lie_in_wide_ones() -> None:
    weights = dict(TASK.initial)
    for rate in RATES:
        assert kept(weights, rate, client=0) == kept(weights, rate, client=5)
    for narrow, wide in zip(RATES[:0:-1], RATES[-2::-1], strict=True):
        inner, outer = kept(weights, narrow), kept(weights, wide)
        assert all(set(inner[space]) <= set(outer[space]) for space in inner)


def test_what_was_pruned_and_what_was_sent_make_the_whole() -> None:
    download = FedMP().download(TASK, State(TASK.initial), Client(0, 0.5), TURN)
    values, owned = put(download.weights, TASK.initial, TASK.channels, download.kept)
    for name, whole in TASK.initial.items():
        torch.testing.assert_close(torch.where(owned[name], values[name], whole), whole, **EXACT)


def test_residual_recovery_by_hand() -> None:
    task = linear_task(1, 2, 1)
    (space,) = task.channels.prunable
    old = {
        "0.weight": torch.tensor([[1.0], [2.0]]),
        "0.bias": torch.tensor([0.0, 0.0]),
        "2.weight": torch.tensor([[1.0, 1.0]]),
        "2.bias": torch.tensor([8.0]),
    }
    part = {
        "0.weight": torch.tensor([[6.0]]),
        "0.bias": torch.tensor([4.0]),
        "2.weight": torch.tensor([[5.0]]),
        "2.bias": torch.tensor([0.0]),
    }
    # One client of three examples has the second channel; one of a single example returns the
    # model as it was.
    merged = residual_recovery(
        old, task.channels, [arrival(part, 3, {space: torch.tensor([1])}), arrival(old, 1)]
    )
    torch.testing.assert_close(merged["0.weight"], torch.tensor([[1.0], [5.0]]), **EXACT)
    torch.testing.assert_close(merged["0.bias"], torch.tensor([0.0, 3.0]), **EXACT)
    torch.testing.assert_close(merged["2.weight"], torch.tensor([[1.0, 4.0]]), **EXACT)
    torch.testing.assert_close(merged["2.bias"], torch.tensor([2.0]), **EXACT)


@settings(max_examples=20)
@given(seed=st.integers(0, 1000), rates=st.lists(st.sampled_from(RATES), min_size=1, max_size=4))
def test_residual_recovery_is_the_owners_average_damped_by_the_mass_of_the_owners(
    seed: int, rates: list[float]
) -> None:
    draw = torch.Generator().manual_seed(seed)
    old = {n: torch.randn(t.shape, generator=draw) for n, t in TASK.initial.items() if t.dim()}
    arrivals, mass = [], {name: torch.zeros(tensor.shape) for name, tensor in old.items()}
    examples = [1 + client * 2 for client in range(len(rates))]
    for rate, count in zip(rates, examples, strict=True):
        chosen = random(TASK.channels, rate, draw)
        part = {
            name: torch.randn(tensor.shape, generator=draw)
            for name, tensor in take(old, TASK.channels, chosen).items()
        }
        arrivals.append(arrival(part, count, chosen))
        for name, owned in put(part, old, TASK.channels, chosen)[1].items():
            mass[name] += owned * count / sum(examples)
    recovered = residual_recovery(old, TASK.channels, arrivals)
    averaged = owner_average(old, TASK.channels, arrivals)
    for name, tensor in old.items():
        expected = tensor + mass[name] * (averaged[name] - tensor)
        torch.testing.assert_close(recovered[name], expected, **FLOAT32)
        untouched = mass[name] == 0
        torch.testing.assert_close(recovered[name][untouched], tensor[untouched], **EXACT)


def test_an_entry_of_one_client_among_three_moves_by_a_third_and_one_of_none_not_at_all() -> None:
    clients = [Client(0, 0.25), Client(1, 0.5), Client(2, 0.5)]
    examples = {client.id: tiny_examples(client.id, 7) for client in clients}
    state, parts = play(FedMP(), TASK, clients, examples=examples)
    wide, narrow = (part.upload.kept["hidden"].tolist() for part in parts[:2])
    alone = [channel for channel in wide if channel not in narrow]
    nobodys = [channel for channel in range(12) if channel not in wide]
    assert len(alone) == len(nobodys) == 3
    old, new = TASK.initial["hidden.bias"], state.weights["hidden.bias"]
    values, _ = put(parts[0].upload.weights, TASK.initial, TASK.channels, parts[0].upload.kept)
    step = values["hidden.bias"][alone] - old[alone]
    assert step.abs().max() > 1e-4
    torch.testing.assert_close(new[alone], old[alone] + step / 3, **FLOAT32)
    rows = state.weights["hidden.weight"][nobodys]
    torch.testing.assert_close(rows, TASK.initial["hidden.weight"][nobodys], **EXACT)


def test_where_nobody_trains_the_global_model_stays() -> None:
    idle = replace(TASK, local=LocalTraining(epochs=0))
    state, _ = play(FedMP(), idle, CLIENTS)
    torch.testing.assert_close(state.weights, dict(TASK.initial), **FLOAT32)


def test_full_clients_reproduce_fedavg_to_the_bit() -> None:
    recovered, _ = play(FedMP(), TASK, FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(recovered.weights, plain.weights, **EXACT)


def test_clients_train_within_their_budgets() -> None:
    for part in play(FedMP(), TASK)[1]:
        used = TASK.cost(part.upload.weights).parameters
        assert used == parameters_of(TASK, part.client.pruning_rate)
