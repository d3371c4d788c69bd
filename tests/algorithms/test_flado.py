"""Flado: probabilities that follow the agreement of updates."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds import CLIENTS, FULL_CLIENTS, RATES, parameters_of, play, tiny_task
from tolerances import DOUBLE, EXACT, FLOAT32
from torch import Tensor

from subflot.algorithms.base import Client, State, Turn
from subflot.algorithms.fedavg import FedAvg
from subflot.algorithms.flado import (
    KEEP,
    LEAST,
    Flado,
    agreements,
    condensed,
    least_variance,
    projected,
    towards_mean,
    variance,
)
from subflot.channels import put
from subflot.errors import SubflotError

TASK = tiny_task()
TURN = Turn(1, 1, 0)
METHOD = Flado(steps=20)


def random_updates(seed: int, clients: int = 3, channels: int = 5, values: int = 4) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(clients, channels, values, generator=draw, dtype=torch.float64)


def halves(*widths: float, channels: int = 5) -> tuple[Tensor, Tensor]:
    """Even probabilities of clients with these widths."""
    width = torch.tensor(widths, dtype=torch.float64)
    return width[:, None].expand(-1, channels).clone(), width


# ----- budgets


@given(
    seed=st.integers(0, 500),
    channels=st.integers(1, 12),
    widths=st.lists(
        st.sampled_from([1 / 64, 0.05, 0.25, 1 / 3, 0.5, 0.99, 1.0]), min_size=1, max_size=4
    ),
    spread=st.sampled_from([0.1, 1.0, 6.0]),
)
def test_probabilities_are_scaled_to_the_mean_of_the_width(
    seed: int, channels: int, widths: list[float], spread: float
) -> None:
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(widths), channels, generator=draw, dtype=torch.float64)
    keep, width = (noise * spread).exp(), torch.tensor(widths, dtype=torch.float64)
    found = projected(keep, width)
    torch.testing.assert_close(found.mean(1), width, **DOUBLE)
    least = width.clamp(max=LEAST)
    assert (found >= least[:, None] - 1e-12).all()
    assert (found <= 1).all()
    # Those between the ends keep their proportions.
    for row, old in zip(found, keep, strict=True):
        inside = (row > LEAST + 1e-9) & (row < 1 - 1e-9)
        if inside.sum() > 1:
            scale = row[inside] / old[inside]
            torch.testing.assert_close(scale, scale[:1].expand_as(scale), rtol=1e-6, atol=0.0)


def test_a_full_client_keeps_everything() -> None:
    assert projected(torch.tensor([[0.05, 1.0, 0.3]]).double(), torch.ones(1).double()).eq(1).all()


# ----- what is drawn


def test_at_the_start_narrow_submodels_lie_in_wide_ones() -> None:
    state = METHOD.start(TASK, CLIENTS, Turn(0, 1, 0))
    for number in range(1, 8):
        turn = Turn(number, 9, 0)
        chosen = [METHOD.kept(TASK, state, client, turn) for client in CLIENTS]
        for wide, narrow in pairwise(chosen):
            for space, index in narrow.items():
                assert set(index.tolist()) <= set(wide[space].tolist())
        for client, kept in zip(CLIENTS, chosen, strict=True):
            counts = TASK.channels.kept_sizes(client.pruning_rate)
            assert {space: len(index) for space, index in kept.items()} == counts
            assert all(index.tolist() == sorted(set(index.tolist())) for index in kept.values())


def test_a_channel_with_a_high_probability_is_kept_more_often() -> None:
    keep = torch.ones(1, 24, dtype=torch.float64)
    keep[0, -12:] = torch.tensor([1.0, 1.0] + [0.1] * 10)
    state = State(TASK.initial, {KEEP: keep})
    draws = [
        METHOD.kept(TASK, state, Client(0, 0.75), Turn(number, 999, 0))["hidden"]
        for number in range(1, 301)
    ]
    often = torch.cat(draws).bincount(minlength=12) / 300
    assert often[:2].min() > 0.8
    assert 0 < often[2:].min() <= often[2:].max() < 0.3


def test_a_rate_that_changed_is_served_from_the_same_probabilities() -> None:
    state, _ = play(METHOD, TASK)
    for rate in RATES:
        kept = METHOD.kept(TASK, state, Client(1, rate), TURN)
        assert {s: len(i) for s, i in kept.items()} == TASK.channels.kept_sizes(rate)


# ----- agreement


def test_agreement_is_the_products_of_what_clients_changed() -> None:
    _, parts = play(METHOD, TASK)
    changes = []
    for part in parts:
        full, owned = put(part.upload.weights, TASK.initial, TASK.channels, part.upload.kept)
        changes.append({n: (TASK.initial[n] - full[n]) * owned[n] for n in full})
    found = agreements(torch.stack([part.upload.extras["stem"] for part in parts]))
    for channel in range(8):
        for one in range(4):
            for other in range(4):
                # A residual sum: both layers that make the channel.
                expected = sum(
                    (changes[one][n][channel] * changes[other][n][channel]).sum()
                    for n in ("stem.weight", "outer.weight")
                )
                torch.testing.assert_close(found[channel, one, other], expected, **FLOAT32)
    missing = [c for c in range(12) if c not in parts[-1].upload.kept["hidden"].tolist()]
    assert parts[-1].upload.extras["hidden"][missing].eq(0).all()
    assert parts[-1].upload.extras["hidden"].abs().sum() > 0


def test_short_rows_stay_and_long_ones_keep_their_products_on_average() -> None:
    one, other = random_updates(0, 2, 1, 200)
    draws = []
    for seed in range(300):
        short = [condensed(r, 50, torch.Generator().manual_seed(seed)) for r in (one, other)]
        assert short[0].shape == (1, 50)
        draws.append(float((short[0] * short[1]).sum()))
    found, true = torch.tensor(draws), float((one * other).sum())
    # Five standard errors.
    assert abs(float(found.mean()) - true) < 5 * float(found.std()) / 300**0.5
    assert condensed(one, 200, torch.Generator()) is one


# ----- variance


@given(seed=st.integers(0, 200))
def test_variance_is_least_where_everything_is_kept(seed: int) -> None:
    agreement = agreements(random_updates(seed))
    ones = torch.ones(3, 5, dtype=torch.float64)
    torch.testing.assert_close(variance(agreement, ones), agreement.sum(), **DOUBLE)
    keep = torch.rand(3, 5, generator=torch.Generator().manual_seed(seed)).double().clamp(min=LEAST)
    assert variance(agreement, keep) >= agreement.sum() - 1e-9


def test_variance_is_the_mean_squared_length_of_the_merged_update() -> None:
    updates = random_updates(1)
    keep = torch.tensor([[0.2, 0.9, 0.5, 1.0, 0.4]] * 2 + [[0.7, 0.3, 0.5, 0.1, 0.8]]).double()
    draw = torch.Generator().manual_seed(0)
    thresholds = torch.rand(40_000, 1, 5, generator=draw).double()
    masks = (keep >= thresholds) / keep
    merged = torch.einsum("tcn,cnv->tnv", masks, updates)
    lengths = merged.square().sum((1, 2))
    # Five standard errors; and on average the merged update is what it was without masks.
    error = 5 * lengths.std() / len(lengths) ** 0.5
    assert (lengths.mean() - variance(agreements(updates), keep)).abs() < error
    mean_error = 5 * merged.std(0) / len(merged) ** 0.5
    assert ((merged.mean(0) - updates.sum(0)).abs() < mean_error + 1e-12).all()


@given(seed=st.integers(0, 100))
def test_the_search_never_ends_above_where_it_began_and_keeps_the_budgets(seed: int) -> None:
    agreement = agreements(random_updates(seed))
    start, width = halves(0.5, 0.25, 1.0)
    found = least_variance(agreement, start, width, 30)
    assert variance(agreement, found) <= variance(agreement, start)
    torch.testing.assert_close(found.mean(1), width, **DOUBLE)


def test_the_search_comes_close_to_the_least_variance_of_one_client() -> None:
    # Alone, J is the sum of squares over probabilities, least where they go with the lengths.
    updates = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]], dtype=torch.float64)
    start, width = halves(0.4, channels=4)
    found = least_variance(agreements(updates), start, width, 50)
    best = torch.tensor([[0.16, 0.32, 0.48, 0.64]], dtype=torch.float64)
    torch.testing.assert_close(found, best, **FLOAT32)


def test_clients_with_the_same_updates_and_budgets_get_the_same_probabilities() -> None:
    updates = random_updates(2)
    updates[1] = updates[0]
    start, width = halves(0.5, 0.5, 0.25)
    found = least_variance(agreements(updates), start, width, 50)
    torch.testing.assert_close(found[0], found[1], **EXACT)
    assert not torch.allclose(found[0], start[0])


@pytest.mark.parametrize("rule", ["variance", "alignment"])
def test_a_channel_where_one_client_disagrees_is_kept_least(rule: str) -> None:
    updates = torch.ones(3, 5, 4, dtype=torch.float64)
    updates[2, 3] = -1
    start, width = halves(0.5, 0.5, 0.5)
    agreement = agreements(updates / 3)
    if rule == "variance":
        found = least_variance(agreement, start, width, 200)
    else:
        found = towards_mean(agreement, start, width, 0.1)
    assert found.argmin(dim=1).tolist() == [3, 3, 3]
    assert found[2, 3] <= found[:2, 3].min() + 1e-12


def test_alignment_by_hand() -> None:
    updates = torch.tensor([[[1.0], [2.0]], [[1.0], [-1.0]]], dtype=torch.float64)
    start, width = halves(0.5, 0.5, channels=2)
    found = towards_mean(agreements(updates * 0.5), start, width, 0.1)
    # The mean update is (1, 1/2): the first client agrees by 1 and 1, the second by 1 and -1/2.
    second = torch.tensor([0.6, 0.45]) / 1.05
    torch.testing.assert_close(found[0], torch.tensor([0.5, 0.5]).double(), **DOUBLE)
    torch.testing.assert_close(found[1], second.double(), **FLOAT32)


# ----- rounds


def test_full_clients_reproduce_fedavg_to_the_bit() -> None:
    drawn, _ = play(METHOD, TASK, FULL_CLIENTS, rounds=2)
    plain, _ = play(FedAvg(), TASK, FULL_CLIENTS, rounds=2)
    torch.testing.assert_close(drawn.weights, plain.weights, **EXACT)
    assert drawn.extras[KEEP].eq(1).all()


@pytest.mark.parametrize("rule", ["variance", "alignment"])
def test_only_participants_change_their_probabilities(rule: str) -> None:
    method = Flado(steps=20, rule=rule)  # type: ignore[arg-type]
    start = method.start(TASK, CLIENTS, Turn(0, 1, 0))
    state, _ = play(method, TASK, CLIENTS[1:3], state=start)
    keep = state.extras[KEEP]
    assert keep[[0, 3]].eq(1).all()
    assert keep[1].std() > 0.01
    widths = torch.tensor([6 / 8, 3 / 4, 9 / 12], dtype=torch.float64)
    means = torch.stack([part.mean() for part in keep[1].split([8, 4, 12])])
    torch.testing.assert_close(means, widths, **DOUBLE)
    assert start.extras[KEEP].eq(1).all()


def test_updates_count_by_the_examples_of_their_clients() -> None:
    state, parts = play(METHOD, TASK, CLIENTS[1:])
    counts = torch.tensor([part.upload.num_examples for part in parts], dtype=torch.float64)
    assert counts.unique().numel() == 3
    updates = torch.stack([part.upload.extras["hidden"] for part in parts]).double()
    agreement = agreements(updates * (counts / counts.sum())[:, None, None])
    start, width = halves(0.75, 0.5, 0.25, channels=12)
    found = least_variance(agreement, start, width, METHOD.steps)
    torch.testing.assert_close(state.extras[KEEP][1:, -12:], found, **FLOAT32)


def test_a_round_without_uploads_changes_nothing() -> None:
    start = METHOD.start(TASK, CLIENTS, Turn(0, 1, 0))
    after = METHOD.aggregate(TASK, start, [], TURN)
    torch.testing.assert_close(after.weights, dict(TASK.initial), **EXACT)
    assert torch.equal(after.extras[KEEP], start.extras[KEEP])


def test_clients_train_within_their_budgets() -> None:
    for part in play(METHOD, TASK, rounds=2)[1]:
        used = TASK.cost(part.upload.weights).parameters
        assert used == parameters_of(TASK, part.client.pruning_rate)


def test_a_sketch_of_nothing_is_refused() -> None:
    with pytest.raises(SubflotError, match="sketch_size is 0"):
        Flado(sketch_size=0)
