"""What every method keeps to. A new one is tested from the day it stands in `ALGORITHMS`."""

import copy
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import (
    CLIENTS,
    RATES,
    WHOLE,
    contents,
    differing,
    digits,
    final_state,
    metrics_of,
    run_rounds,
    tiny_data,
    tiny_task,
)
from tolerances import FLOAT32
from torch import Tensor
from torch.testing import assert_close

from subflot.algorithms import ALGORITHMS, Algorithm, make
from subflot.algorithms.base import Client
from subflot.data.dataset import Dataset
from subflot.data.federated import FederatedData
from subflot.data.split import Shares
from subflot.errors import SubflotError
from subflot.experiments import RunConfig
from subflot.task import Task

pytestmark = pytest.mark.parametrize("name", ALGORITHMS)

NEUTRAL: Mapping[str, Mapping[str, Any] | str] = {
    "subflot": {"global_share": 1.0, "penalty_weight": 0.0},
    "subflot-partial": {"global_share": 1.0, "penalty_weight": 0.0},
    "subflot-plus": {"global_share": 1.0, "penalty_weight": 0.0},
    "fedavg": {},
    "fedavg-full": {},
    "fedprox": {"proximal_weight": 0.0},
    "heterofl": {},
    "fjord": {"widths": 1},
    "fedrolex": {},
    "feddrop": {},
    "fedmp": {},
    "feddse": {},
    "adaptivefl": {},
    "flexfl": {},
    "flado": {},
    "fedma": {},
    "depthfl": {"exits": 1},
    "scalefl": {"exits": 1},
    "local": "nothing is sent",
    # Lambda times eta is one, so the copy of the global model jumps onto the personal one.
    "pfedme": {"pull_weight": 1.0, "global_rate": 1.0, "personal_steps": 1},
    "pfedme-sub": {"pull_weight": 1.0, "global_rate": 1.0, "personal_steps": 1},
    "perfedavg": "a step takes two batches, also with inner_rate=0",
    "perfedavg-sub": "a step takes two batches, also with inner_rate=0",
    "fedamp": "there is no global model",
    "fedamp-sub": "there is no global model",
    "fedfomo": "there is no global model",
    "fedfomo-sub": "there is no global model",
    "fedbn": "there is no global model",
    "fedbn-sub": "there is no global model",
    "lg-fedavg": "there is no global model",
    "lg-fedavg-sub": "there is no global model",
    "fedproto": "there is no global model",
}
"""Settings with which a method is FedAvg if every client holds the full model; or why none are."""

