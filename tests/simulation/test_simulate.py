"""The loop over rounds: who takes part, what is measured and sent, and what goes wrong."""

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import (
    CLIENTS,
    LOCAL,
    RATES,
    contents,
    differing,
    final_state,
    metrics_of,
    run_rounds,
    tiny_data,
    tiny_task,
)
from torch import Tensor, nn

from subflot.algorithms import Algorithm, make
from subflot.algorithms.base import Client, ClientContext, Download, Memory, Turn, Upload
from subflot.algorithms.subflot import SubFLOT
from subflot.data.federated import Examples, FederatedData
from subflot.errors import SubflotError
from subflot.simulation import Round, simulate
from subflot.simulation.roster import drawn, given
from subflot.simulation.simulate import _Loop
from subflot.simulation.store import Store
from subflot.task import LocalTraining, Task
from subflot.training import measure, recalibrate, train_locally
from subflot.weights import Weights, num_bytes

Train = Callable[[SubFLOT, Task, Download, ClientContext], tuple[Upload, Memory]]


def correct(task: Task, weights: Weights, calibrated_on: Tensor, tests: Examples) -> int:
    with task.lend(weights) as model:
        recalibrate(task, model, calibrated_on)
        return measure(task, model, tests).num_correct


# ----- what is measured, and what it cost


def test_each_client_is_measured_on_its_own_test_examples(tmp_path: Path) -> None:
    task, data = tiny_task(), tiny_data()
    folder = run_rounds(make("subflot"), tmp_path, task=task, rounds=1)
    columns, history = metrics_of(folder)[0]["clients"], final_state(folder).history
    assert columns["client"] == [0, 1, 2, 3]
    for client, rate in enumerate(RATES):
        inputs, tests = data.train(client).inputs, data.test(client)
        sent = task.narrow(task.initial, rate)
        assert columns["num_test"][client] == len(tests)
        assert columns["extracted_correct"][client] == correct(task, sent, inputs, tests)
        assert columns["trained_correct"][client] == correct(task, history[client], inputs, tests)


def test_the_global_model_is_measured_on_all_test_examples(tmp_path: Path) -> None:
    task, data = tiny_task(), tiny_data()
    folder = run_rounds(make("heterofl"), tmp_path, task=task, rounds=2)
    inputs = torch.cat([data.train(client).inputs for client in range(4)])
    tests = [data.test(client) for client in range(4)]
    whole = Examples(torch.cat([t.inputs for t in tests]), torch.cat([t.labels for t in tests]))
    found = metrics_of(folder)[-1]["global"]
    assert found["num_examples"] == len(whole)
    expected = correct(task, final_state(folder).weights, inputs, whole)
    assert found["accuracy"] == expected / len(whole)


def test_what_is_sent_and_trained_is_counted(tmp_path: Path) -> None:
    task = tiny_task()
    line = metrics_of(run_rounds(make("heterofl"), tmp_path, task=task, rounds=1))[0]
    for client, rate in enumerate(RATES):
        part = task.narrow(task.initial, rate)
        assert line["clients"]["bytes_down"][client] == num_bytes(part)
        assert line["clients"]["bytes_up"][client] == num_bytes(part)
        assert line["clients"]["parameters"][client] == task.cost(part).parameters
        assert line["clients"]["multiply_adds"][client] == task.cost(part).multiply_adds
        assert line["clients"]["num_examples"][client] == tiny_data().num_train(client)
    assert line["bytes_up"] == sum(line["clients"]["bytes_up"])


def test_what_a_client_remembers_is_given_back_to_it(tmp_path: Path) -> None:
    task, store = tiny_task(), Store(tmp_path)
    run_rounds(make("local"), tmp_path, task=task, rounds=2)
    manifest = store.manifest()
    assert manifest is not None
    for client in CLIENTS:
        weights: Weights = task.narrow(task.initial, client.pruning_rate)
        for round in (1, 2):
            draw = Turn(round, 2, 0).generator("batches", client.id)
            weights = train_locally(task, weights, tiny_data().train(client.id), draw).weights
        found = store.memory(manifest, client.id)
        assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


# ----- who takes part


