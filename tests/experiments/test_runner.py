"""One config from settings to record: what is built, kept, refused and done again."""

import fcntl
import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import differing, metrics_of
from made_files import flip, without_checksums

from subflot.errors import SubflotError
from subflot.experiments import RunConfig, run
from subflot.experiments.runner import assemble
from subflot.results import RunRecord
from subflot.simulation import Round
from subflot.simulation.store import forget

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.one, self.two = nn.Linear(64, 6), nn.Linear(6, classes)
    def forward(self, x):
        return self.two(torch.relu(self.one(x.flatten(1))))

class Few(Net):
    def __init__(self):
        super().__init__(4)

class Coloured(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 10, 8)
    def forward(self, x):
        return self.one(x).flatten(1)
"""


@pytest.fixture
def net(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NET)
    return str(tmp_path / "net.py")


def read(record: RunRecord) -> None:
    _ = record.config, record.environment, record.rounds


@contextmanager
def handled_by(
    handler: Callable[..., Any] = signal.default_int_handler,
) -> Iterator[None]:
    """Where tests run in the background, signals from the keyboard are ignored: set a handler."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def tiny(**settings: Any) -> RunConfig:
    usual = {"algorithm": "heterofl", "num_clients": 3, "max_examples": 150, "epochs": 1}
    return RunConfig.of(**{**usual, "rounds": 2, "batch_size": 16, **settings})


# ----- what is built


def test_methods_meet_the_same_model_data_and_rates() -> None:
    one, other, elsewhere = (
        assemble(tiny(algorithm=name, seed=seed))
        for name, seed in (("subflot", 0), ("fedavg", 0), ("subflot", 1))
    )
    assert all(torch.equal(one[0].initial[n], t) for n, t in other[0].initial.items())
    assert any(not torch.equal(one[0].initial[n], t) for n, t in elsewhere[0].initial.items())
    for first, second in zip(one[1].shares, other[1].shares, strict=True):
        assert np.array_equal(first.train, second.train)
        assert np.array_equal(first.test, second.test)
    assert one[2](1) == other[2](1)


def test_the_server_holds_training_examples_alone() -> None:
    task, data, _ = assemble(tiny(proxy_share=0.1))
    assert task.proxy is not None
    trained_on = torch.cat([data.train(client).inputs for client in range(3)])
    rows = {tuple(row) for row in trained_on.flatten(1).tolist()}
    assert len(task.proxy) == round(0.1 * len(trained_on))
    assert all(tuple(row) in rows for row in task.proxy.inputs.flatten(1).tolist())
    assert assemble(tiny(proxy_share=0.0))[0].proxy is None


def test_settings_can_be_chosen_on_validation_examples() -> None:
    shares = {"validation_share": 0.3}
    usual = assemble(tiny(**shares))[1]
    hidden = assemble(tiny(**shares, measure_on="validation"))[1]
    for client in range(3):
        assert np.array_equal(hidden.shares[client].test, usual.shares[client].validation)
        assert np.array_equal(hidden.shares[client].train, usual.shares[client].train)
        assert len(hidden.shares[client].validation) == 0


def test_budgets_become_the_rates_of_the_widest_models_that_fit() -> None:
    task, _, roster = assemble(tiny(budgets=[6000, 30000], num_clients=12))
    rates = {client.pruning_rate for client in roster(1)}
    assert len(rates) == 2
    assert 0.0 in rates
    narrow = task.cost(task.narrow(task.initial, max(rates))).parameters
    assert 5000 < narrow <= 6000


def test_rates_may_be_given_for_every_client() -> None:
    roster = assemble(tiny(client_rates=[0.5, 0.0, 0.25]))[2]
    assert [client.pruning_rate for client in roster(1)] == [0.5, 0.0, 0.25]


def test_a_model_of_ones_own_is_built_from_its_file(net: str) -> None:
    task, _, _ = assemble(tiny(model=f"{net}:Net"))
    assert task.initial["one.weight"].shape == (6, 64)
    again, _, _ = assemble(tiny(model=f"{net}:Net"))
    assert torch.equal(task.initial["one.weight"], again.initial["one.weight"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "NET:Few"}, r"Few returns \(2, 4\) for 2 examples\n.*has 10 classes"),
        ({"model": "NET:Coloured"}, r"cannot take inputs of shape \(1, 8, 8\) from .*`digits`"),
        ({"model": "harcnn"}, r"harcnn cannot take inputs of shape \(1, 8, 8\)"),
        ({"per_round": 4}, r"per_round is 4\n.*there are 3 clients"),
        ({"num_clients": 5000}, r"5000"),
        ({"client_rates": [0.5]}, r"client_rates names 1 rates for 3 clients"),
        ({"budgets": [10]}, r"no model fits a budget of 10 parameters"),
        ({"budgets": [9999], "budget": "meters"}, r"unknown budget `meters`\n.*`parameters`"),
        ({"test_share": 1.5}, r"test_share is 1.5"),
        ({"device": "gpu"}, r"device is 'gpu'"),
    ],
)
def test_what_cannot_be_built_is_one_clear_error(
    settings: dict[str, Any], message: str, net: str
) -> None:
    settings = {k: v.replace("NET", net) if k == "model" else v for k, v in settings.items()}
    with pytest.raises(SubflotError, match=message):
        assemble(tiny(**settings))


# ----- folders


