"""Settings: where each belongs, which are refused, and what names a run."""

import itertools
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subflot.algorithms import ALGORITHMS
from subflot.algorithms.subflot import SubFLOT
from subflot.data.partition import PARTITIONS
from subflot.data.sets import SETS
from subflot.errors import SubflotError, UnknownName
from subflot.experiments.config import (
    PARTS,
    RunConfig,
    config_of,
    grid,
    model_settings,
    parse,
    read_config,
)
from subflot.models import MODELS
from subflot.task import LocalTraining


def test_settings_find_where_they_belong() -> None:
    config = RunConfig.of(rounds=3, global_share=0.3, concentration=0.2, learning_rate=1)
    assert config.rounds == 3
    assert config.algorithm_settings["global_share"] == 0.3
    assert config.partition_settings["concentration"] == 0.2
    assert config.method.global_share == 0.3  # type: ignore[attr-defined]
    assert config.local == LocalTraining(learning_rate=1.0)


def test_no_part_has_a_setting_with_the_name_of_one_of_the_run() -> None:
    own = {field.name for field in fields(RunConfig)}
    for part, names in (("algorithm", ALGORITHMS), ("partition", PARTITIONS), ("model", MODELS)):
        for name in names:
            offered = RunConfig(**{part: name})._offers(part)  # type: ignore[arg-type]
            assert not offered.keys() & own, f"{part} {name}"
    for name in SETS:
        assert not RunConfig(data=name)._offers("data").keys() & own


# ----- writing and reading


def test_what_is_written_is_read_back() -> None:
    config = RunConfig.of(
        name="mine",
        algorithm="subflot",
        client_rates=[0, 0.5],
        num_clients=2,
        penalty_weight="auto",
        partition="pathological",
        classes_per_client=3,
        validation_share=0.25,
        measure_on="validation",
    )
    again = RunConfig.of(**tomllib.loads(config.toml()))
    assert again == config
    assert again.run_id == config.run_id


@given(
    name=st.text(st.characters(exclude_categories=["Cs"])),
    budgets=st.lists(st.floats(min_value=0, exclude_min=True, allow_nan=False)),
)
def test_any_text_and_any_number_is_read_back(name: str, budgets: list[float]) -> None:
    """Emoji, control characters and infinity too."""
    config = RunConfig.of(name=name, budgets=budgets, concentration=float("inf"))
    assert RunConfig.of(**tomllib.loads(config.toml())) == config


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"test_share": float("nan")}, "test_share is nan"),
        ({"budgets": [1.0, float("nan")]}, "budgets is nan"),
        ({"concentration": float("nan")}, "concentration is nan"),
        ({"name": "run-\udcff"}, r"name is 'run-\\udcff', which is no text"),
    ],
)
def test_what_cannot_be_written_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(SubflotError, match=why):
        RunConfig.of(**settings)


@pytest.mark.parametrize("lost", ["num_clients", "epochs", "algorithm", "seed", "penalty_weight"])
def test_settings_that_lost_a_line_are_not_those_of_the_run(lost: str, tmp_path: Path) -> None:
    config = RunConfig.of(
        algorithm="subflot-partial", num_clients=4, epochs=1, seed=3, penalty_weight=0.5
    )
    folder = tmp_path / config.run_id
    folder.mkdir()
    path = folder / "config.toml"
    path.write_text(config.toml())
    assert config_of(folder) == config
    lines = [one for one in path.read_text().splitlines(True) if not one.startswith(f"{lost} =")]
    path.write_text("".join(lines))
    with pytest.raises(
        SubflotError, match=r"config\.toml holds the settings of subflot-.*lost lines"
    ):
        config_of(folder)
    named = tmp_path / "mine"  # Who gives a folder another name is on their own.
    folder.rename(named)
    assert config_of(named) != config


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"cannot read .*none\.toml: No such file"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes('name = "für"'.encode("latin-1"))
    with pytest.raises(SubflotError, match=r"latin\.toml is not UTF-8: .* in byte 9\n.*save it as"):
        read_config(tmp_path / "latin.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(SubflotError, match=r"bad\.toml is not TOML: .*line 1"):
        read_config(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("rounds=3", 3),
        ("rounds=1e-3", 0.001),
        ("algorithm=fedavg", "fedavg"),
        ("algorithm=fedavg,local", ["fedavg", "local"]),
        ('name="a=b"', "a=b"),
        ("rates=[0, 0.5]", [0, 0.5]),
        ("scaler=true", True),
    ],
)
def test_values_are_read_as_in_toml_and_quotes_may_be_left_out(pair: str, expected: Any) -> None:
    assert parse([pair]) == {pair.partition("=")[0]: expected}


