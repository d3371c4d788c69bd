"""FedProto: prototypes by hand, who counts for which coordinate, and what travels."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import metrics_of, run_rounds
from rounds import CLIENTS, LOCAL, linear_task, play, tiny_examples, tiny_task
from tolerances import EXACT, FLOAT32
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.base import Arrival, Client, ClientContext, Download, State, Turn, Upload
from subflot.algorithms.check import fault_of
from subflot.algorithms.fedproto import (
    COUNTS,
    KNOWN,
    PROTOTYPES,
    FedProto,
    classifier,
    prototypes,
)
from subflot.algorithms.local import Local
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.task import LocalTraining, Task

TURN = Turn(1, 5, 0)


class PixelVotes(nn.Module):
    """Every pixel votes, by a convolution, and the votes are averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.votes = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.votes(torch.relu(self.conv(x))).mean((2, 3))
        return logits


class Twice(nn.Module):
    """Two layers make the outputs together."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 6)
        self.one, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.hidden(x))
        logits: Tensor = self.one(x) + self.other(x)
        return logits


def plain_task() -> Task:
    """Two inputs that reach the classifier as they are, where they are positive; four classes."""
    task = linear_task(2, 2, 4)
    with torch.no_grad():
        task.template[0].weight.copy_(torch.eye(2))  # type: ignore[index]
        task.template[0].bias.zero_()  # type: ignore[index]
    return Task.of(task.template, torch.randn(2, 2), LOCAL)


EXAMPLES = Examples(torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, -1.0]]), torch.tensor([0, 0, 3]))


def test_prototypes_are_the_means_of_what_goes_into_the_classifier() -> None:
    task = plain_task()
    assert classifier(task) == "2.weight"
    found, counts = prototypes(task, task.initial, EXAMPLES)
    assert found.tolist() == [[2, 4], [0, 0], [0, 0], [5, 0]]
    assert counts.tolist() == [2, 0, 0, 1]


def test_where_a_convolution_answers_a_representation_is_the_mean_over_positions() -> None:
    torch.manual_seed(0)
    task = Task.of(PixelVotes(), torch.randn(2, 1, 4, 4), LOCAL)
    examples = tiny_examples(1)
    found, counts = prototypes(task, task.initial, examples)
    with torch.no_grad():
        seen = torch.relu(task.template.conv(examples.inputs)).mean((2, 3))  # type: ignore[operator]
    for label in range(3):
        own = seen[examples.labels == label]
        assert len(own) == counts[label]
        torch.testing.assert_close(found[label], own.mean(0), **FLOAT32)


def test_the_penalty_is_the_mean_square_and_a_class_without_a_prototype_costs_nothing() -> None:
    task, method = plain_task(), FedProto(pull_weight=0.5)
    extras = {
        PROTOTYPES: torch.tensor([[1.0, 1.0], [0, 0], [0, 0], [9.0, 9.0]]),
        KNOWN: torch.tensor([[True, True], [False] * 2, [False] * 2, [True, False]]),
    }
    context = ClientContext(Client(0), EXAMPLES, {}, TURN)
    found = method.objective(task, Download({}, extras=extras), context)(task.template, EXAMPLES)
    # Away from (1, 1): (1, 2) by 0, 1 and (3, 6) by 2, 5; (5, 0) is away from (9, ?) by 4.
    away = (0 + 1 + 4 + 25 + 16) / 6
    plain = F.cross_entropy(task.template(EXAMPLES.inputs), EXAMPLES.labels)
    torch.testing.assert_close(found, plain + 0.5 * away, **FLOAT32)


def upload(table: list[list[float]], counts: list[int], **changes: object) -> Upload:
    found = Upload(
        {PROTOTYPES: torch.tensor(table)}, sum(counts), extras={COUNTS: torch.tensor(counts)}
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def merged(*uploads: tuple[float, Upload]) -> State:
    """Prototypes of two classes and two coordinates, after two rounds of others."""
    task = linear_task(3, 2, 2)
    state = State({PROTOTYPES: torch.full((2, 2), 7.0)}, {KNOWN: torch.eye(2).bool()})
    arrivals = (Arrival(Client(n, rate), one) for n, (rate, one) in enumerate(uploads))
    return FedProto().aggregate(task, state, arrivals, TURN)


def test_each_coordinate_is_averaged_over_the_examples_of_those_who_have_it() -> None:
    whole, half = upload([[1.0, 2.0], [5.0, 5.0]], [3, 0]), upload([[5.0], [4.0]], [1, 2])
    state = merged((0.0, whole), (0.5, half))
    # Class 0: (3 x 1 + 1 x 5) / 4, and 2 of the wide one alone; class 1: 4, and 7 as before.
    assert state.weights[PROTOTYPES].tolist() == [[2, 2], [4, 7]]
    assert state.extras[KNOWN].tolist() == [[True, True], [True, True]]
    alone = merged((0.5, half))
    assert alone.extras[KNOWN].tolist() == [[True, False], [True, True]]


@pytest.mark.parametrize(
    "claim",
    [
        None,
        torch.tensor([3]),
        torch.tensor([1.5, 1.5]),
        torch.tensor([5, -2]),
        torch.tensor([3, 10**9]),
        torch.tensor([2, 2]),
    ],
    ids=["none", "too short", "fractions", "negative", "too many", "another sum"],
)
def test_who_does_not_say_properly_how_many_examples_it_has_is_not_counted(
    claim: Tensor | None,
) -> None:
    honest = upload([[1.0, 2.0], [3.0, 4.0]], [2, 1])
    extras = {} if claim is None else {COUNTS: claim}
    state = merged((0.0, upload([[100.0] * 2] * 2, [2, 1], extras=extras)), (0.0, honest))
    torch.testing.assert_close(state.weights, dict(honest.weights), **EXACT)


def test_prototypes_travel_and_no_weights() -> None:
    task = tiny_task()
    state, parts = play(FedProto(), task, CLIENTS, rounds=2)
    assert state.weights.keys() == {PROTOTYPES}
    for part in parts:
        width = math.ceil(12 * (1 - part.client.pruning_rate))
        for sent in (part.download, part.upload):
            assert {n: tuple(t.shape) for n, t in sent.weights.items()} == {PROTOTYPES: (3, width)}
        assert part.upload.num_bytes == 3 * width * 4 + 3 * 8


def test_of_a_class_that_it_lacks_a_client_tells_nothing() -> None:
    task, seven = plain_task(), torch.full((4, 2), 7.0)
    download = Download({PROTOTYPES: seven}, extras={KNOWN: torch.ones(4, 2, dtype=torch.bool)})
    sent, _ = FedProto().train(task, download, ClientContext(Client(0), EXAMPLES, {}, TURN))
    changed = (sent.weights[PROTOTYPES] != seven).any(1)
    assert changed.tolist() == [True, False, False, True]
    assert sent.extras[COUNTS].tolist() == [2, 0, 0, 1]


def test_prototypes_of_another_shape_are_refused() -> None:
    task = tiny_task()
    _, parts = play(FedProto(), task, CLIENTS[:1])
    part = parts[0]
    wide = replace(part.upload, weights={PROTOTYPES: torch.zeros(3, 13)})
    assert "shape (3, 13), expected (3, 12)" in fault_of(task, part.download, wide)


def test_without_the_penalty_everybody_trains_alone(tmp_path: Path) -> None:
    ours = run_rounds(FedProto(pull_weight=0.0), tmp_path / "ours", rounds=2)
    alone = run_rounds(Local(), tmp_path / "alone", rounds=2)
    for one, other in zip(metrics_of(ours), metrics_of(alone), strict=True):
        for key in ("trained_loss", "extracted_correct", "parameters"):
            assert one["clients"][key] == other["clients"][key]


def test_the_penalty_draws_a_client_to_the_prototypes_of_all() -> None:
    task = tiny_task(LocalTraining(epochs=10, batch_size=4, learning_rate=0.1))
    goal = torch.full((3, 6), 0.5)
    download = Download({PROTOTYPES: goal}, extras={KNOWN: torch.ones(3, 6, dtype=torch.bool)})
    context = ClientContext(CLIENTS[2], tiny_examples(2), {}, TURN)

    def off(pull_weight: float) -> float:
        sent, _ = FedProto(pull_weight=pull_weight).train(task, download, context)
        return float((sent.weights[PROTOTYPES] - goal).square().mean())

    assert off(1.0) < 0.5 * off(0.0)


@pytest.mark.parametrize("pull_weight", [-1.0, math.inf, math.nan])
def test_a_weight_that_is_none_is_refused(pull_weight: float) -> None:
    with pytest.raises(SubflotError, match="zero or a positive number"):
        FedProto(pull_weight=pull_weight)


def test_a_model_without_one_layer_of_outputs_is_refused() -> None:
    task = Task.of(Twice(), torch.randn(2, 4))
    with pytest.raises(SubflotError, match=r"prototypes need one layer.*\n.*nn\.Linear"):
        FedProto().start(task, CLIENTS, TURN)
