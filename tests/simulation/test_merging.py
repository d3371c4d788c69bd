"""Merging when a client is hostile: by hand, against loops over entries, and on a federation."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
import torch
from federations import (
    WHOLE,
    differing,
    final_state,
    metrics_of,
    run_rounds,
    tiny_data,
    tiny_task,
)
from hypothesis import given
from hypothesis import strategies as st
from tolerances import FLOAT32

from subflot.algorithms import make
from subflot.algorithms.base import Algorithm, Arrival, Client, State, Upload
from subflot.channels import take
from subflot.errors import SubflotError, UnknownName
from subflot.experiments import RunConfig
from subflot.simulation.merging import (
    MERGING,
    Bound,
    Extent,
    agreed,
    clipped,
    extent_of,
    fault_among,
    is_odd,
    robust_mean,
    usual,
)
from subflot.weights import Weights

Act = Callable[[Weights, Upload], Upload]
ROBUST = MERGING[1:]


# ----- by hand and against loops


def by_loop(merging: str, old: float, values: list[float], shares: list[float]) -> float:
    """Merge one entry of those who own it."""
    if not values:
        return old
    if len(values) < 3:
        return old + mean(s * (v - old) for s, v in zip(shares, values, strict=True))
    if merging == "median":
        return median(values)
    ends = min(-(-len(values) // 5), (len(values) - 1) // 2)
    return mean(sorted(values)[ends : len(values) - ends])


@given(st.integers(1, 12), st.integers(0, 2**31), st.sampled_from(["median", "trimmed"]))
def test_each_entry_is_merged_among_those_who_own_it(clients: int, seed: int, merging: str) -> None:
    draw = np.random.default_rng(seed)
    values = draw.normal(size=(clients, 5)).astype(np.float32)
    values[draw.random((clients, 5)) < 0.4] = np.nan
    old = draw.normal(size=5).astype(np.float32)
    shares = draw.random(clients).tolist()
    found = robust_mean(merging, torch.from_numpy(old), torch.from_numpy(values), shares)
    for at in range(5):
        own = ~np.isnan(values[:, at])
        expected = by_loop(
            merging,
            float(old[at]),
            values[own, at].astype(float).tolist(),
            [share for share, is_own in zip(shares, own, strict=True) if is_own],
        )
        torch.testing.assert_close(float(found[at]), expected, rtol=1e-5, atol=1e-5)


def test_lengths_are_compared_per_entry_whatever_the_width() -> None:
    task = tiny_task()
    state = State(task.initial)
    for rate in (0.0, 0.5):
        kept = {s: torch.arange(n) for s, n in task.channels.kept_sizes(rate).items()}
        moved = {
            name: t + (0.5 if name in task.parameters else 2.0) if t.is_floating_point() else t
            for name, t in take(task.initial, task.channels, kept).items()
        }
        found = extent_of(task, state, Upload(moved, 7, kept))
        assert found.num_examples == 7
        assert (found.parameters, found.statistics) == pytest.approx((0.5, 2.0), rel=1e-6)
        # A method without a global model names no channels: they are the first ones.
        assert extent_of(task, State({}), Upload(moved, 7)) == found


def test_a_change_is_shortened_to_the_median_and_counts_for_as_many_examples() -> None:
    task = tiny_task()
    state = State(task.initial)

    def upload(by: float, examples: int) -> Upload:
        moved = {n: t + by if t.is_floating_point() else t for n, t in task.initial.items()}
        return Upload(moved, examples)

    uploads = [upload(0.5, 10), upload(1.0, 20), upload(8.0, 10**9)]
    extents = [extent_of(task, state, one) for one in uploads]
    counts = []
    for by, one, extent in zip((0.5, 1.0, 1.0), uploads, extents, strict=True):
        arrival = clipped(task, state, Arrival(Client(0), one), extent.bound(usual(extents)))
        counts.append(arrival.upload.num_examples)
        for name, tensor in arrival.upload.weights.items():
            moved = by if tensor.is_floating_point() else 0
            torch.testing.assert_close(tensor, task.initial[name] + moved, **FLOAT32)
    assert counts == [10, 20, 20]
    assert arrival.shortened == pytest.approx(1 / 8)


@pytest.mark.parametrize("merging", ["median", "trimmed"])
def test_clients_of_unlike_widths_get_what_the_owners_of_each_entry_agree_on(merging: str) -> None:
    task = tiny_task()
    state, whole = State(task.initial), torch.arange(4)
    own = [whole, whole, whole, torch.tensor([3, 1])]  # Of the first layer's channels.
    arrivals = []
    for by, index in zip((1.0, 2.0, 3.0, 900.0), own, strict=True):
        kept = {task.channels.prunable[0]: index}
        part = take(task.initial, task.channels, kept)
        moved = {n: t + by if t.is_floating_point() else t for n, t in part.items()}
        arrivals.append((Arrival(Client(0), Upload(moved, 5, kept)), Bound(5, 1.0, 1.0)))
    last = list(agreed(merging, task, state, arrivals))[-1].upload
    before = take(task.initial, task.channels, last.kept)
    # Four own these: the middle is between 2 and 3, and the ends are left out.
    for name in task.parameters:
        torch.testing.assert_close(last.weights[name], before[name] + 2.5, **FLOAT32)
    first = next(agreed(merging, task, state, arrivals)).upload.weights
    by_channel = (first["conv.weight"] - task.initial["conv.weight"]).amax((1, 2, 3))
    torch.testing.assert_close(by_channel, torch.tensor([2.0, 2.5, 2.0, 2.5]), **FLOAT32)


def test_only_what_is_large_and_far_beyond_the_others_is_left_out() -> None:
    honest = [Extent(50, 0.01), Extent(60, 0.02), Extent(70, 0.03)]
    near, far, many = Extent(60, 1.9), Extent(60, 9.0), Extent(10**12 - 1, 0.02)
    assert fault_among(near, [*honest, near]) == ""
    assert "size 9; the round's median is 0.025" in fault_among(far, [*honest, far])
    assert fault_among(far, [honest[0], far]) == ""  # Which of two is wrong?
    assert "claims 999999999999 examples; the round's median is 65" in fault_among(
        many, [*honest, many]
    )
    counts = [50, 60, 70]
    assert not is_odd(0.19, 0.1, 60, counts)
    assert is_odd(0.21, 0.1, 60, counts)
    assert is_odd(0.1, 0.1, 10**12 - 1, [*counts, 10**12 - 1])


# ----- on a federation

CLIENT = 2


def in_round(monkeypatch: pytest.MonkeyPatch, method: Algorithm, round: int, act: Act) -> None:
    """Change what one client returns in a round."""
    kind = type(method)
    train: Any = kind.train

    def changed(self: Any, task: Any, download: Any, context: Any) -> Any:
        upload, memory = train(self, task, download, context)
        if (context.client.id, context.turn.round) == (CLIENT, round):
            upload = act(download.weights, upload)
        return upload, memory

    monkeypatch.setattr(kind, "train", changed)


def times(factor: float) -> Act:
    """Multiply the change that training made."""

    def act(sent: Weights, upload: Upload) -> Upload:
        moved = {
            name: sent[name] + factor * (t - sent[name]) if t.is_floating_point() else t
            for name, t in upload.weights.items()
        }
        return replace(upload, weights=moved)

    return act


@pytest.mark.parametrize("name", ["fedavg", "fedamp"])
def test_a_change_thousands_of_times_as_large_leaves_the_run_as_if_it_had_not_come(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = run_rounds(
        make(name),
        tmp_path / "without",
        clients=lambda round: [c for c in WHOLE if (c.id, round) != (CLIENT, 2)],
    )
    in_round(monkeypatch, make(name), 2, times(9e3))
    folder = run_rounds(make(name), tmp_path / "with", clients=WHOLE)
    lines = metrics_of(folder)
    assert [line["num_rejected"] for line in lines] == [0, 1, 0]
    assert "the round's median is" in lines[1]["clients"]["fault"][CLIENT]
    assert set(differing(folder, without)) == {"metrics.jsonl", "manifest"}


def away(one: Weights, other: Weights) -> float:
    return max(float((one[n] - other[n]).abs().max()) for n in tiny_task().parameters)


@pytest.mark.parametrize("merging", ROBUST)
def test_a_hostile_change_moves_the_model_little(
    merging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"clients": WHOLE, "rounds": 1}
    honest = final_state(run_rounds(make("fedavg"), tmp_path / "honest", **settings)).weights
    in_round(monkeypatch, make("fedavg"), 1, times(-50))
    hit = final_state(run_rounds(make("fedavg"), tmp_path / "hit", **settings)).weights
    held = run_rounds(make("fedavg"), tmp_path / "held", merging=merging, **settings)
    assert away(final_state(held).weights, honest) < away(hit, honest) / 20
    line = metrics_of(held)[0]
    assert line["clients"]["shortened"][CLIENT] < 0.1
    assert line["num_shortened"] == sum(s < 1 for s in line["clients"]["shortened"])


@pytest.mark.parametrize("merging", ["clipped", "median"])
def test_a_robust_run_goes_on_to_the_same_bits_on_any_number_of_workers(
    merging: str, tmp_path: Path
) -> None:
    method = make("heterofl")
    whole = run_rounds(method, tmp_path / "whole", rounds=2, merging=merging)
    run_rounds(method, tmp_path / "part", rounds=2, merging=merging, stop_after=1, workers=2)
    run_rounds(method, tmp_path / "part", rounds=2, merging=merging)
    assert differing(whole, tmp_path / "part") == []
    with pytest.raises(SubflotError, match=f"merging was {merging}, is mean"):
        run_rounds(method, tmp_path / "part", rounds=3)


def test_equal_uploads_are_merged_to_themselves_by_every_method_and_way(tmp_path: Path) -> None:
    """Clients that train nothing leave the model as it is, also where few own an entry."""
    still = replace(tiny_task(), local=replace(tiny_task().local, learning_rate=0.0))
    for name in ("heterofl", "fedmp", "subflot-plus", "fedbn-sub"):
        for merging in ROBUST:
            folder = tmp_path / f"{name}-{merging}"
            folder = run_rounds(make(name), folder, rounds=1, task=still, merging=merging)
            for tensor, value in final_state(folder).weights.items():
                if tensor in still.parameters:
                    torch.testing.assert_close(value, still.initial[tensor], **FLOAT32)


def test_a_way_that_is_unknown_or_has_nothing_to_merge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean `median`"):
        RunConfig.of(merging="medina")
    with pytest.raises(SubflotError, match="merging is median, and fedamp merges no weights"):
        run_rounds(make("fedamp"), tmp_path, data=tiny_data(), merging="median")


def test_the_setting_renames_no_run() -> None:
    plain, named = RunConfig.of(rounds=3), RunConfig.of(rounds=3, merging="mean")
    assert plain.run_id == named.run_id != RunConfig.of(rounds=3, merging="median").run_id
