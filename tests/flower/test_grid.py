"""The server among clients that fail, fall silent, join late, come back, and ask for privacy."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import (
    CLIENTS,
    differing,
    final_state,
    metrics_of,
    run_rounds,
    tiny_data,
    tiny_task,
)
from flower_runs import PARTS, OddGrid, app_of, devices, run_on_grid
from flwr.app import Array, Context, Error, Message

from subflot.algorithms import make
from subflot.algorithms.base import Client
from subflot.algorithms.local import Local
from subflot.errors import SubflotError
from subflot.flower.client import Device, client_app
from subflot.flower.local_grid import LocalGrid
from subflot.flower.settings import FlowerSettings
from subflot.simulation.roster import rate_within
from subflot.simulation.store import Store


def spoilt(reply: Message) -> Message:
    arrays = reply.content.array_records["arrays"]
    for name in list(arrays)[:1]:
        arrays[name] = Array(np.full_like(arrays[name].numpy(), np.nan))
    reply.content.metric_records["metrics"]["metrics.training_loss"] = np.nan
    return reply


def accepted(folder: Path, *rejected: tuple[int, int]) -> Callable[[int], list[Client]]:
    """Who is left of the clients of a round."""
    return lambda round: [c for c in CLIENTS if (round, c.id) not in rejected]


@pytest.mark.parametrize("name", ["subflot", "local", "fedfomo-sub"])
def test_a_client_that_is_left_out_keeps_its_history_and_its_memory(
    name: str, tmp_path: Path
) -> None:
    method = make(name)
    out = {(2, 1), (2, 3), (3, 3)}

    def change(part: int, round: int, reply: Message) -> Message | None:
        if (round, part) not in out:
            return reply
        return spoilt(reply) if part == 1 else None

    app = app_of(method, tmp_path / "flower")
    run_on_grid(
        method,
        tmp_path / "flower",
        rounds=4,
        grid=OddGrid(app, change=change),
        settings=FlowerSettings(round_timeout=0.1),
    )
    own = run_rounds(
        method, tmp_path / "own", rounds=4, clients=lambda r: accepted(tmp_path, *out)(r)
    )
    faults = {
        (line["round"], client): fault
        for line in metrics_of(tmp_path / "flower")
        if line["num_rejected"]
        for client, fault in zip(line["clients"]["client"], line["clients"]["fault"], strict=True)
        if fault
    }
    assert faults.keys() == out
    assert "NaN" in faults[2, 1]
    assert faults[2, 3] == faults[3, 3] == "no answer before the deadline"
    odd = differing(own, tmp_path / "flower")
    assert [file for file in odd if not file.endswith(".jsonl") and file != "manifest"] == []


def test_too_few_answers_end_the_run_with_one_clear_error(tmp_path: Path) -> None:
    method = make("fedavg")
    grid = OddGrid(app_of(method, tmp_path), change=lambda part, round, reply: None)
    with pytest.raises(SubflotError, match=r"0 good uploads of 4: client 0: no answer .*\n.*logs"):
        run_on_grid(method, tmp_path, grid=grid, settings=FlowerSettings(round_timeout=0.1))
    only = OddGrid(
        app_of(method, tmp_path), change=lambda part, round, reply: reply if part == 2 else None
    )
    settings = FlowerSettings(round_timeout=0.1, min_uploads=2)
    with pytest.raises(SubflotError, match="1 good uploads of 4"):
        run_on_grid(method, tmp_path, grid=only, settings=settings)
    assert metrics_of(tmp_path) == []


def test_a_client_whose_side_fails_is_named_with_its_error(tmp_path: Path) -> None:
    method = make("fedavg")
    load = devices(method, tmp_path, tiny_data())

    def broken(context: Context) -> Device:
        device = load(context)
        if device.partition == 2:
            return replace(device, task=lambda: 1 / 0)  # type: ignore[arg-type,return-value]
        return device

    run_on_grid(method, tmp_path, rounds=1, grid=OddGrid(client_app(broken)))
    (line,) = metrics_of(tmp_path)
    assert line["num_rejected"] == 1
    assert "division by zero" in line["clients"]["fault"][2]
    assert line["clients"]["parameters"][2] > 0  # Of what it was sent.


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("num_examples", r"it claims \d{9,} examples, and declared \d+"),
        ("trained.num_examples", r"it claims \d{9,} test examples, and declared \d+"),
    ],
)
def test_a_client_counts_no_more_than_what_it_declared(key: str, why: str, tmp_path: Path) -> None:
    def change(part: int, round: int, reply: Message) -> Message:
        if part == 2:
            reply.content.metric_records["metrics"][key] = 10**12 - 1
        return reply

    method = make("fedavg")
    run_on_grid(method, tmp_path, rounds=1, grid=OddGrid(app_of(method, tmp_path), change=change))
    (line,) = metrics_of(tmp_path)
    assert [bool(fault) for fault in line["clients"]["fault"]] == [False, False, True, False]
    assert re.fullmatch(why, line["clients"]["fault"][2])


def test_no_text_of_a_device_commands_a_terminal(tmp_path: Path) -> None:
    method, said = make("fedavg"), list[str]()
    load = devices(method, tmp_path, tiny_data())
    escape = "\x1b]0;mine\x07\x1b[2J\r\x9b\u202e\u2028round 4/4\nforged"

    def odd(context: Context) -> Device:
        device = load(context)
        return replace(device, quantity=escape, budget=1.0) if device.partition == 3 else device

    def change(part: int, round: int, reply: Message) -> Message:
        if part == 0:
            reply.content.array_records["arrays"][escape] = Array(np.zeros(1))
        if part == 1:
            failed = Message(Error(2, escape + "\n" + escape), reply_to=reply)
            number = reply.metadata.reply_to_message_id
            failed.metadata.__dict__["_reply_to_message_id"] = number
            return failed
        return reply

    names = {0: "kitchen", 1: f"attic{escape}", 2: "garage", 3: "cellar"}
    grid = OddGrid(client_app(odd), names, change=change)
    run_on_grid(method, tmp_path, clients=None, rounds=1, grid=grid, say=said.append)
    (line,) = metrics_of(tmp_path)
    known = json.loads((tmp_path / "nodes.json").read_text())["clients"]
    texts = [*said, *filter(None, line["clients"]["fault"]), *known]
    assert line["num_rejected"] == 2
    assert sum("\\x1b]0;mine\\x07" in text for text in texts) >= 4  # It can be seen.
    for text in texts:
        shown, _, hint = text.partition("\n  hint: ")
        assert shown.isprintable()
        assert hint.isprintable()


def test_a_client_cannot_rename_a_column_of_the_record(tmp_path: Path) -> None:
    def change(part: int, round: int, reply: Message) -> Message:
        reply.content.metric_records["metrics"]["metrics.client"] = 77.0
        reply.content.metric_records["metrics"]["metrics.fault"] = 77.0
        return reply

    method = make("fedavg")
    run_on_grid(method, tmp_path, rounds=1, grid=OddGrid(app_of(method, tmp_path), change=change))
    (line,) = metrics_of(tmp_path)
    assert line["clients"]["client"] == [0, 1, 2, 3]
    assert "fault" not in line["clients"]


@pytest.mark.parametrize("value", [math.inf, math.nan, 1.7e308])
def test_no_number_of_a_client_ends_a_run(value: float, tmp_path: Path) -> None:
    """It is left out of a round, or the record leaves the number out."""
    method = make("fedavg")
    counted = ["parameters", "multiply_adds", "seconds.train"]
    names = [*counted, "metrics.training_loss", "metrics.moved/conv", "trained.loss"]

    def change(part: int, round: int, reply: Message) -> Message:
        if part > 1:
            reply.content.metric_records["metrics"][names[round - 1]] = value
        return reply

    grid = OddGrid(app_of(method, tmp_path), change=change)
    run_on_grid(method, tmp_path, rounds=len(names), grid=grid)
    lines = metrics_of(tmp_path)
    is_lost = 0 if not math.isfinite(value) else 2  # A loss may be infinite, not absurd.
    assert [line["num_rejected"] for line in lines] == [2, 2, 2, 2, 2, is_lost]
    for line, name in zip(lines, counted, strict=False):
        fault = line["clients"]["fault"][3]
        assert fault == f"its `{name.removeprefix('seconds.')}` is {value}"
    assert (lines[5]["trained"]["loss"] is None) == (not is_lost)


@pytest.mark.parametrize("name", ["fedavg", "subflot", "flado", "fedamp"])
def test_one_absurd_upload_leaves_the_run_as_if_it_had_not_come(name: str, tmp_path: Path) -> None:
    method = make(name)

    def change(part: int, round: int, reply: Message) -> Message:
        if (round, part) == (1, 2):
            arrays = reply.content.array_records["arrays"]
            for key in list(arrays):
                arrays[key] = Array(np.full_like(arrays[key].numpy(), 1e30))
        return reply

    grid = OddGrid(app_of(method, tmp_path / "flower"), change=change)
    run_on_grid(method, tmp_path / "flower", grid=grid)
    assert [line["num_rejected"] for line in metrics_of(tmp_path / "flower")] == [1, 0, 0]
    own = run_rounds(method, tmp_path / "own", clients=accepted(tmp_path, (1, 2)))
    ours, theirs = final_state(own).weights, final_state(tmp_path / "flower").weights
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())


def test_a_server_that_dies_in_a_round_does_it_again_with_the_memory_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have trained, and remember, when the server is gone."""
    method = make("local")
    own = run_rounds(method, tmp_path / "own", rounds=3)
    aggregate = Local.aggregate

    def dies(self: Any, task: Any, state: Any, arrivals: Any, turn: Any) -> Any:
        after = aggregate(self, task, state, arrivals, turn)
        if turn.round == 2:
            raise KeyboardInterrupt
        return after

    monkeypatch.setattr(Local, "aggregate", dies)
    devices_home = tmp_path / "devices"  # Nobody sweeps it but the clients.
    app = app_of(method, devices_home)
    with pytest.raises(KeyboardInterrupt):
        run_on_grid(method, tmp_path / "flower", grid=LocalGrid(app, PARTS))
    monkeypatch.undo()
    assert len(list(devices_home.glob("memory/1-*"))) == 2
    run_on_grid(method, tmp_path / "flower", grid=LocalGrid(app, PARTS))
    odd = differing(own, tmp_path / "flower")
    assert odd == [f"memory/{number}-3.safetensors" for number in range(4)]  # With the devices.
    for number in range(4):
        file = f"memory/{number}-3.safetensors"
        assert (devices_home / file).read_bytes() == (own / file).read_bytes()


