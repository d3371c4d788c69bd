"""SubFLOT as we recommend it: what each of its settings does."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from federations import CLIENTS, final_state, run_rounds, tiny_task
from hand_made import EXAMPLES, RATES, ROWS, TURN, assert_same, at_work, model_at, task
from tolerances import DOUBLE, EXACT
from torch.testing import assert_close

from subflot.algorithms import make
from subflot.algorithms.base import Arrival, Client, ClientContext, Place, State, Turn, Upload
from subflot.algorithms.subflot_plus import KEEPS_HEAD, LABELS, distance_of_labels, head_of
from subflot.channels import take
from subflot.channels.keep import prefix
from subflot.channels.scale import keep_scale, undo_scale
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.weights import Weights

FIRST = Turn(1, 5, 0)


def test_a_client_that_changes_nothing_changes_nothing() -> None:
    """What is extracted alone returns to where it came from, in the scale that it had there."""
    state = at_work()
    method = make("subflot-plus", global_share=1.0)
    arrivals = []
    for client in ROWS:
        sent = method.download(task(), state, client, TURN)
        upload = Upload(sent.weights, EXAMPLES[client.id], sent.kept)
        arrivals.append(Arrival(client, method.place(task(), state, client, upload, TURN)))
        assert {
            space: len(index) for space, index in sent.kept.items()
        } == task().channels.kept_sizes(client.pruning_rate)
    merged = method.aggregate(task(), state, iter(arrivals), TURN).weights
    assert_same(merged, state.weights, **DOUBLE)


def test_a_kept_scale_multiplies_each_layer_by_the_inputs_that_it_lost() -> None:
    state = at_work()
    plain, scaled = (
        make("subflot-plus", scale=scale, global_share=1.0, extract="prefix", label_skew="none")
        .download(task(), replace(state, history={}), ROWS[2], TURN)
        .weights
        for scale in (False, True)
    )
    # Of 6 and 4 channels a client of rate 0.75 keeps 2 and 1.
    for name, factor in (("0.weight", 1), ("2.weight", 3), ("4.weight", 4), ("2.bias", 1)):
        assert_close(scaled[name], factor * plain[name], **DOUBLE)


def test_a_history_is_read_in_the_scale_of_the_full_model() -> None:
    """A client that left its part of the global model as it was is at no distance from it."""
    state, method = at_work(), make("subflot-plus")
    client = ROWS[2]
    order = {s: torch.arange(n).flip(0) for s, n in task().channels.kept_sizes(0.75).items()}
    own = take(state.weights, task().channels, order)
    known = replace(state, history={client.id: keep_scale(own, task().channels)})
    sent = method.download(task(), known, client, TURN)
    assert {s: index.tolist() for s, index in sent.kept.items()} == {
        s: index.tolist() for s, index in order.items()
    }
    assert_same(sent.weights, known.history[client.id], **DOUBLE)


def test_spread_places_give_every_channel_about_as_many_owners() -> None:
    method, state = make("subflot-plus", places="spread"), replace(at_work(), history={})
    owners = torch.zeros(task().channels.sizes["0"])
    for number in range(60):
        owners[method.download(task(), state, Client(number, 0.5), TURN).kept["0"]] += 1
    assert owners.sum() == 60 * 3
    assert owners.max() - owners.min() <= 3


def test_plans_that_mix_channels_cannot_return_along_the_extraction() -> None:
    with pytest.raises(SubflotError, match="balanced plans mix channels"):
        make("subflot-plus", plan="balanced")


# ----- matching when the number of rounds has doubled


@pytest.mark.parametrize(
    ("last", "now", "is_matched"), [(1, 2, True), (2, 3, False), (3, 4, True), (4, 7, False)]
)
def test_channels_are_matched_anew_when_the_rounds_have_doubled(
    last: int, now: int, is_matched: bool
) -> None:
    """The history lies at other channels than it fits best: matching finds those."""
    state, client = at_work(), ROWS[1]
    fitting, placed = (
        {s: start + torch.arange(n) for s, n in task().channels.kept_sizes(0.5).items()}
        for start in (1, 0)
    )
    own = keep_scale(take(state.weights, task().channels, fitting), task().channels)
    known = replace(state, history={1: own}, places={1: Place(last, placed)})
    sent = make("subflot-plus").download(task(), known, client, Turn(now, 9, 0))
    expected = fitting if is_matched else placed
    assert {s: i.tolist() for s, i in sent.kept.items()} == {
        s: i.tolist() for s, i in expected.items()
    }
    assert ("moved/0.weight" in sent.metrics) == is_matched
    always = make("subflot-plus", rematch="always").download(task(), known, client, Turn(now, 9, 0))
    assert always.kept["0"].tolist() == fitting["0"].tolist()


def test_a_client_of_a_new_width_is_matched_anew() -> None:
    state = replace(at_work(), places={1: Place(2, prefix(task().channels, 0.5))})
    sent = make("subflot-plus").download(task(), state, Client(1, 0.75), TURN)
    assert [len(index) for index in sent.kept.values()] == [2, 1]
    assert sent.weights["0.weight"].shape == (2, 3)


def test_a_run_remembers_where_each_client_was_merged(tmp_path) -> None:  # type: ignore[no-untyped-def]
    method = make("subflot-plus", places="spread")
    state = final_state(run_rounds(method, tmp_path, clients=CLIENTS, rounds=3))
    for client in CLIENTS:
        place = state.places[client.id]
        assert place.round == 3
        sizes = tiny_task().channels.sizes_of(state.history[client.id])
        assert {s: len(index) for s, index in place.channels.items()} == {
            space: sizes[space] for space in tiny_task().channels.prunable
        }
        again = method.download(tiny_task(), state, client, Turn(4, 9, 0))  # Matched, as due.
        assert again.kept.keys() == place.channels.keys()
        between = method.download(tiny_task(), state, client, Turn(3, 9, 0))
        assert all(torch.equal(between.kept[s], i) for s, i in place.channels.items())


# ----- labels that differ


def informed(*shares: tuple[float, ...]) -> State:
    """A first round after which clients have said which share of their examples a class has."""
    method, state, arrivals = make("subflot-plus"), replace(at_work(), history={}), []
    for number, share in enumerate(shares):
        client = Client(number, RATES[number])
        sent = method.download(task(), state, client, FIRST)
        claim = torch.tensor(share, dtype=torch.float64)
        upload = Upload(sent.weights, 10**6, sent.kept, {LABELS: claim})
        arrivals.append(Arrival(client, method.place(task(), state, client, upload, FIRST)))
    return method.aggregate(task(), state, iter(arrivals), FIRST)


@pytest.mark.parametrize(
    ("shares", "differ"),
    [
        (((1.0, 0.0), (0.0, 1.0)), True),
        (((0.9, 0.1), (0.9, 0.1)), False),
        (((0.75, 0.25), (0.25, 0.75)), True),
        (((0.65, 0.35), (0.35, 0.65)), False),
        (((1.0, 1.0), (0.0, 0.0)), False),  # Not shares: they do not add up to one.
        (((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)), False),  # There are two classes.
        ((), False),
    ],
)
def test_labels_differ_if_clients_would_have_to_exchange_many(
    shares: tuple[tuple[float, ...], ...], differ: bool
) -> None:
    assert bool(informed(*shares).extras["labels_differ"]) == differ


def test_few_examples_of_the_same_classes_do_not_count_as_different() -> None:
    """Chance alone moves the shares of ten classes by a third with ten examples each."""
    draw = np.random.default_rng(0)
    for examples in (10, 100, 1000):
        drawn = draw.multinomial(examples, np.full(10, 0.1), size=200) / examples
        claims = [(examples, torch.from_numpy(one)) for one in drawn]
        assert distance_of_labels(claims) < 0.02
        skewed = [(examples, torch.eye(10, dtype=torch.float64)[n % 10]) for n in range(200)]
        # Nine of ten examples would have to change, less what chance does to ten.
        assert distance_of_labels(skewed) == pytest.approx(0.9, abs=0.4 / examples**0.5 * 3.1623)


def test_a_client_says_its_shares_in_the_first_round_and_only_if_asked() -> None:
    state, client = at_work(), ROWS[1]
    examples = Examples(torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 1]))
    for label_skew, turn, expected in (
        ("auto", FIRST, [0.25, 0.75]),
        ("auto", TURN, None),
        ("strong", FIRST, None),
    ):
        method = make("subflot-plus", label_skew=label_skew)
        sent = method.download(task(), state, client, turn)
        upload, _ = method.train(task(), sent, ClientContext(client, examples, {}, turn))
        said = upload.extras.get(LABELS)
        assert (None if said is None else said.tolist()) == expected


def test_where_labels_differ_nothing_is_scaled_and_the_global_classifier_is_trained() -> None:
    method, client = make("subflot-plus", global_share=0.5), ROWS[1]
    after = informed((1.0, 0.0), (0.0, 1.0))
    own = model_at(0.5, 11)
    # What was trained in the first round is scaled, for nobody knew then; later it is not.
    for round, history in ((1, keep_scale(own, task().channels)), (2, own)):
        place = Place(round, prefix(task().channels, 0.5))
        known = replace(after, history={1: history}, places={1: place})
        sent = method.download(task(), known, client, Turn(3, 5, 0))
        part = take(after.weights, task().channels, sent.kept)
        for name, tensor in sent.weights.items():
            is_head = name.startswith("4.")
            expected = part[name] if is_head else (part[name] + own[name]) / 2
            assert_close(tensor, expected, **DOUBLE)
        assert sent.extras[KEEPS_HEAD]


@pytest.mark.parametrize(("label_skew", "share"), [("none", 0.5), ("strong", 1.0)])
def test_alpha_is_all_of_the_global_model_where_labels_differ(
    label_skew: str, share: float
) -> None:
    usual, given = (
        make("subflot-plus", label_skew=label_skew, **settings).download(
            task(), at_work(), ROWS[1], TURN
        )
        for settings in ({}, {"global_share": share})
    )
    assert_same(usual.weights, given.weights, **EXACT)


def test_a_kept_head_is_used_on_what_comes_next() -> None:
    method, client, state = make("subflot-plus", label_skew="strong"), ROWS[1], at_work()
    sent = method.download(task(), state, client, TURN)
    examples = Examples(torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1] * 3))
    context = ClientContext(client, examples, {}, TURN)
    assert method.extracted(task(), sent, context) == sent.weights  # It has kept nothing yet.
    upload, memory = method.train(task(), sent, context)
    later = method.download(task(), replace(state, weights=model_at(0.0, 6)), client, TURN)
    used = method.extracted(task(), later, replace(context, memory=memory))
    assert used is not None
    for name, tensor in later.weights.items():
        expected = upload.weights[name] if name.startswith("4.") else tensor
        assert torch.equal(used[name], expected), name
    narrower = method.download(task(), state, ROWS[2], TURN)
    assert method.extracted(task(), narrower, replace(context, memory=memory)) == narrower.weights
    alike = make("subflot-plus", label_skew="none").download(task(), state, client, TURN)
    assert method.extracted(task(), alike, replace(context, memory=memory)) == alike.weights
    assert method.train(task(), alike, context)[1] == {}


def test_the_head_is_what_makes_the_outputs() -> None:
    assert head_of(task().channels) == {"4.weight", "4.bias"}


# ----- models that clients bring along


def reordered(weights: Weights, seed: int = 3) -> Weights:
    """The same model with its hidden channels in another order."""
    draw = torch.Generator().manual_seed(seed)
    sizes = task().channels.sizes_of(weights)
    order = {s: torch.randperm(sizes[s], generator=draw) for s in task().channels.prunable}
    return take(weights, task().channels.resized(sizes), order)


def adopted(models: dict[int, Weights], **settings: Any) -> State:
    method, start = make("subflot-plus", **settings), at_work(())
    places = {client: Place(0) for client in models}
    return method.adopt(task(), replace(start, history=models, places=places), ROWS)


@pytest.mark.parametrize("narrow", [1, 2])
def test_a_part_that_comes_in_another_order_is_put_back_into_its_place(narrow: int) -> None:
    wide, client = model_at(0.0, 5), ROWS[narrow]
    part = task().narrow(wide, client.pruning_rate)
    own = reordered(keep_scale(part, task().channels))
    state = adopted({0: wide, client.id: own})
    assert_same(state.weights, wide, **DOUBLE)
    sent = make("subflot-plus").download(task(), state, client, Turn(1, 5, 0))
    assert {s: i.tolist() for s, i in sent.kept.items()} == {
        s: list(range(n)) for s, n in task().channels.kept_sizes(client.pruning_rate).items()
    }
    assert_same(undo_scale(sent.weights, task().channels), part, **DOUBLE)


def test_by_position_a_model_in_another_order_is_mixed_as_it_comes() -> None:
    wide, client = model_at(0.0, 5), ROWS[1]
    own = reordered(keep_scale(task().narrow(wide, 0.5), task().channels))
    state = adopted({0: wide, 1: own}, extract="prefix")
    sent = make("subflot-plus", extract="prefix").download(task(), state, client, Turn(1, 5, 0))
    part = keep_scale(task().narrow(wide, 0.5), task().channels)
    for name, tensor in sent.weights.items():
        assert_close(tensor, (part[name] + own[name]) / 2, **DOUBLE)


def test_a_model_that_the_widest_holds_copies_of_keeps_its_function() -> None:
    """Of two copies of each channel the first half holds one: a client gets its own model back."""
    own, sizes = model_at(0.5, 9), task().channels.kept_sizes(0.5)
    doubled = {s: torch.arange(n).repeat(2) for s, n in sizes.items()}
    wide = take(undo_scale(own, task().channels), task().channels.resized(sizes), doubled)
    state = adopted({0: wide, 1: reordered(own)})
    sent = make("subflot-plus").download(task(), state, ROWS[1], Turn(1, 5, 0)).weights
    inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with task().lend(own) as model:
        expected = model(inputs)
    for weights in (sent, state.weights):
        with task().lend(weights) as model:
            assert_close(model(inputs), expected, **DOUBLE)


def test_without_the_widest_there_is_a_model_to_start_from() -> None:
    """What nobody brings is as the model of the task was drawn."""
    own = model_at(0.75, 4)
    state, start = adopted({2: own}), at_work(())
    part = task().narrow(state.weights, 0.75)
    assert_same(keep_scale(part, task().channels), own, **DOUBLE)
    assert_close(state.weights["0.weight"][2:], start.weights["0.weight"][2:], **DOUBLE)
