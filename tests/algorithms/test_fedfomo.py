"""FedFomo: which models a client mixes, and which it is offered."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import WHOLE, run_rounds
from hypothesis import assume, given
from hypothesis import strategies as st
from quadratics import HESSIAN, context_of, point_task, points
from rounds import CLIENTS, FULL_CLIENTS, parameters_of, tiny_examples, tiny_task
from tolerances import EXACT
from torch import Tensor

from subflot.algorithms import fedavg
from subflot.algorithms.base import Arrival, Client, ClientContext, Download, State, Turn, Upload
from subflot.algorithms.fedfomo import FedFomo, FedFomoSub, held_out, shares, worths
from subflot.algorithms.local import Local
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.simulation.store import Store
from subflot.task import LocalTraining
from subflot.weights import Weights

Place = tuple[float, float]
TASK = point_task(LocalTraining(epochs=1, learning_rate=0.0))
GOAL = points((0.0, 0.0), (0.0, 0.0))
"""Validation examples: the loss grows with the distance from the origin, seen through `ROOT`."""


def at(place: Place) -> Weights:
    return {"at": torch.tensor(place, dtype=torch.float64)}


def mixed(own: Place, base: Place, *others: Place, goal: Examples = GOAL) -> Tensor:
    """Where a client starts to train that holds `own`, last started at `base` and is offered."""
    extras = {f"{slot}/at": at(other)["at"] for slot, other in enumerate(others)}
    context = replace(context_of(points((1.0, 1.0))), memory=at(base), validation=goal)
    return FedFomo().extracted(TASK, Download(at(own), extras=extras), context)["at"]


@given(st.lists(st.floats(-10, 10, width=32, allow_subnormal=False), min_size=1, max_size=6))
def test_shares_are_not_negative_and_add_up_to_one_or_all_are_zero(gains: list[float]) -> None:
    found = shares(torch.tensor(gains))
    assert (found >= 0).all()
    total = 1.0 if max(gains) > 0 else 0.0
    assert float(found.sum()) == pytest.approx(total, abs=1e-5)
    assert all(share == 0 for share, gain in zip(found, gains, strict=True) if gain <= 0)


def test_worth_is_what_the_loss_falls_per_distance_and_nothing_if_it_diverged() -> None:
    losses, away = torch.tensor([1.0, 4.0, torch.nan, torch.inf]), torch.tensor([2.0, 4, 1, 1])
    torch.testing.assert_close(
        worths(3.0, losses, away), torch.tensor([1.0, -0.25, 0, 0]), rtol=0, atol=1e-4
    )


def test_one_better_model_is_taken_as_it_is() -> None:
    better = (0.25, 0.5)
    assert mixed((3.0, 3.0), (2.0, 1.0), (5.0, 5.0), better).tolist() == list(better)


def test_better_models_count_by_their_worth() -> None:
    # Losses with HESSIAN[0, 0] = 1: base 8, own 2 at distance 2, other 0 at distance 4.
    own_worth, other_worth = (8 - 2) / 2, (8 - 0) / 4
    expected = 2.0 * own_worth / (own_worth + other_worth)
    found = mixed((2.0, 0.0), (4.0, 0.0), (0.0, 0.0))
    assert found.tolist() == pytest.approx([expected, 0.0], abs=1e-4)


def test_models_that_stand_where_the_client_started_change_nothing() -> None:
    place = (2.0, 1.0)
    assert mixed(place, place, place, place).tolist() == list(place)


def test_if_nothing_helps_the_trained_model_is_kept() -> None:
    assert mixed((3.0, 3.0), (1.0, 0.0), (5.0, 5.0)).tolist() == [3.0, 3.0]


places = st.tuples(st.floats(-3, 3), st.floats(-3, 3))


@given(places, places, st.lists(places, min_size=1, max_size=4))
def test_the_mixture_is_not_worse_than_the_start_where_the_loss_is_convex(
    own: Place, base: Place, others: list[Place]
) -> None:
    def loss(place: Tensor) -> float:
        return float(place @ HESSIAN @ place) / 2

    start = torch.tensor(base, dtype=torch.float64)
    found = mixed(own, base, *others)
    assume(found.tolist() != list(own))
    assert loss(found) <= loss(start) + 1e-6


def test_without_others_it_is_training_on_ones_own(tmp_path: Path) -> None:
    alone = run_rounds(FedFomo(num_others=0), tmp_path / "fomo", clients=WHOLE, rounds=2)
    local = run_rounds(Local(), tmp_path / "local", clients=WHOLE, rounds=2)
    for client in WHOLE:
        own = state_of(alone).history[client.id]
        stored = Store(local)
        manifest = stored.manifest()
        assert manifest is not None
        for name, tensor in stored.memory(manifest, client.id).items():
            torch.testing.assert_close(own[name], tensor, **EXACT)


def state_of(folder: Path) -> State:
    store = Store(folder)
    manifest = store.manifest()
    assert manifest is not None
    return store.state(manifest)


# ----- validation


def test_what_is_held_out_is_a_fifth_the_same_in_every_round_and_never_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    examples = Examples(torch.arange(20.0).double().repeat(2, 1).T, torch.zeros(20).long())
    used: list[Examples] = []

    def spy(task: object, weights: Weights, examples: Examples, *_: object, **__: object) -> object:
        used.append(examples)
        raise KeyError

    monkeypatch.setattr(fedavg, "train_locally", spy)
    apart = set()
    for round in (1, 2, 5):
        context = context_of(examples, round=round)
        with pytest.raises(KeyError):
            FedFomo().train(TASK, Download(TASK.initial), context)
        held = held_out(context)[1]
        apart.add(tuple(held.inputs[:, 0].tolist()))
        both = torch.cat([held.inputs[:, 0], used[-1].inputs[:, 0]])
        assert sorted(both.tolist()) == list(range(20))
    (only,) = apart
    assert len(only) == 4
    other = held_out(context_of(examples, client=1))[1]
    assert tuple(other.inputs[:, 0].tolist()) != only


def test_validation_examples_of_the_split_are_used_and_all_others_trained_on() -> None:
    examples, apart = tiny_examples(0), tiny_examples(1)
    context = replace(context_of(examples), validation=apart)
    assert held_out(context) == (examples, apart)


def test_a_client_with_one_example_trains_on_it_and_judges_nothing() -> None:
    training, apart = held_out(context_of(tiny_examples(0, 1)))
    assert (len(training), len(apart)) == (1, 0)


# ----- on the server


def history(*clients: int) -> Mapping[int, Weights]:
    return {client: at((float(client), 0.0)) for client in clients}


def affinity(rows: dict[tuple[int, int], float], count: int = 6) -> dict[str, Tensor]:
    table = torch.zeros(count, count)
    for place, value in rows.items():
        table[place] = value
    return {"affinity": table}


def test_later_clients_are_offered_what_was_worth_most_to_them() -> None:
    worth = affinity({(0, 3): 2.0, (0, 1): 1.0, (0, 2): -1.0, (1, 2): 9.0})
    state = State({}, worth, history(0, 1, 2, 3))
    late = Turn(8, 10, 0)
    assert FedFomo(num_others=2).offered(state, Client(0), late) == [3, 1]
    assert FedFomo(num_others=9).offered(state, Client(0), late) == [3, 1, 2]
    download = FedFomo(num_others=1).download(TASK, state, Client(0), late)
    assert download.weights["at"].tolist() == [0.0, 0.0]
    assert {n: t.tolist() for n, t in download.extras.items()} == {"0/at": [3.0, 0.0]}


def test_early_rounds_explore_and_ties_are_drawn() -> None:
    best = State({}, affinity({(0, 3): 2.0}), history(0, 1, 2, 3, 4, 5))
    first = [FedFomo(num_others=1).offered(best, Client(0), Turn(1, 9, s))[0] for s in range(200)]
    # A draw, with chance 0.3, finds another one in four of five cases.
    assert 30 <= sum(other != 3 for other in first) <= 70
    tied = State({}, affinity({}), history(0, 1, 2))
    late = {FedFomo(num_others=1).offered(tied, Client(0), Turn(9, 9, s))[0] for s in range(20)}
    assert late == {1, 2}


def test_at_first_there_is_only_the_initial_model() -> None:
    method, turn = FedFomo(), Turn(1, 3, 0)
    state = method.start(TASK, FULL_CLIENTS, turn)
    download = method.download(TASK, state, Client(4), turn)
    assert torch.equal(download.weights["at"], TASK.initial["at"])
    assert not download.extras


def told(client: int, *gains: float) -> Arrival:
    upload = Upload(at((0.0, 0.0)), 1, extras={"gains": torch.tensor(gains)})
    return Arrival(Client(client), upload)


def test_worth_is_added_for_those_who_took_part_and_only_in_the_shape_that_was_asked() -> None:
    state = State({}, affinity({(0, 2): 1.0, (2, 0): 0.5}, count=3), history(0, 1, 2, 3))
    method, turn = FedFomo(num_others=2), Turn(9, 9, 0)
    first, second = method.offered(state, Client(0), turn)
    arrivals = [told(0, 3.0, -1.0), told(1, 5.0)]
    after = method.aggregate(TASK, state, arrivals, turn).extras["affinity"]
    expected = affinity({(0, 2): 1.0, (2, 0): 0.5}, count=4)["affinity"]
    expected[0, first] += 0.75
    expected[0, second] -= 0.25
    torch.testing.assert_close(after, expected, **EXACT)


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64, torch.int64, torch.float8_e5m2])
def test_worth_of_another_type_counts_nothing(kind: torch.dtype) -> None:
    state = State({}, affinity({(0, 2): 1.0}, count=4), history(0, 1, 2, 3))
    odd = Upload(at((0.0, 0.0)), 1, extras={"gains": torch.ones(2).to(kind)})
    method, turn = FedFomo(num_others=2), Turn(9, 9, 0)
    after = method.aggregate(TASK, state, [Arrival(Client(0), odd)], turn).extras["affinity"]
    torch.testing.assert_close(after, state.extras["affinity"], **EXACT)


def test_a_client_tells_what_the_others_were_worth_and_remembers_where_it_started() -> None:
    state = State({}, affinity({}), history(0, 1, 2))
    method, turn = FedFomo(), Turn(9, 9, 0)
    download = method.download(TASK, state, Client(0), turn)
    context = ClientContext(Client(0), points((1.0, 1.0)), at((4.0, 0.0)), turn, GOAL)
    upload, memory = method.train(TASK, download, context)
    others = method.offered(state, Client(0), turn)
    expected = [(8 - other**2 / 2) / (4 - other) for other in others]
    assert upload.extras["gains"].tolist() == pytest.approx(expected, abs=1e-3)
    torch.testing.assert_close(memory["at"], method.extracted(TASK, download, context)["at"])


# ----- on submodels


def test_at_rate_zero_the_form_on_submodels_is_the_full_form(tmp_path: Path) -> None:
    full = run_rounds(FedFomo(), tmp_path / "full", clients=WHOLE, rounds=3)
    within = run_rounds(FedFomoSub(), tmp_path / "within", clients=WHOLE, rounds=3)
    for client in WHOLE:
        own = state_of(within).history[client.id]
        for name, tensor in state_of(full).history[client.id].items():
            torch.testing.assert_close(own[name], tensor, **EXACT)


def test_on_submodels_others_are_offered_at_the_clients_own_width() -> None:
    task, method = tiny_task(), FedFomoSub()
    past = {c.id: task.narrow(task.initial, c.pruning_rate) for c in CLIENTS}
    for client in CLIENTS:
        state = State({}, method.start(task, CLIENTS, Turn(0, 1, 0)).extras, past)
        download = method.download(task, state, client, Turn(2, 3, 0))
        assert len(download.extras) == 3 * len(download.weights)
        fits = parameters_of(task, client.pruning_rate)
        for slot in range(3):
            other = {n: download.extras[f"{slot}/{n}"] for n in download.weights}
            assert task.cost(other).parameters == fits


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(SubflotError, match="num_others is -1"):
        FedFomo(num_others=-1)