def test_devices_name_their_budgets_join_late_and_keep_their_numbers(tmp_path: Path) -> None:
    method, task = make("subflot"), tiny_task()
    load = devices(method, tmp_path, tiny_data())
    whole = task.cost(task.initial)
    budgets: list[dict[str, Any]] = [
        {"pruning_rate": 0.5},
        {"budget": whole.parameters / 2, "quantity": "parameters"},
        {"budget": whole.multiply_adds / 3, "quantity": "multiply_adds"},
        {"budget": float(whole.bytes), "quantity": "bytes"},
    ]
    app = client_app(
        lambda context: replace(load(context), **budgets[int(context.node_config["partition-id"])])
    )
    names = {0: "kitchen", 1: "attic", 2: "garage", 3: "cellar"}
    # The garage joins in round 2; the kitchen is away in round 3.
    grid = OddGrid(app, names, away=lambda part, r: (part, r) in {(2, 1), (0, 3)})
    for stop in (2, None):  # And the server is started twice.
        run_on_grid(method, tmp_path, clients=None, grid=grid, rounds=4, stop_after=stop)
    known = json.loads((tmp_path / "nodes.json").read_text())["clients"]
    assert known == {"attic": 0, "cellar": 1, "kitchen": 2, "garage": 3}
    columns = [line["clients"] for line in metrics_of(tmp_path)]
    assert [sorted(one["client"]) for one in columns] == [
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 3],
        [0, 1, 2, 3],
    ]
    rates = dict(zip(columns[3]["client"], columns[3]["pruning_rate"], strict=True))
    assert rates[2] == 0.5
    assert rates[0] == rate_within(task, whole.parameters / 2, "parameters") > 0
    assert rates[3] == rate_within(task, whole.multiply_adds / 3, "multiply_adds") > 0
    assert rates[1] == 0
    store = Store(tmp_path)
    assert set(final_state(tmp_path).history) == {0, 1, 2, 3}
    assert store.manifest() is not None
    assert grid.asked == [2, 2, 2, 2]  # Once by each server.


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"pruning_rate": 1.5}, "its pruning rate is 1.5"),
        ({"budget": 0.5, "quantity": "parameters"}, "no model fits a budget of 0.5 parameters"),
        ({"budget": 5.0, "quantity": "miles"}, "unknown budget `miles`"),
    ],
)
def test_a_node_that_asks_for_what_cannot_be_is_left_out(
    answer: dict[str, Any], why: str, tmp_path: Path
) -> None:
    method = make("fedavg")
    load = devices(method, tmp_path, tiny_data())
    said: list[str] = []

    def odd(context: Context) -> Device:
        device = load(context)
        return replace(device, **answer) if device.partition == 1 else device

    names = {number: f"node-{number}" for number in range(4)}
    grid = OddGrid(client_app(odd), names)
    run_on_grid(method, tmp_path, clients=None, grid=grid, rounds=2, say=said.append)
    assert metrics_of(tmp_path)[1]["clients"]["client"] == [0, 1, 2]
    assert grid.asked == [1, 1, 1, 1]  # Not in every round.
    assert any(line.startswith("node node-1 is left out") and why in line for line in said)