def test_a_run_leaves_its_record(tmp_path: Path) -> None:
    seen: list[Round] = []
    record = run(tiny(), tmp_path, workers=1, on_round=seen.append)
    assert [done.round for done in seen] == [1, 2]
    assert [line["round"] for line in record.rounds] == [1, 2]
    assert record.is_finished
    assert record.config["max_examples"] == 150
    summary = json.loads((tmp_path / "summary.json").read_text())
    sums = summary.pop("checksums")
    logs = ["metrics.jsonl", "timing.jsonl"]
    assert list(sums) == ["config.toml", "environment.json", "channels.json", *logs]
    assert summary == record.summary()
    assert summary["trained"] == record.rounds[-1]["trained"]["mean"]
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["torch"] == torch.__version__


def test_a_finished_run_is_not_run_again_unless_forced(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "one", workers=1)
    run(tiny(), tmp_path / "two", workers=1)
    seen: list[Round] = []
    run(tiny(), tmp_path / "one", workers=1, on_round=seen.append)
    assert seen == []
    (tmp_path / "one" / "metrics.jsonl").write_text("nonsense\n")
    run(tiny(), tmp_path / "one", workers=1, force=True, on_round=seen.append)
    assert len(seen) == 2
    assert differing(tmp_path / "one", tmp_path / "two") == []


def interrupted(folder: Path, config: RunConfig) -> None:
    def stop(done: Round) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, folder, workers=1, on_round=stop)


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path / "one", tiny())
    assert not RunRecord(tmp_path / "one").is_finished
    seen: list[Round] = []
    run(tiny(), tmp_path / "one", workers=1, on_round=seen.append)
    assert [done.round for done in seen] == [2]
    run(tiny(), tmp_path / "two", workers=1)
    assert differing(tmp_path / "one", tmp_path / "two") == []


@pytest.mark.parametrize("in_its_place", [None, ValueError("no shape")])
def test_ctrl_c_that_a_library_swallows_or_replaces_still_ends_the_run(
    tmp_path: Path, in_its_place: Exception | None
) -> None:
    def pressed(_: Round) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            if in_its_place:
                raise in_its_place from None

    with handled_by(), pytest.raises(KeyboardInterrupt):
        run(tiny(rounds=3), tmp_path, workers=1, on_round=pressed)
    assert len(RunRecord(tmp_path).rounds) == 1
    assert run(tiny(rounds=3), tmp_path, workers=1).is_finished


def test_the_users_own_handler_of_ctrl_c_stays(tmp_path: Path) -> None:
    heard: list[int] = []
    with handled_by(lambda number, _: heard.append(number)):
        handler = signal.getsignal(signal.SIGINT)
        run(tiny(), tmp_path, workers=1, on_round=lambda _: signal.raise_signal(signal.SIGINT))
        assert signal.getsignal(signal.SIGINT) is handler
    assert heard == [signal.SIGINT] * 2


def test_a_folder_of_other_settings_is_refused_and_left_alone(tmp_path: Path) -> None:
    interrupted(tmp_path, tiny())
    with pytest.raises(
        SubflotError, match=r"run of other settings: learning_rate, rounds\n.*force"
    ):
        run(tiny(rounds=3, learning_rate=0.2), tmp_path, workers=1)
    assert len(metrics_of(tmp_path)) == 1
    run(tiny(rounds=3, learning_rate=0.2), tmp_path, workers=1, force=True)
    assert RunRecord(tmp_path).config["learning_rate"] == 0.2
    assert len(metrics_of(tmp_path)) == 3


def test_a_run_from_before_a_setting_existed_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path, tiny())
    without_checksums(tmp_path)
    path = tmp_path / "config.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("max_norm")]
    path.write_text("\n".join(lines))
    assert run(tiny(), tmp_path, workers=1).is_finished
    without_checksums(tmp_path)
    path.write_text("\n".join([*lines, "max_norm = 5.0"]))
    with pytest.raises(SubflotError, match="other settings: max_norm"):
        run(tiny(), tmp_path, workers=1)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    interrupted(tmp_path, tiny())
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(SubflotError, match=r"is in use by another process\n.*wait for it"):
            run(tiny(), tmp_path, workers=1)
    assert run(tiny(), tmp_path, workers=1).is_finished


def test_a_run_that_lost_its_summary_is_summed_up_again(tmp_path: Path) -> None:
    run(tiny(), tmp_path, workers=1)
    (tmp_path / "summary.json").unlink()
    seen: list[Round] = []
    record = run(tiny(), tmp_path, workers=1, on_round=seen.append)
    assert seen == []
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary == {**record.summary(), "checksums": record.checksums()}


@pytest.mark.parametrize("file", ["config.toml", "environment.json", "metrics.jsonl"])
@pytest.mark.parametrize("has_models", [True, False])
def test_damage_to_a_finished_record_shows_with_and_without_its_models(
    file: str, has_models: bool, tmp_path: Path
) -> None:
    run(tiny(), tmp_path, workers=1)
    if not has_models:
        forget(tmp_path)
    flip(tmp_path / file, -12)
    with pytest.raises(SubflotError, match=rf"{file} is damaged: .*\n.*restore the file"):
        read(RunRecord(tmp_path))


@pytest.mark.parametrize("file", ["config.toml", "environment.json", "metrics.jsonl"])
def test_a_run_does_not_go_on_with_a_damaged_file(file: str, tmp_path: Path) -> None:
    interrupted(tmp_path, tiny())
    path = tmp_path / file
    text = path.read_text()
    for damaged in (text.replace("0", "1"), text[:-1], text[:-9] + 9 * "\0"):
        path.write_text(damaged)
        with pytest.raises(SubflotError, match=rf"{file} is (damaged|shorter).*\n.*restore the f"):
            run(tiny(), tmp_path, workers=1)
    path.write_text(text)
    assert run(tiny(), tmp_path, workers=1).is_finished


def test_a_place_that_is_no_folder_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SubflotError, match=r"cannot write .*file"):
        run(tiny(), tmp_path / "file" / "run", workers=1)