@pytest.mark.parametrize("pair", ["rounds", "=3", ""])
def test_a_pair_that_sets_nothing_is_refused(pair: str) -> None:
    with pytest.raises(SubflotError, match=f"`{pair}` sets nothing"):
        parse([pair])


# ----- what is refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rat": 0.1}, "unknown setting `learning_rat`\n.*did you mean `learning_rate`"),
        ({"global_shar": 0.1}, "unknown setting `global_shar`\n.*did you mean `global_share`"),
        ({"algorithm": "fedavg", "global_share": 0.1}, "unknown setting `global_share`"),
        ({"algorithm": "fedrolx"}, "unknown algorithm `fedrolx`\n.*did you mean `fedrolex`"),
        ({"partition": "dirichlt"}, "unknown partition `dirichlt`\n.*did you mean `dirichlet`"),
        ({"data": "digts"}, "unknown data set `digts`\n.*did you mean `digits`"),
        ({"model": "vgg12"}, "unknown model `vgg12`\n.*did you mean `vgg11"),
        ({"pruning_rates": [0, 1.0]}, r"pruning_rates is \[0.0, 1.0\]\n.*lies in \[0, 1\)"),
        ({"client_rates": [-0.5]}, r"client_rates is \[-0.5\]"),
        ({"pruning_rates": "much"}, "pruning_rates is 'much'"),
        ({"client_rates": ["much"]}, "client_rates is 'much'"),
        ({"rounds": 0}, "rounds is 0\n.*at least 1"),
        ({"rounds": 2.5}, "rounds is 2.5\n.*of type int"),
        ({"rounds": True}, "rounds is True"),
        ({"num_clients": -1}, "num_clients is -1"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"learning_rate": -0.1}, "learning_rate is -0.1"),
        ({"learning_rate": True}, "learning_rate is True"),
        ({"concentration": "low"}, "concentration is 'low'"),
        ({"measure_on": "train"}, "unknown measure_on `train`"),
        ({"measure_on": "validation"}, "no validation examples to measure on"),
        ({"global_share": "often"}, "global_share"),
        ({"extract": "prefx"}, "unknown extract `prefx`\n.*did you mean `prefix`"),
        ({"algorithm": "fedprox", "proximal_weight": "x"}, "proximal_weight is 'x'"),
        ({"entropy": "high"}, "entropy is 'high'"),
        ({"epochs": -1}, "epochs is -1"),
    ],
)
def test_settings_without_meaning_are_one_clear_error(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SubflotError, match=message):
        RunConfig.of(**settings)


# ----- names of runs


def test_names_of_runs_do_not_change() -> None:
    # If this fails, results that were recorded are run again: raise RESULTS_VERSION or mend it.
    assert RunConfig.of().run_id == "subflot-s0-dabb20f16a"
    assert RunConfig.of(algorithm="heterofl", seed=3, rounds=5).run_id == "heterofl-s3-0afe328296"


def test_the_name_of_a_run_depends_on_every_setting_but_its_folder() -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"algorithm": "fedavg"},
        {"rounds": 21},
        {"seed": 1},
        {"pruning_rates": [0.0, 0.5]},
        {"client_rates": [0.0] * 20},
        {"global_share": 0.25},
        {"concentration": 0.125},
        {"partition": "iid"},
        {"model": "vgg11"},
        {"width": 0.5},
        {"learning_rate": 0.01},
        {"evaluate_every": 2},
    ]
    names = [RunConfig.of(**change).run_id for change in changes]
    assert len(set(names)) == len(names)
    assert RunConfig.of(name="elsewhere").run_id == names[0]


def test_a_method_that_gives_other_numbers_gives_its_runs_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = [RunConfig.of(), RunConfig.of(algorithm="heterofl"), RunConfig.of(rounds=3)]
    before = [config.run_id for config in configs]
    monkeypatch.setattr(SubFLOT, "version", 2)
    second = [config.run_id for config in configs]
    monkeypatch.setattr(SubFLOT, "version", 3)
    third = [config.run_id for config in configs]
    assert before[1] == second[1] == third[1]
    for number in (0, 2):
        assert len({before[number], second[number], third[number]}) == 3


def test_a_run_by_an_earlier_version_is_told_from_one_that_lost_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig.of(algorithm="heterofl")
    folder = tmp_path / config.run_id
    folder.mkdir()
    (folder / "config.toml").write_text(config.toml())
    monkeypatch.setattr(type(config.method), "version", 3)
    assert config.named(1) == folder.name != config.run_id == config.named(3)
    with pytest.raises(SubflotError, match="run with version 1 of heterofl, which is at 3"):
        config_of(folder)


def test_a_default_that_is_written_out_changes_no_name() -> None:
    usual = RunConfig.of()
    for key, value in usual.flat().items():
        assert RunConfig.of(**{key: value}).run_id == usual.run_id