WITHOUT_PAPER = ("local",)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of two rounds of a method, in one process."""
    folders: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in folders:
            folders[name] = run_rounds(make(name), tmp_path_factory.mktemp(name), rounds=2)
        return folders[name]

    return folder


Undisturbed = Callable[[str], Path]


# ----- what is drawn, and by whom


def test_the_same_seed_gives_the_same_bits(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    again = run_rounds(make(name), tmp_path, rounds=2)
    assert differing(again, undisturbed(name)) == []


def test_another_seed_gives_another_model(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    other = run_rounds(make(name), tmp_path, rounds=2, seed=1)
    kinds = {file.partition("/")[0] for file in differing(other, undisturbed(name))}
    assert kinds & {"state-2.safetensors", "history", "memory"}


def test_the_number_of_workers_changes_no_bit(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    many = run_rounds(make(name), tmp_path, rounds=2, workers=3)
    assert differing(many, undisturbed(name)) == []


def test_the_order_of_the_clients_does_not_matter(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    turned = run_rounds(make(name), tmp_path, rounds=2, clients=CLIENTS[::-1])
    assert differing(turned, undisturbed(name)) == []


def test_global_random_streams_are_left_alone(name: str, tmp_path: Path) -> None:
    task = tiny_task(dropout=0.5)
    torch.manual_seed(5)
    before, numpy_before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
    run_rounds(make(name), tmp_path, task=task, rounds=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert str(np.random.get_state()) == numpy_before  # noqa: NPY002


# ----- stopping and going on


def test_a_run_that_stopped_ends_like_one_that_did_not(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    for stop in (1, None):
        run_rounds(make(name), tmp_path, rounds=2, stop_after=stop)
    assert differing(tmp_path, undisturbed(name)) == []


def test_a_finished_run_has_nothing_left_to_do(
    name: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    folder = undisturbed(name)
    before = contents(folder)
    run_rounds(make(name), folder, rounds=2, stop_after=1)
    assert contents(folder) == before
    assert not list(folder.glob("arriving/*"))


# ----- what steps may touch

STEPS = (
    *("prepare", "start", "invite", "download", "train"),
    *("place", "aggregate", "extracted", "trained"),
)


def snapshot(value: Any) -> Any:
    """Copy the tensors out of whatever a step is given."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, Task):
        return snapshot(value.initial), snapshot(dict(value.template.state_dict()))
    if isinstance(value, Mapping):
        return {key: snapshot(entry) for key, entry in value.items()}
    if is_dataclass(value):
        return [snapshot(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, list | tuple):
        return [snapshot(entry) for entry in value]
    return copy.deepcopy(value)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def guarded(step: Callable[..., Any]) -> Callable[..., Any]:
    """Make a step fail if what it was given is not afterwards what it was before."""

    @wraps(step)
    def run(algorithm: Algorithm, *given: Any) -> Any:
        arrived: list[tuple[Any, Any]] = []

        def noted(arrivals: Iterator[Any]) -> Iterator[Any]:
            for arrival in arrivals:
                arrived.append((arrival, snapshot(arrival)))
                yield arrival

        before = [one if isinstance(one, Iterator) else snapshot(one) for one in given]
        settings = dict(vars(algorithm))
        outcome = step(
            algorithm, *(noted(one) if isinstance(one, Iterator) else one for one in given)
        )
        for one, old in zip(given, before, strict=True):
            if not isinstance(one, Iterator):
                assert same(snapshot(one), old), f"{step.__name__} changed its {type(one).__name__}"
        assert all(same(snapshot(one), old) for one, old in arrived), "an arrival was changed"
        assert vars(algorithm) == settings, f"{step.__name__} stored something on the method"
        return outcome

    return run


def test_steps_change_nothing_that_they_are_given(
    name: str, undisturbed: Undisturbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in STEPS:
        monkeypatch.setattr(ALGORITHMS[name], step, guarded(getattr(ALGORITHMS[name], step)))
    task = tiny_task()
    start = snapshot(task.initial)
    run_rounds(make(name), tmp_path, rounds=2, task=task)
    assert same(task.initial, start)
    # Steps that share memory with what they return would show here.
    assert differing(tmp_path, undisturbed(name)) == []


def test_measuring_changes_nothing(name: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    seldom = run_rounds(make(name), tmp_path, rounds=2, evaluate_every=2)
    assert differing(seldom, undisturbed(name)) == ["manifest", "metrics.jsonl"]
    measured = [line["trained"] is not None for line in metrics_of(seldom)]
    assert measured == [False, True]
    assert metrics_of(seldom)[-1] == metrics_of(undisturbed(name))[-1]


# ----- what a method promises


def test_rounds_train_and_are_measured(name: str, undisturbed: Undisturbed) -> None:
    folder, kind = undisturbed(name), ALGORITHMS[name]
    for line in metrics_of(folder):
        assert line["trained"] is not None
        assert (line["global"] is not None) == kind.has_global
        assert line["num_rejected"] == 0
    if kind.has_global:
        start = kind().prepare(tiny_task()).initial
        moved = final_state(folder).weights
        assert any(not torch.equal(moved[n], t) for n, t in start.items())


def test_at_full_width_and_with_neutral_settings_it_is_fedavg(name: str, tmp_path: Path) -> None:
    assert name in NEUTRAL, "say in NEUTRAL with which settings it is FedAvg, or why with none"
    settings = NEUTRAL[name]
    if isinstance(settings, str):
        assert settings, "the reason"
        return
    runs = {
        kind: run_rounds(method, tmp_path / kind, rounds=2, clients=WHOLE)
        for kind, method in (("own", make(name, **settings)), ("plain", make("fedavg")))
    }
    own, plain = (final_state(folder).weights for folder in runs.values())
    for tensor in plain:
        assert_close(own[tensor], plain[tensor], **FLOAT32)


def rotating(round: int) -> Sequence[Client]:
    """Clients whose rates change from round to round; one joins in the third."""
    there = [client for client in CLIENTS if round > 2 or client.id != 2]
    return [replace(c, pruning_rate=RATES[(c.id + round - 1) % len(RATES)]) for c in there]


def test_what_a_client_trains_fits_its_budget_also_when_rates_change(
    name: str, tmp_path: Path
) -> None:
    method, task = make(name), tiny_task()
    folder = run_rounds(method, tmp_path, task=task, clients=rotating, rounds=3)
    if method.ignores_budgets:
        return
    budgets = {rate: task.cost(task.narrow(task.initial, rate)).parameters for rate in RATES}
    # Who can hold the whole model can hold what the method adds to it.
    whole = method.prepare(task)
    budgets[0.0] = whole.cost(whole.initial).parameters
    for line in metrics_of(folder):
        columns = line["clients"]
        for rate, parameters in zip(columns["pruning_rate"], columns["parameters"], strict=True):
            assert parameters <= budgets[rate]


def odd_data() -> FederatedData:
    """Clients with one example, with one class, without test examples, and an ordinary one."""
    labels = digits().labels
    none = np.empty(0, dtype=np.int64)
    threes = np.flatnonzero(labels == 3)
    parts = (
        Shares(np.arange(20, 40), none, np.arange(40, 50)),
        Shares(np.array([7]), none, np.arange(50, 52)),
        Shares(threes[:9], none, threes[9:]),
        Shares(np.arange(60, 69), none, none),
    )
    return FederatedData(digits(), parts)


def test_odd_clients_can_take_part(name: str, tmp_path: Path) -> None:
    folder = run_rounds(make(name), tmp_path, data=odd_data(), rounds=2)
    state = final_state(folder)
    assert all(t.isfinite().all() for t in state.weights.values())
    for line in metrics_of(folder):
        assert line["num_rejected"] == 0
        if 3 in line["clients"]["client"]:
            assert line["clients"]["num_test"][line["clients"]["client"].index(3)] is None


def poisoned_data(*clients: int) -> FederatedData:
    """Data of which some clients' are not numbers."""
    inputs = np.array(tiny_data().dataset.inputs, dtype=np.float32)
    for client in clients:
        inputs[tiny_data().shares[client].train] = np.nan
    whole = digits()
    return FederatedData(Dataset("ill", inputs, whole.labels, whole.classes), tiny_data().shares)


def test_a_client_that_diverges_is_left_out_and_the_others_go_on(name: str, tmp_path: Path) -> None:
    # `fedavg-full` has one client that can take part; the others are then whole too.
    clients = WHOLE if name == "fedavg-full" else CLIENTS
    folder = run_rounds(make(name), tmp_path, data=poisoned_data(2), clients=clients, rounds=2)
    assert all(t.isfinite().all() for t in final_state(folder).weights.values())
    for line in metrics_of(folder):
        columns = line["clients"]
        faults = dict(zip(columns["client"], columns.get("fault", []), strict=False))
        assert line["num_rejected"] == (2 in columns["client"])
        assert [client for client, fault in faults.items() if fault] in ([], [2])
    for file in folder.rglob("*.safetensors"):
        assert not file.name.startswith("2-"), "the client's bad upload was kept"


def test_without_a_good_upload_there_is_one_clear_error(name: str, tmp_path: Path) -> None:
    data = poisoned_data(*range(len(RATES)))
    with pytest.raises(SubflotError, match=r"round 1 has 0 good uploads of \d: client 0: .* NaN"):
        run_rounds(make(name), tmp_path, data=data)
    assert metrics_of(tmp_path) == []


# ----- settings and papers


def altered(name: str, key: str, value: Any) -> Any:
    """Another value of a setting that the method takes; the same if none is found."""
    other = value
    if isinstance(value, bool):
        other = not value
    elif isinstance(value, int | float):
        other = value + 1 if isinstance(value, int) else value / 2
    try:
        make(name, **{key: other})
    except SubflotError:
        return value
    return other


def test_settings_survive_being_written_and_read(name: str) -> None:
    defaults = {field.name: field.default for field in fields(ALGORITHMS[name])}  # type: ignore[arg-type]
    changed = {key: altered(name, key, value) for key, value in defaults.items()}
    config = RunConfig.of(algorithm=name, rounds=7, **changed)
    again = RunConfig.of(**tomllib.loads(config.toml()))
    assert again == config
    assert again.run_id == config.run_id
    assert again.method == make(name, **changed)


def test_its_module_names_its_paper(name: str) -> None:
    kind = ALGORITHMS[name]
    text = sys.modules[kind.__module__].__doc__ or ""
    assert kind.name == name
    assert bool(kind.paper) == (name not in WITHOUT_PAPER)
    if kind.paper:
        assert "Paper: " in text
        for word in kind.paper.replace(",", "").split():
            assert word in text