def test_so_many_clients_take_part_as_are_asked_for(tmp_path: Path) -> None:
    folder = run_rounds(make("fedavg"), tmp_path, per_round=2, rounds=6)
    taking_part = [line["clients"]["client"] for line in metrics_of(folder)]
    assert all(len(clients) == 2 for clients in taking_part)
    assert len({tuple(clients) for clients in taking_part}) > 1


def test_more_in_a_round_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"per_round is 5\n.*there are 4 clients"):
        run_rounds(make("fedavg"), tmp_path, per_round=5)


def test_rates_for_fewer_clients_than_the_data_has_are_refused(tmp_path: Path) -> None:
    for roster in (drawn(3, [0.0, 0.5], seed=0), given(3, [0.0, 0.5, 0.5])):
        with pytest.raises(
            SubflotError, match=r"among 4 clients, and rates .* for 3\n.*rates for 4"
        ):
            run_rounds(make("fedavg"), tmp_path, clients=roster)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 9)), r"\(2, 9\)"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 10, 3)), r"\(2, 10, 4, 4\)"),
    ],
)
def test_a_model_without_an_output_for_every_class_is_refused(
    model: nn.Module, message: str, tmp_path: Path
) -> None:
    task = Task.of(model, torch.zeros(2, 1, 8, 8), LOCAL)
    match = rf"Sequential returns {message} for 2 examples\n.*has 10 classes"
    with pytest.raises(SubflotError, match=match):
        run_rounds(make("fedavg"), tmp_path, task=task)


def test_a_model_that_cannot_take_the_inputs_is_refused(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 10))
    task = Task.of(model, torch.zeros(2, 5), LOCAL)
    with pytest.raises(
        SubflotError, match=r"cannot take inputs of shape \(1, 8, 8\) from data set"
    ):
        run_rounds(make("fedavg"), tmp_path, task=task)