def test_the_name_of_a_run_depends_on_what_the_file_of_its_model_says(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("Net = 1\n")
    first = RunConfig.of(model=f"{file}:Net")
    assert RunConfig.of(model=f"{file}:Net").run_id == first.run_id
    assert RunConfig.of(**tomllib.loads(first.toml())).run_id == first.run_id
    file.write_text("Net = 2\n")
    assert RunConfig.of(model=f"{file}:Net").run_id != first.run_id
    assert first.run_id == RunConfig.of(**tomllib.loads(first.toml())).run_id
    assert "model_digest" not in RunConfig.of().toml()


def test_the_file_of_a_model_must_be_there() -> None:
    with pytest.raises(SubflotError, match=r"there is no file none\.py\n.*the folder you are in"):
        RunConfig.of(model="none.py:Net")
    with pytest.raises(SubflotError, match=r"there is no module nonesuch\n.*FILE\.py:NAME"):
        RunConfig.of(model="nonesuch:Net")
    with pytest.raises(SubflotError, match=r"cannot import nonesuch\.net: ModuleNotFound"):
        RunConfig.of(model="nonesuch.net:Net")


@given(st.lists(st.sampled_from([0, 0.0, 0.5, 0.25]), min_size=1, max_size=5))
def test_equal_settings_have_equal_names(rates: list[float]) -> None:
    as_fractions = [float(rate) for rate in rates]
    for key in ("client_rates", "pruning_rates"):
        one, other = RunConfig.of(**{key: rates}), RunConfig.of(**{key: as_fractions})
        assert one == other
        assert one.run_id == other.run_id
    assert RunConfig.of(budgets=[100]).run_id == RunConfig.of(budgets=[100.0]).run_id


# ----- several runs in a file


def test_lists_of_methods_and_seeds_make_a_grid() -> None:
    runs = grid({"algorithm": ["subflot", "fedavg"], "seed": [0, 7], "rounds": 4})
    assert [(run.seed, run.algorithm) for run in runs] == list(
        itertools.product((0, 7), ("subflot", "fedavg"))
    )
    assert {run.rounds for run in runs} == {4}


def test_one_method_and_one_seed_need_no_list() -> None:
    (run,) = grid({"algorithm": "local", "seed": 5})
    assert (run.algorithm, run.seed) == ("local", 5)
    (run,) = grid({})
    assert run == RunConfig.of()


def test_a_setting_of_one_method_is_given_to_that_method() -> None:
    prox, avg = grid({"algorithm": ["fedprox", "fedavg"], "proximal_weight": 0.5})
    assert prox.method.proximal_weight == 0.5  # type: ignore[attr-defined]
    assert avg == RunConfig.of(algorithm="fedavg")


def test_a_table_for_a_method_holds_for_it_alone() -> None:
    settings = tomllib.loads(
        """
        algorithm = ["subflot", "fedavg"]
        learning_rate = 0.1
        [for.subflot]
        learning_rate = 0.02
        global_share = 0.7
        """
    )
    own, other = grid(settings)
    assert own.learning_rate == 0.02
    assert own.method.global_share == 0.7  # type: ignore[attr-defined]
    assert other.learning_rate == 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": ["subflot", "fedavgg"]}, "unknown algorithm `fedavgg`"),
        ({"for": {"sublot": {}}}, "unknown algorithm `sublot`\n.*did you mean `subflot`"),
        ({"proximal_weight": 0.5}, "unknown setting `proximal_weight`"),
        ({"algorithm": 3}, "algorithm is 3"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": "one"}, "seed is 'one'"),
        ({"for": 3}, "for is 3"),
        ({"for": {"subflot": 3}}, "for is {'subflot': 3}"),
    ],
)
def test_grids_without_meaning_are_one_clear_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SubflotError, match=message):
        grid(settings)


def test_an_unknown_name_is_an_error_of_its_own_kind() -> None:
    with pytest.raises(UnknownName):
        RunConfig.of(algorithm="nothing")
    assert set(PARTS) == {"algorithm", "partition", "data", "model"}


def test_no_setting_of_a_method_is_called_like_one_of_the_run_the_data_or_the_model() -> None:
    """In a file of runs settings stand side by side; each must be somebody's alone."""
    others = {field.name for field in fields(RunConfig)}
    others |= {key for partition in PARTITIONS.values() for key in partition.settings}
    others |= {field.name for source in SETS.values() for field in fields(source.settings)}
    others |= {key for network in MODELS.values() for key in model_settings(network.build)}
    for name, kind in ALGORITHMS.items():
        assert not others & {field.name for field in fields(kind)}, name  # type: ignore[arg-type]