def test_a_name_belongs_to_the_key_that_had_it_first(tmp_path: Path) -> None:
    """Node 3 was there first; node 0 takes its name, also while it is away."""
    method, said = make("fedavg"), list[str]()
    names = {0: "kitchen", 1: "attic", 2: "garage", 3: "kitchen"}
    keys = {part: bytes([part]) * 40 for part in names}

    def run(away: Callable[[int, int], bool], rounds: int, keys: Mapping[int, bytes]) -> None:
        grid = OddGrid(app_of(method, tmp_path), names, away=away, keys=keys)
        say = said.append
        run_on_grid(method, tmp_path, clients=None, rounds=rounds, grid=grid, say=say)

    def columns() -> list[list[int]]:
        return [line["clients"]["client"] for line in metrics_of(tmp_path)]

    run(lambda part, round: (part, round) in {(3, 2)}, 3, keys)
    nodes = json.loads((tmp_path / "nodes.json").read_text())
    assert nodes["clients"] == {"attic": 0, "garage": 1, "kitchen": 2}
    assert nodes["keys"]["kitchen"] == keys[3].hex()
    assert list(nodes["refused"]) == [keys[0].hex()]
    assert columns() == [[0, 1, 2], [0, 1], [0, 1, 2]]
    (line,) = (line for line in said if "left out" in line)
    assert line.startswith("node kitchen is left out: the name belongs to another key than 00000")

    # Nor is it let in by a server that was started anew, and the first keeps its number.
    run(lambda part, round: part == 3, 4, keys)
    run(lambda part, round: False, 5, keys)
    assert columns()[3:] == [[0, 1], [0, 1, 2]]

    # A file from before keys were noted is read; names get the keys that they come with.
    (tmp_path / "nodes.json").write_text(json.dumps({k: nodes[k] for k in ("run", "clients")}))
    run(lambda part, round: part == 0, 6, keys)
    assert columns()[5] == [0, 1, 2]
    assert json.loads((tmp_path / "nodes.json").read_text())["keys"] == nodes["keys"]