def test_a_method_may_be_given_by_its_name(tmp_path: Path) -> None:
    args = (tiny_task(), tiny_data(), CLIENTS)
    (by_name,) = simulate("heterofl", *args, rounds=1, workers=1)
    (made,) = simulate(make("heterofl"), *args, rounds=1, workers=1)
    assert by_name.metrics == made.metrics
    with pytest.raises(SubflotError, match=r"unknown algorithm `heterofll`\n.*`heterofl`"):
        next(simulate("heterofll", *args, rounds=1))
    with pytest.raises(SubflotError, match=r"the algorithm is <class .*\n.*give its name"):
        next(simulate(SubFLOT, *args, rounds=1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "clients", [(), (Client(0), Client(0)), (Client(0), Client(4)), (Client(-1),)]
)
def test_clients_that_the_data_does_not_know_are_refused(
    clients: Sequence[Client], tmp_path: Path
) -> None:
    with pytest.raises(SubflotError, match=r"the clients of round 1 are .*\n.*from 0 to 3"):
        run_rounds(make("fedavg"), tmp_path, clients=clients)


@pytest.mark.parametrize("setting", ["rounds", "per_round", "workers"])
def test_counts_below_one_are_refused(setting: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {setting: 0}
    with pytest.raises(SubflotError, match=f"{setting} is 0"):
        run_rounds(make("fedavg"), tmp_path, **settings)


# ----- folders


def test_without_a_folder_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    accuracies = [
        (done.round, done.metrics["global"]["accuracy"], len(done.state.weights))
        for done in simulate(make("fedavg"), tiny_task(), tiny_data(), CLIENTS, rounds=2, workers=1)
    ]
    assert [round for round, _, _ in accuracies] == [1, 2]
    assert list(tmp_path.glob("subflot-*")) == []  # torch may make a folder of its own.


def test_the_last_round_keeps_a_temporary_folder_as_long_as_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for done in simulate(  # noqa: B007 - it is looked at after the loop
        make("subflot"), tiny_task(), tiny_data(), CLIENTS, rounds=2, workers=1
    ):
        pass
    assert done.state.history.keys() == set(range(len(RATES)))
    assert list(tmp_path.glob("subflot-*"))
    del done
    assert list(tmp_path.glob("subflot-*")) == []


@pytest.mark.parametrize("method", ["subflot", "heterofl", "local"])
def test_each_clients_model_can_be_had_after_the_loop(method: str, tmp_path: Path) -> None:
    task, data = tiny_task(), tiny_data()
    rounds = simulate(make(method), task, data, CLIENTS, rounds=2, workers=1, folder=str(tmp_path))
    first, last = list(rounds)
    columns = last.metrics["clients"]
    for client, parameters in enumerate(columns["parameters"]):
        model, tests = last.model(client), data.test(client)
        assert not model.training
        assert sum(p.numel() for p in model.parameters()) == parameters
        if method != "heterofl":  # It keeps no client's model; what is had is what comes next.
            num_correct = int((model(tests.inputs).argmax(1) == tests.labels).sum())
            assert num_correct == columns["trained_correct"][client]
    with pytest.raises(SubflotError, match=r"no client 4\n.*from 0 to 3"):
        last.model(4)
    with pytest.raises(SubflotError, match="models of round 1 were replaced by those of round 2"):
        first.model(0)
    if method == "local":
        with pytest.raises(SubflotError, match=r"local has no global model\n.*name a client"):
            last.model()
    else:
        every = torch.cat([data.test(client).inputs for client in range(len(RATES))])
        labels = torch.cat([data.test(client).labels for client in range(len(RATES))])
        share = float((last.model()(every).argmax(1) == labels).double().mean())
        assert share == pytest.approx(last.metrics["global"]["accuracy"])


def relabelled() -> FederatedData:
    data = tiny_data()
    labels = data.dataset.labels[::-1].copy()
    return FederatedData(replace(data.dataset, labels=labels), data.shares)


def repainted() -> FederatedData:
    data = tiny_data()
    inputs = data.dataset.inputs.copy()
    inputs[-1, 0, 0, 0] += 1
    return FederatedData(replace(data.dataset, inputs=inputs), data.shares)


@pytest.mark.parametrize(
    ("algorithm", "change", "message"),
    [
        (make("fedavg"), {}, "method was heterofl, is fedavg"),
        (make("heterofl", scaler=True), {}, "heterofl scaler was False, is True"),
        (make("heterofl"), {"data": relabelled()}, "data was `digits`, 140 examples"),
        (make("heterofl"), {"data": repainted()}, "data was `digits`, 140 examples"),
        (make("heterofl"), {"seed": 1}, "seed was 0, is 1"),
        (make("heterofl"), {"per_round": 2}, "per_round was None, is 2"),
        (make("heterofl"), {"clients": CLIENTS[::-1][:3]}, "clients was 4, .*, is 3, pruning"),
        (make("heterofl"), {"task": tiny_task(LocalTraining(epochs=2))}, "epochs was 1, is 2"),
    ],
)
def test_a_folder_goes_on_only_with_what_it_was_begun_with(
    algorithm: Algorithm, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    run_rounds(make("heterofl"), tmp_path, rounds=3, stop_after=1)
    before = contents(tmp_path)
    with pytest.raises(SubflotError, match=message + r"(.|\n)*hint: .*name another folder"):
        run_rounds(algorithm, tmp_path, rounds=3, **change)
    assert contents(tmp_path) == before
    run_rounds(make("heterofl"), tmp_path, rounds=3)


def test_a_folder_does_not_go_on_with_another_version_of_its_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_rounds(make("heterofl"), tmp_path, rounds=3, stop_after=1)
    monkeypatch.setattr(type(make("heterofl")), "version", 2)
    with pytest.raises(SubflotError, match="method was heterofl, is heterofl, version 2"):
        run_rounds(make("heterofl"), tmp_path, rounds=3)


def test_another_model_does_not_go_on_in_a_folder(tmp_path: Path) -> None:
    run_rounds(make("heterofl"), tmp_path, rounds=2, stop_after=1)
    wider = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))
    with pytest.raises(SubflotError, match=r"model was TinyNet of shapes .*, is Sequential of"):
        run_rounds(make("heterofl"), tmp_path, task=Task.of(wider, torch.zeros(2, 1, 8, 8), LOCAL))


def test_a_folder_without_a_note_of_its_beginning_goes_on(tmp_path: Path) -> None:
    whole = run_rounds(make("heterofl"), tmp_path / "whole", rounds=2)
    run_rounds(make("heterofl"), tmp_path / "old", rounds=2, stop_after=1)
    (tmp_path / "old" / "begun.json").unlink()
    run_rounds(make("heterofl"), tmp_path / "old", rounds=2)
    assert differing(tmp_path / "old", whole) == []
    (whole / "begun.json").write_text("[")
    with pytest.raises(SubflotError, match=r"begun\.json is damaged"):
        run_rounds(make("heterofl"), whole, rounds=3)


def test_each_round_is_saved_when_it_is_yielded(tmp_path: Path) -> None:
    rounds = simulate(
        make("fedavg"), tiny_task(), tiny_data(), CLIENTS, rounds=2, workers=1, folder=tmp_path
    )
    for done in rounds:
        saved = final_state(tmp_path).weights
        assert all(torch.equal(saved[name], t) for name, t in done.state.weights.items())
        assert metrics_of(tmp_path)[-1] == done.metrics


def test_threads_are_those_of_before(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    try:
        run_rounds(make("fedavg"), tmp_path, rounds=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_what_is_compiled_is_compiled_before_the_clock_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    module = sys.modules[simulate.__module__]
    begin = _Loop.next

    def next_round(loop: _Loop, *args: Any) -> Round:
        told.append("round")
        return begin(loop, *args)

    monkeypatch.setattr(module, "warm_up", lambda: told.append("compiled"))
    monkeypatch.setattr(_Loop, "next", next_round)  # The clock starts and ends in it.
    run_rounds(make("subflot"), tmp_path / "subflot", rounds=2)
    assert told == ["compiled", "round", "round"]
    run_rounds(make("subflot"), tmp_path / "subflot", rounds=2)  # No round is left.
    run_rounds(make("heterofl"), tmp_path / "heterofl", rounds=1)
    assert told == ["compiled", "round", "round", "round"]


# ----- uploads that are not merged


def in_round_two(
    monkeypatch: pytest.MonkeyPatch, client: int, act: Callable[[Upload], Upload]
) -> None:
    """Change what a client returns in the second round."""
    train: Train = SubFLOT.train

    def changed(
        self: SubFLOT, task: Task, download: Download, context: ClientContext
    ) -> tuple[Upload, Memory]:
        upload, memory = train(self, task, download, context)
        is_meant = context.client.id == client and context.turn.round == 2
        return (act(upload) if is_meant else upload), memory

    monkeypatch.setattr(SubFLOT, "train", changed)


def diverged(upload: Upload) -> Upload:
    head = torch.full_like(upload.weights["head.weight"], float("inf"))
    return replace(upload, weights={**upload.weights, "head.weight": head})


def test_what_the_server_measured_is_not_covered_by_what_a_client_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = metrics_of(run_rounds(make("subflot"), tmp_path / "plain", rounds=2))
    layer = next(iter(plain[1]["layers"]["moved"]))
    claims = dict.fromkeys(("delta_p", "delta_ot", "bytes_up", f"moved/{layer}"), 99.0)
    in_round_two(monkeypatch, 2, lambda upload: replace(upload, metrics=claims))
    told = metrics_of(run_rounds(make("subflot"), tmp_path / "told", rounds=2))
    for name in ("delta_p", "delta_ot", "bytes_up"):
        assert told[1]["clients"][name] == plain[1]["clients"][name]
    assert told[1]["layers"]["moved"][layer] == plain[1]["layers"]["moved"][layer]


def test_a_bad_upload_is_dropped_and_counted_and_the_history_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(round: int) -> Sequence[Client]:
        return [client for client in CLIENTS if round != 2 or client.id != 2]

    without = run_rounds(make("subflot"), tmp_path / "without", clients=absent)
    in_round_two(monkeypatch, 2, diverged)
    folder = run_rounds(make("subflot"), tmp_path / "with")
    lines = metrics_of(folder)
    assert [line["num_rejected"] for line in lines] == [0, 1, 0]
    assert "fault" not in lines[0]["clients"]
    faults = lines[1]["clients"]["fault"]
    assert [bool(fault) for fault in faults] == [False, False, True, False]
    assert "NaN or infinity" in faults[2]
    # Its part in the round is as if it had not been there: merged by nobody, remembered by nobody.
    changed = differing(folder, without)
    assert [file for file in changed if file != "manifest"] == ["metrics.jsonl"]


def filled(value: float) -> Callable[[Upload], Upload]:
    """Put one value everywhere into the layers that no norm follows."""

    def act(upload: Upload) -> Upload:
        odd = {n: torch.full_like(upload.weights[n], value) for n in ("hidden.weight", "head.bias")}
        return replace(upload, weights={**upload.weights, **odd})

    return act


@pytest.mark.parametrize("value", [1e30, 3e38])
def test_an_upload_that_would_make_the_model_overflow_is_left_out(
    value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_round_two(monkeypatch, 2, filled(value))
    lines = metrics_of(run_rounds(make("subflot"), tmp_path))
    assert [line["num_rejected"] for line in lines] == [0, 1, 0]
    assert f"holds values up to {value:.3g}" in lines[1]["clients"]["fault"][2]


@pytest.mark.parametrize(("value", "why"), [(1e18, "overflows"), (1e39, "holds NaN or infinity")])
def test_a_merged_model_that_overflows_is_not_saved_and_the_round_before_stands(
    value: float, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = run_rounds(make("subflot"), tmp_path / "own")
    aggregate = SubFLOT.aggregate

    def poisoned(*args: Any) -> Any:
        after = aggregate(*args)
        grown = {n: t * value for n, t in after.weights.items()}
        return replace(after, weights=grown) if args[-1].round == 2 else after

    monkeypatch.setattr(SubFLOT, "aggregate", poisoned)
    in_round_two(monkeypatch, 1, filled(1.5))
    for _ in range(2):
        with pytest.raises(SubflotError, match=rf"round 2 is not saved: .* {why}; ") as error:
            run_rounds(make("subflot"), tmp_path / "hit")
        assert "came from client 1 (1.5), client " in str(error.value)
        assert "round 1 stands" in error.value.hint
    monkeypatch.undo()
    run_rounds(make("subflot"), tmp_path / "hit")
    assert differing(own, tmp_path / "hit") == []


def test_a_round_with_too_few_good_uploads_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_round_two(monkeypatch, 2, lambda upload: replace(upload, num_examples=0))
    with pytest.raises(SubflotError) as error:
        run_rounds(make("subflot"), tmp_path, min_uploads=4)
    assert "round 2 has 3 good uploads of 4: client 2: it claims 0 examples" in str(error.value)
    assert "learning_rate" in error.value.hint
    assert [line["round"] for line in metrics_of(tmp_path)] == [1]


def test_an_automatic_share_survives_a_round_without_good_uploads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_round_two(monkeypatch, 2, diverged)
    with pytest.raises(SubflotError, match="round 2 has 0 good uploads of 1"):
        run_rounds(make("subflot", global_share="auto"), tmp_path, clients=CLIENTS[2:3])


# ----- workers


def test_an_error_says_where_it_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(upload: Upload) -> Upload:
        raise SubflotError("the battery is empty", hint="charge it")

    in_round_two(monkeypatch, 1, broken)
    for workers in (1, 2):
        with pytest.raises(SubflotError) as error:
            run_rounds(make("subflot"), tmp_path / str(workers), workers=workers)
        assert str(error.value).splitlines() == [
            "the battery is empty",
            "  while client 1 (pruning_rate=0.25) took part in round 2 of subflot",
            "  hint: charge it",
        ]
        assert len(metrics_of(tmp_path / str(workers))) == 1


def test_a_killed_worker_is_one_clear_error_and_the_run_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(upload: Upload) -> Upload:
        os.kill(os.getpid(), signal.SIGKILL)
        return upload

    with monkeypatch.context() as patch:
        in_round_two(patch, 1, killed)
        with pytest.raises(SubflotError, match=r"a worker process was killed\n.*fewer --workers"):
            run_rounds(make("subflot"), tmp_path / "killed", workers=2)
    assert len(metrics_of(tmp_path / "killed")) == 1
    run_rounds(make("subflot"), tmp_path / "killed")
    whole = run_rounds(make("subflot"), tmp_path / "whole")
    assert differing(tmp_path / "killed", whole) == []


def test_workers_end_with_the_run(tmp_path: Path) -> None:
    before = children()
    for workers in (2, 3):
        run_rounds(make("fedavg"), tmp_path / str(workers), workers=workers, stop_after=1)
    assert children() == before


def children() -> set[str]:
    mine = Path(f"/proc/{os.getpid()}/task")
    return {pid for task in mine.iterdir() for pid in (task / "children").read_text().split()}
