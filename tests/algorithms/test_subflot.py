"""SubFLOT against the paper's equations in plain loops, and each of its switches."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from equations import LAYERS, aligned, distances, fused, matching, mean
from federations import CLIENTS, by_autograd, final_state, run_rounds, tiny_data, tiny_task
from hand_made import EXAMPLES, RATES, ROWS, TURN, assert_same, at_work, model_at, task
from tolerances import DOUBLE, EXACT, FLOAT32
from torch.testing import assert_close

from subflot.algorithms import make
from subflot.algorithms.base import Arrival, Client, ClientContext, Download, State, Upload
from subflot.channels import take
from subflot.channels.keep import largest, prefix
from subflot.errors import SubflotError
from subflot.task import LocalTraining, Task
from subflot.weights import Weights


def updated(download: Download, client: int) -> Upload:
    """What a client returns whose training adds numbers that are known."""
    step = model_at(RATES[client], 20 + client)
    weights = {name: tensor + 0.3 * step[name] for name, tensor in download.weights.items()}
    return Upload(weights, EXAMPLES[client])


def one_round(state: State, **settings: Any) -> tuple[list[Download], State]:
    """A round of the program around that training."""
    method = make("subflot", **settings)
    downloads = [method.download(task(), state, client, TURN) for client in ROWS]
    arrivals = []
    for client, download in zip(ROWS, downloads, strict=True):
        upload = updated(download, client.id)
        arrivals.append(Arrival(client, method.place(task(), state, client, upload, TURN)))
    return downloads, method.aggregate(task(), state, iter(arrivals), TURN)


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_a_round_equals_the_equations_in_loops(share: float) -> None:
    state = at_work()
    downloads, after = one_round(state, global_share=share)
    returned = []
    for client, download in enumerate(downloads):
        own = state.history[client]
        assert_same(download.weights, fused(aligned(state.weights, own), own, share), **DOUBLE)
        returned.append(aligned(updated(download, client).weights, state.weights))
    assert_same(after.weights, mean(returned, EXAMPLES), **DOUBLE)


def test_plans_of_the_hand_made_round_do_move_channels() -> None:
    state = at_work()
    moved = aligned(state.weights, state.history[0])
    assert not torch.allclose(moved["0.weight"], state.weights["0.weight"])
    assert sorted(moved["0.bias"].tolist()) == sorted(state.weights["0.bias"].tolist())


def test_the_distances_of_the_theorem_are_recorded() -> None:
    state = at_work()
    method, client = make("subflot"), ROWS[1]
    download = method.download(task(), state, client, TURN)
    upload = method.place(task(), state, client, updated(download, 1), TURN)

    def distance(narrow: Weights, wide: Weights) -> float:
        total = 0.0
        for name, tensor in wide.items():
            filled = torch.zeros_like(tensor)
            filled[tuple(slice(n) for n in narrow[name].shape)] = narrow[name]
            total += float((filled - tensor).square().sum())
        return total

    trained = updated(download, 1).weights
    assert download.metrics["delta_p"] == pytest.approx(distance(download.weights, state.weights))
    assert upload.metrics["delta_ot"] == pytest.approx(distance(trained, upload.weights))


def test_what_a_plan_moves_is_recorded_by_layer() -> None:
    state = at_work()
    order = {"0": [1, 0, 2, 3, 4, 5], "2": [0, 2, 3, 1]}  # Two of six move, and three of four.
    full = dict(state.weights)
    own = {
        "0.weight": full["0.weight"][order["0"]],
        "0.bias": full["0.bias"][order["0"]],
        "2.weight": full["2.weight"][order["2"]][:, order["0"]],
        "2.bias": full["2.bias"][order["2"]],
        "4.weight": full["4.weight"][:, order["2"]],
        "4.bias": full["4.bias"],
    }
    state = replace(state, history={0: own})
    told = make("subflot").download(task(), state, ROWS[0], TURN).metrics
    moved = {name: share for name, share in told.items() if name.startswith("moved/")}
    assert moved == pytest.approx({"moved/0.weight": 2 / 6, "moved/2.weight": 3 / 4})
    told = make("subflot", extract="prefix").download(task(), state, ROWS[0], TURN).metrics
    assert told.keys() == {"delta_p"}


# ----- who stands for a client


def test_a_client_without_history_starts_from_the_first_channels_of_the_present_model() -> None:
    state = at_work(history=(0, 2))
    own = task().narrow(state.weights, 0.5)
    download = make("subflot").download(task(), state, ROWS[1], TURN)
    assert_same(download.weights, fused(aligned(state.weights, own), own, 0.5), **DOUBLE)


@pytest.mark.parametrize(
    ("rate", "share"),
    # A model that was widened has channels twice; which of the two is matched is left open.
    [(0.0, 0.0), (0.75, 0.0), (0.75, 0.5)],
)
def test_a_changed_rate_carries_the_history_to_the_new_width(rate: float, share: float) -> None:
    state, client = at_work(), replace(ROWS[1], pruning_rate=rate)
    own = aligned(state.history[1], task().narrow(state.weights, rate))
    expected = fused(aligned(state.weights, own), own, share)
    download = make("subflot", global_share=share).download(task(), state, client, TURN)
    assert_same(download.weights, expected, **DOUBLE)


def test_a_proxy_takes_the_place_of_history() -> None:
    state, rate = at_work(), 0.5
    references = {
        "prefix": task().narrow(state.weights, rate),
        "magnitude": take(
            state.weights, task().channels, largest(task().channels, rate, state.weights)
        ),
    }
    for proxy, own in references.items():
        method = make("subflot", proxy=proxy)
        expected = fused(aligned(state.weights, own), own, 0.5)
        for known in (state, at_work(history=())):
            found = method.download(task(), known, ROWS[1], TURN).weights
            assert_same(found, expected, **DOUBLE)


def test_a_random_proxy_is_drawn_anew_for_each_round_and_client() -> None:
    state, method = at_work(), make("subflot", proxy="random", global_share=0.0)
    found = [
        method.download(task(), state, client, turn).weights
        for client, turn in (
            (Client(0, 0.5), TURN),
            (Client(0, 0.5), TURN),
            (Client(1, 0.5), TURN),
            (Client(0, 0.5), replace(TURN, round=4)),
        )
    ]
    rows = [row.tolist() for row in state.weights["0.weight"]]
    kept = [tuple(rows.index(row.tolist()) for row in one["0.weight"]) for one in found]
    assert kept[0] == kept[1]
    assert len(set(kept)) == 3


# ----- the parts that can be left out


def test_without_otp_the_first_channels_are_mixed_with_the_history() -> None:
    state = at_work()
    for client in ROWS:
        download = make("subflot", extract="prefix", global_share=0.3).download(
            task(), state, client, TURN
        )
        slice_ = task().narrow(state.weights, client.pruning_rate)
        assert_same(download.weights, fused(slice_, state.history[client.id], 0.3), **DOUBLE)


def test_without_otp_the_first_channels_are_sent_as_they_are() -> None:
    state = at_work()
    sent = make("subflot", extract="slice").download(task(), state, ROWS[1], TURN)
    assert_same(sent.weights, task().narrow(state.weights, 0.5), **EXACT)


def test_without_ota_each_entry_is_the_mean_of_those_who_hold_its_position() -> None:
    state = at_work()
    downloads, after = one_round(state, merge="position")
    for name, old in state.weights.items():
        for place in itertools.product(*map(range, old.shape)):
            total = count = 0.0
            for client, download in enumerate(downloads):
                tensor = updated(download, client).weights[name]
                if all(at < length for at, length in zip(place, tensor.shape, strict=True)):
                    total += EXAMPLES[client] * float(tensor[place])
                    count += EXAMPLES[client]
            assert float(after.weights[name][place]) == pytest.approx(total / count)


def context(client: Client, local: LocalTraining) -> tuple[Task, ClientContext]:
    examples = tiny_data().train(client.id)
    return tiny_task(local), ClientContext(client, examples, {}, TURN)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}])
@pytest.mark.parametrize("client", CLIENTS[1:3])
def test_sar_descends_the_loss_of_the_paper(client: Client, settings: dict[str, float]) -> None:
    tiny, given = context(client, LocalTraining(3, 5, 0.02, **settings))
    start = tiny.narrow(tiny.initial, client.pruning_rate)
    upload, _ = make("subflot", penalty_weight=5.0).train(tiny, Download(start), given)
    # Eq. 7: lambda rho |W - W_anchor|^2, which is `pull / 2` times the square.
    pull = 2 * 5.0 * client.pruning_rate
    draw = given.generator("batches")
    expected = by_autograd(tiny, start, given.examples, draw, pull, start)
    for name, tensor in expected.items():
        # Sums of a dozen steps, taken in another order.
        assert_close(upload.weights[name], tensor, rtol=1e-4, atol=1e-5)
    assert upload.num_examples == len(given.examples)


def test_without_sar_a_client_trains_as_in_fedavg() -> None:
    tiny, given = context(CLIENTS[2], LocalTraining(2, 5, 0.1))
    sent = Download(tiny.narrow(tiny.initial, 0.5))
    found = {
        name: make(name, **settings).train(tiny, sent, given)[0].weights
        for name, settings in (("subflot", {"penalty_weight": 0.0}), ("fedavg", {}))
    }
    assert_same(found["subflot"], found["fedavg"], **EXACT)


def test_the_full_model_is_not_pulled() -> None:
    tiny, given = context(CLIENTS[0], LocalTraining(2, 5, 0.1))
    sent = Download(tiny.initial)
    one, other = (make("subflot", penalty_weight=w).train(tiny, sent, given)[0] for w in (0.0, 9.0))
    assert_same(one.weights, other.weights, **EXACT)


# ----- one-to-one plans


def test_a_partial_download_is_a_part_of_the_global_model_as_it_is() -> None:
    state = at_work()
    method = make("subflot-partial", global_share=1.0)
    for client in ROWS:
        part = method.download(task(), state, client, TURN).weights
        rows = [row.tolist() for row in state.weights["0.weight"]]
        first = [rows.index(row.tolist()) for row in part["0.weight"]]
        biases = state.weights["2.bias"].tolist()
        second = [biases.index(bias) for bias in part["2.bias"].tolist()]
        assert len(set(first)) == len(first)
        spaces = task().channels.prunable
        kept = dict(zip(spaces, map(torch.tensor, (first, second)), strict=True))
        assert_same(part, take(state.weights, task().channels, kept), **EXACT)


def test_a_partial_merge_is_the_mean_over_the_owners_of_each_matched_place() -> None:
    state = at_work()
    method = make("subflot-partial")
    total = {n: torch.zeros_like(t) for n, t in state.weights.items()}
    count = {n: torch.zeros_like(t) for n, t in state.weights.items()}
    arrivals = []
    for client in ROWS:
        upload = updated(method.download(task(), state, client, TURN), client.id)
        arrivals.append(Arrival(client, method.place(task(), state, client, upload, TURN)))
        places = [list(range(3))]
        for layer in LAYERS[:2]:
            own, wide = upload.weights[f"{layer}.weight"], state.weights[f"{layer}.weight"]
            entered = torch.zeros(len(own), wide.shape[1], dtype=torch.float64)
            entered[:, places[-1]] = own
            places.append(matching(distances(entered, wide)))
        places.append([0, 1])
        for layer, before, after in zip(LAYERS, places, places[1:], strict=False):
            for name, where in (
                (f"{layer}.weight", (torch.tensor(after)[:, None], torch.tensor(before))),
                (f"{layer}.bias", (torch.tensor(after),)),
            ):
                total[name][where] += upload.num_examples * upload.weights[name]
                count[name][where] += upload.num_examples
    merged = method.aggregate(task(), state, iter(arrivals), TURN).weights
    for name, old in state.weights.items():
        expected = torch.where(count[name] > 0, total[name] / count[name].clamp(min=1), old)
        assert_close(merged[name], expected, **DOUBLE)


# ----- settings that choose themselves


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ((1.0, 1.0), 0.3),  # All agree.
        ((1.0, -1.0), 0.9),  # Nothing is left of their mean.
        # The mean is 1/2 and its square 1/4; the squares' mean is 1/2: half of it is lost.
        ((1.0, 0.0), 0.6),
    ],
)
def test_an_automatic_share_follows_how_far_updates_agree(
    steps: tuple[float, ...], share: float
) -> None:
    method, state, way = make("subflot", global_share="auto"), at_work(), model_at(0.0, 40)
    arrivals = []
    for number, step in enumerate(steps):  # Along one direction, too short to mix channels up.
        moved = {name: tensor + 0.01 * step * way[name] for name, tensor in state.weights.items()}
        placed = method.place(task(), state, Client(number), Upload(moved, 10), TURN)
        arrivals.append(Arrival(Client(number), placed))
    after = method.aggregate(task(), state, iter(arrivals), TURN)
    told = replace(after, weights=state.weights, history=state.history)
    found = method.download(task(), told, ROWS[1], TURN).weights
    own = state.history[1]
    assert_same(found, fused(aligned(state.weights, own), own, share), **FLOAT32)


@pytest.mark.parametrize(
    ("rates", "weight"), [((0.0, 0.25, 0.5, 0.75), 1.0), ((0.5, 0.5), 0.0), ((0.0, 0.559), 1.0)]
)
def test_an_automatic_penalty_follows_the_spread_of_the_rates(
    rates: tuple[float, ...], weight: float
) -> None:
    method = make("subflot", penalty_weight="auto")
    tiny, given = context(CLIENTS[2], LocalTraining(2, 5, 0.1))
    state = method.start(tiny, [Client(n, rate) for n, rate in enumerate(rates)], TURN)
    sent = method.download(tiny, state, CLIENTS[2], TURN)
    found = method.train(tiny, sent, given)[0].weights
    expected = make("subflot", penalty_weight=weight).train(tiny, sent, given)[0].weights
    for name, tensor in expected.items():
        assert_close(found[name], tensor, rtol=1e-3, atol=1e-4)  # 0.2795 has four digits.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"global_share": 1.5}, "global_share is 1.5"),
        ({"global_share": "often"}, "global_share is 'often'"),
        ({"penalty_weight": -1.0}, "penalty_weight is -1.0"),
        ({"plan": "partial"}, "partial plans of branches have no average"),
    ],
)
def test_settings_without_meaning_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SubflotError, match=message):
        make("subflot", **settings)


def test_a_client_that_takes_no_part_keeps_its_history(tmp_path) -> None:  # type: ignore[no-untyped-def]
    early = run_rounds(make("subflot"), tmp_path / "early", clients=CLIENTS[:2], rounds=1)
    before = {n: t.clone() for n, t in final_state(early).history[1].items()}

    def roster(round: int) -> Sequence[Client]:
        return CLIENTS[:2] if round == 1 else CLIENTS[::2]

    late = run_rounds(make("subflot"), tmp_path / "late", clients=roster, rounds=2)
    history = final_state(late).history
    assert sorted(history) == [0, 1, 2]
    assert_same(history[1], before, **EXACT)


def test_prefix_of_the_wide_layers_is_what_the_loops_expect() -> None:
    sizes = [tuple(map(len, prefix(task().channels, rate).values())) for rate in RATES]
    assert sizes == [(6, 4), (3, 2), (2, 1)]