def test_two_nodes_of_one_name_and_no_keys_do_not_share_a_number(tmp_path: Path) -> None:
    method, said = make("fedavg"), list[str]()
    names = {0: "kitchen", 1: "attic", 2: "garage", 3: "kitchen"}
    asked: list[int] = []

    def change(part: int, round: int, reply: Message) -> Message:
        asked.append(part)
        return reply

    # The first goes away in round 2, for good: then the other may have the name.
    grid = OddGrid(
        app_of(method, tmp_path), names, away=lambda part, r: part == 3 and r > 1, change=change
    )
    run_on_grid(method, tmp_path, clients=None, rounds=1, grid=grid, say=said.append)
    assert sorted(asked) == [1, 2, 3]
    (line,) = (line for line in said if "left out" in line)
    assert "client 2 is already at another node, which is there" in line
    run_on_grid(method, tmp_path, clients=None, rounds=2, grid=grid, say=said.append)
    assert sorted(asked[3:]) == [0, 1, 2]


def test_the_server_waits_until_enough_nodes_are_there(tmp_path: Path) -> None:
    method, said = make("fedavg"), list[str]()
    looks = iter(range(1000))
    grid = OddGrid(
        app_of(method, tmp_path),
        {number: f"node-{number}" for number in range(4)},
        away=lambda part, round: part == 3 and next(looks) < 3,
    )
    settings = FlowerSettings(min_nodes=4)
    run_on_grid(
        method, tmp_path, clients=None, grid=grid, rounds=1, settings=settings, say=said.append
    )
    assert "waiting for nodes: 3 of 4 are there" in said
    assert len(metrics_of(tmp_path)[0]["clients"]["client"]) == 4


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"privacy": "cliping"}, "unknown privacy `cliping`\n  hint: did you mean `clipping`"),
        ({"round_time": 3}, "unknown setting of .flower. `round_time`"),
        ({"min_nodes": 0}, "min_nodes is 0"),
        ({"round_timeout": -1}, "round_timeout is -1"),
        ({"min_uploads": 1.5}, "min_uploads of .flower. is 1.5"),
        ({"epsilon": 0}, "epsilon is 0"),
    ],
)
def test_settings_that_cannot_be_are_named(table: dict[str, Any], why: str) -> None:
    with pytest.raises(SubflotError, match=why):
        FlowerSettings.of(table)


def test_settings_survive_being_written_and_read() -> None:
    settings = FlowerSettings(round_timeout=5, privacy="local-dp", epsilon=2.0)
    assert FlowerSettings.of(settings.table()) == settings
