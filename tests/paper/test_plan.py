"""Tables are grids of runs: the paper's numbers, its protocol, and nothing run twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import made_run

from subflot.algorithms.fedprox import FedProx
from subflot.errors import SubflotError
from subflot.experiments import RunConfig, tuning
from subflot.experiments.batch import run_all, unfinished
from subflot.experiments.tuning import Choice
from subflot.paper import fill as fills
from subflot.paper import plan as plans
from subflot.paper.estimate import estimate
from subflot.paper.fill import fill
from subflot.paper.grids import Column, Grid, PaperTask, Row, find, tasks
from subflot.paper.plan import Planned, choose, plan, slots, subjects, tuning_of
from subflot.paper.results import RESULTS, Table
from subflot.paper.scales import SCALES, DataAtHand, Terms, at_hand
from subflot.paper.sheet import read_sheet
from subflot.results import METRICS, RunRecord

GRIDS = [
    name for found in RESULTS.values() for name, one in found.items() if isinstance(one, Table)
]
SUBMODELS = ("label-skew", "feature-shift", "clients", "heterogeneity", "sparsity")


@pytest.fixture
def all_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every data set were here."""

    def everything(column: Column, settings: Any) -> DataAtHand:
        return DataAtHand({}, column.task.domains)

    for module in (plans, fills):
        monkeypatch.setattr(module, "at_hand", everything)


# ----- what the paper prints


def test_the_mean_over_domains_is_the_mean_of_the_domains() -> None:
    shown = find("feature-shift")
    for column in shown.columns:
        for row in shown.rows if column.mean_of else ():
            mean = shown.printed_mean(row.name, column.mean_of)
            # Each number has two digits, of which the last was rounded.
            assert shown.printed[row.name, column.name] == pytest.approx(mean, abs=0.0101)


@pytest.mark.parametrize("name", SUBMODELS)
def test_the_paper_has_subflot_first_in_every_column(name: str) -> None:
    shown = find(name)
    for column in {column for _, column in shown.printed}:
        best = max(shown.rows, key=lambda row: shown.printed[row.name, column])
        assert best.name == "subflot"


def test_tables_that_share_a_run_print_the_same_number() -> None:
    main = find("label-skew").printed
    assert main["subflot", "cifar10"] == 83.78
    for name, row, column in (
        ("sparsity", "subflot", "medium"),
        ("ablation", "subflot", "cifar10"),
        ("proxy", "history", "cifar10"),
        ("hyperparameters", "alpha-0.5", "cifar10"),
        ("hyperparameters", "lambda-1", "cifar10"),
        ("personalised", "subflot", "cifar10"),
    ):
        assert find(name).printed[row, column] == main["subflot", "cifar10"]
    for column in ("cifar100", "tiny-imagenet"):
        assert find("personalised").printed["subflot", column] == main["subflot", column]
    medium = {row: n for (row, column), n in find("sparsity").printed.items() if column == "medium"}
    differing = [row for row, number in medium.items() if number != main[row, "cifar10"]]
    assert differing == ["flexfl"]  # 83.10 in one table of the paper, 82.37 in the other.


def test_grids_have_the_papers_size() -> None:
    sizes = {name: (len(find(name).rows), len(find(name).printed)) for name in SUBMODELS}
    assert sizes == {
        "label-skew": (11, 88),
        "feature-shift": (11, 121),
        "clients": (11, 55),
        "heterogeneity": (11, 66),
        "sparsity": (11, 44),
    }
    assert len(find("label-skew").spread) == 88
    assert len(find("hyperparameters").printed) == 8


# ----- which runs they are


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", GRIDS)
def test_every_cell_of_every_scale_is_a_run_with_known_settings(
    all_data: None, name: str, scale: str
) -> None:
    found = slots(find(name), Terms(scale, "printed", (0,)))
    assert [slot.reason for slot in found if slot.reason] == []


def test_the_papers_scale_is_the_printed_protocol(all_data: None) -> None:
    for slot in slots(find("label-skew"), Terms("paper", "printed", (0,))):
        config = slot.config
        assert config is not None
        assert (config.rounds, config.epochs, config.batch_size) == (200, 5, 256)
        assert (config.learning_rate, config.momentum, config.max_examples) == (0.001, 0.0, 0)
        assert config.pruning_rates == (0.0, 0.25, 0.5, 0.75)
        assert config.num_clients == (0 if config.data == "har" else 20)
    shares = {
        slot.column.name: (slot.config.num_clients, slot.config.per_round)
        for slot in slots(find("clients"), Terms("paper"))
        if slot.config
    }
    assert shares == {
        "10": (10, 0),
        "30": (30, 0),
        "50": (50, 0),
        "50-partial": (50, 5),
        "100-partial": (100, 10),
    }


def runs_of(name: str, row: str, column: str, scale: str = "paper") -> set[str]:
    return {
        slot.config.run_id
        for slot in slots(find(name), Terms(scale))
        if slot.config and (slot.row.name, slot.column.name) == (row, column)
    }


@pytest.mark.parametrize("scale", SCALES)
def test_what_tables_share_is_one_run(all_data: None, scale: str) -> None:
    one = runs_of("label-skew", "subflot", "cifar10", scale)
    assert len(one) == 1
    for name, row, column in (
        ("sparsity", "subflot", "medium"),
        ("ablation", "subflot", "cifar10"),
        ("proxy", "history", "cifar10"),
        ("hyperparameters", "alpha-0.5", "cifar10"),
        ("hyperparameters", "lambda-1", "cifar10"),
        ("time", "subflot", "cifar10"),
    ):
        assert runs_of(name, row, column, scale) == one
    assert runs_of("ablation", "without-otp", "cifar10", scale) != one
    assert runs_of("sparsity", "subflot", "high", scale) != one


def test_settings_of_the_user_win_and_a_slip_is_an_error(all_data: None) -> None:
    terms = Terms("paper", settings={"rounds": 7, "learning_rate": 0.5})
    configs = [slot.config for slot in slots(find("proxy"), terms)]
    assert {(one.rounds, one.learning_rate) for one in configs if one} == {(7, 0.5)}
    with pytest.raises(SubflotError, match="no run fits these settings: unknown setting `roundz`"):
        slots(find("proxy"), Terms(settings={"roundz": 7}))
    with pytest.raises(SubflotError, match="seed cannot be set for a whole table"):
        Terms(settings={"seed": 1})


def test_smoke_fills_a_cross_and_the_others_everything(all_data: None, tmp_path: Path) -> None:
    shown = find("label-skew")
    smoke = plan(shown, Terms("smoke"), [tmp_path])
    found = {(one.config.algorithm, one.config.data) for one in smoke if one.config}
    assert len([algorithm for algorithm, data in found if data == "har"]) == 11
    assert {algorithm for algorithm, data in found if data != "har"} == {"subflot"}
    assert len(plan(shown, Terms("reduced", seeds=(0, 1, 2)), [tmp_path])) == 88 * 3
    some = Terms("reduced", rows=("subflot", "flado"), columns=("har", "cifar10"))
    assert len(plan(shown, some, [tmp_path])) == 4


def test_a_search_adds_its_trials_for_each_method_and_task(
    all_data: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shown = find("sparsity")
    found = plan(shown, Terms("reduced", "searched", (0, 1), rows=("flado",)), [tmp_path])
    # Two tasks; four columns of each, two seeds. Low to dynamic share their settings.
    assert sum(one.is_trial for one in found) == 2 * tuning.TRIALS
    assert sum(not one.is_trial for one in found) == 8 * 2


def test_unknown_rows_and_columns_offer_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match="did you mean `har`"):
        fill(find("label-skew"), Terms(columns=("hat",)), tmp_path)


# ----- what is missing


def test_data_that_is_not_here_is_a_missing_cell_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path / "empty"))
    path = fill(find("label-skew"), Terms(), tmp_path, lambda configs: {})
    sheet = read_sheet(path)
    reason = "data set `har` is not here; `subflot data list` says where it belongs"
    assert sheet.cells["subflot", "har"].reason == reason
    assert sum(len(cells) for cells in sheet.missing.values()) == 88


def test_of_digit5_the_domains_at_hand_will_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path))
    (tmp_path / "digit5").mkdir()
    for file in ("mnist_data.mat", "usps_28x28.mat"):
        (tmp_path / "digit5" / file).touch()
    shown = find("feature-shift")
    terms = Terms("reduced")
    columns = {column.name: column for column in shown.columns}
    here = at_hand(columns["usps"], terms.of(columns["usps"]))
    assert (here.domains, here.settings["domains"]) == (("mnist", "usps"), ("mnist", "usps"))
    assert (
        "`svhn` of `digit5` is not here"
        in at_hand(columns["svhn"], terms.of(columns["svhn"])).missing
    )
    assert "`pacs` is not here" in at_hand(columns["photo"], terms.of(columns["photo"])).missing
    path = fill(shown, terms, tmp_path / "out")
    cells = {(c["row"], c["column"]): c for c in json.loads(path.read_text())["cells"]}
    assert cells["subflot", "usps"]["part"] == [1, 2]
    assert cells["subflot", "digit5"]["part"] is None
    # The paper's mean of the two domains that there are: (98.65 + 98.20) / 2.
    assert cells["subflot", "digit5"]["printed"] == pytest.approx(98.425)
    assert cells["subflot", "mnist"]["printed"] == 98.65
    assert "of the domains at hand, mnist, usps" in read_sheet(path).about["notes"][0]


# ----- running them

TASK = PaperTask(
    "digits",
    "Digits",
    1797,
    {"data": "digits", "model": "digits-cnn", "partition": "iid", "num_clients": 3},
    {"smoke": {"max_examples": 90, "per_round": 0, "rounds": 1}},
)
TINY = Grid(
    "tiny",
    "Tiny",
    "nowhere",
    tuple(Row(name, name, name) for name in ("fedavg", "local")),
    (
        Column("digits", "Digits", TASK),
        Column("odd", "Odd", TASK, {"partition": "pathological", "classes_per_client": 99}),
    ),
    "digits",
    {("fedavg", "digits"): 50.0},
    {},
)
EVERYTHING = Terms(rows=("fedavg", "local"))


def test_a_run_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    ended: list[tuple[str, str]] = []

    def runner(configs: Any) -> dict[str, str]:
        return run_all(
            configs,
            tmp_path / "runs",
            workers=1,
            on_end=lambda config, reason: ended.append((config.run_id, reason)),
        )

    sheet = read_sheet(fill(TINY, EVERYTHING, tmp_path, runner))
    assert sheet.cells["fedavg", "digits"].mean is not None
    assert sheet.cells["local", "odd"].reason == "classes_per_client is 99"
    assert len(ended) == 4
    # What is finished is not run again.
    before = sheet.cells["fedavg", "digits"].values
    ended.clear()
    again = read_sheet(fill(TINY, EVERYTHING, tmp_path, runner))
    assert {reason for _, reason in ended} == {"classes_per_client is 99"}
    assert again.cells["fedavg", "digits"].values == before
    # And without running anything, the same numbers are drawn.
    drawn = read_sheet(fill(TINY, EVERYTHING, tmp_path))
    assert drawn.cells["local", "digits"].values == sheet.cells["local", "digits"].values


def test_models_of_finished_runs_go_unless_they_are_kept(tmp_path: Path) -> None:
    config = one_run()
    run_all([config], tmp_path / "without", workers=1)
    run_all([config], tmp_path / "with", workers=1, keep_models=True)
    folders = [tmp_path / name / config.run_id for name in ("without", "with")]
    assert [len(list(folder.rglob("*.safetensors"))) > 0 for folder in folders] == [False, True]
    records = [(folder / METRICS).read_bytes() for folder in folders]
    assert records[0] == records[1]
    assert unfinished([config], [tmp_path / "without"]) == []


def test_side_by_side_gives_the_same_records(tmp_path: Path) -> None:
    configs = [one_run(seed=seed) for seed in (0, 1)]
    assert run_all(configs, tmp_path / "one", workers=1) == {}
    assert run_all(configs, tmp_path / "two", jobs=2) == {}
    for config in configs:
        one, two = ((tmp_path / name / config.run_id / METRICS) for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def one_run(**settings: Any) -> RunConfig:
    return RunConfig.of(
        **{"num_clients": 2, "max_examples": 60, "rounds": 1, "epochs": 1, **settings}
    )


def test_a_searched_table_takes_the_settings_of_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FedProx, "tuned", {"proximal_weight": (0.01, 1.0)})
    rates: dict[float, float] = {0.03: 0.2, 0.1: 0.3, 0.3: 0.4}
    given: list[RunConfig] = []

    def runner(configs: Any) -> dict[str, str]:
        given.extend(configs)
        for config in configs:
            if not RunRecord(tmp_path / "runs" / config.run_id).is_finished:
                score = rates.get(config.learning_rate, 0.1)
                score += config.algorithm_settings.get("proximal_weight", 0) / 2
                made_run(tmp_path / "runs" / config.run_id, [[round(score * 20) / 20]])
        return {}

    rows = (
        *(Row(name, name, name) for name in ("fedprox", "local")),
        Row("held", "held", "fedprox", {"proximal_weight": 0.5}),
    )
    shown = replace(TINY, rows=rows)
    terms = Terms(protocol="searched", columns=("digits",))
    path = fill(shown, terms, tmp_path, runner)
    # What is planned once trials are there is what was run.
    planned = plan(shown, terms, [tmp_path / "runs"])
    assert {one.config.run_id for one in planned if one.config} == {
        config.run_id for config in given
    }
    finals = [config for config in given if config.measure_on == "test"]
    assert [config.learning_rate for config in finals] == [0.3, 0.3, 0.3]
    weights = [config.algorithm_settings.get("proximal_weight") for config in finals]
    assert weights == [1.0, None, 0.5]  # A row's own setting is not searched for.
    assert {config.validation_share for config in finals} == {0.0}
    choices = json.loads(path.read_text())["choices"]
    assert [choice["learning_rate"] for choice in choices] == [0.3, 0.3]
    assert [choice["settings"] for choice in choices] == [{"proximal_weight": 1.0}, {}]
    assert [len(choice["trials"]) for choice in choices] == [tuning.TRIALS] * 2
    assert all(choice["is_complete"] and choice["is_inside"] for choice in choices)
    below = "\n".join(read_sheet(path).about["notes"])
    assert "digits: fedprox 0.3, proximal_weight 1 (8 trials); local 0.3 (8 trials)." in below


@pytest.mark.parametrize("protocol", ["printed", "searched"])
def test_a_table_is_drawn_again_where_its_data_are_not(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def runner(configs: Any) -> dict[str, str]:
        for config in configs:
            if not RunRecord(tmp_path / "runs" / config.run_id).is_finished:
                made_run(tmp_path / "runs" / config.run_id, [[0.5]])
        return {}

    terms = Terms(protocol=protocol, columns=("digits",))
    there = read_sheet(fill(TINY, terms, tmp_path, runner))

    def nothing(column: Column, settings: Any) -> DataAtHand:
        return DataAtHand(missing="not here")

    for module in (plans, fills):
        monkeypatch.setattr(module, "at_hand", nothing)
    again = read_sheet(fill(TINY, terms, tmp_path))
    assert again.cells["fedavg", "digits"] == there.cells["fedavg", "digits"]
    assert again.cells["fedavg", "digits"].values == (50.0,)
    assert again.about["choices"] == there.about["choices"]
    assert bool(again.about["choices"]) == (protocol == "searched")
    # Of other seeds nothing is known.
    other = read_sheet(fill(TINY, replace(terms, seeds=(1,)), tmp_path))
    assert other.cells["fedavg", "digits"].reason == "not here"


def test_a_task_without_data_has_no_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path))
    har = replace(TASK, name="har", settings={**TASK.settings, "data": "har"})
    run = Planned(Row("sub", "Sub", "heterofl"), Column("low", "Low", har), None)
    terms = Terms("smoke", "searched")
    assert [one.config for one in subjects([run], terms).values()] == [None]
    found = choose([run], terms, [tmp_path], lambda _: {})
    assert found == {("heterofl", "har"): Choice("heterofl", "har")}


def test_settings_of_all_runs_are_not_searched_and_variants_share_one_search() -> None:
    rows = (Row("one", "One", "fedprox"), Row("two", "Two", "fedprox", {"proximal_weight": 1.0}))
    columns = (Column("digits", "Digits", TASK), Column("more", "More", TASK, {"epochs": 3}))
    terms = Terms("smoke", "searched", (3, 4), {"rounds": 7})
    found = subjects(slots(replace(TINY, rows=rows, columns=columns), terms), terms)
    (one,) = found.values()
    assert one.config is not None
    assert (one.config.seed, one.config.rounds, one.config.epochs) == (3, 7, 1)
    assert one.config.algorithm_settings["proximal_weight"] == FedProx.proximal_weight
    assert tuning_of(terms).held == {"rounds"}


def test_an_estimate_grows_with_what_it_counts() -> None:
    def seconds(**settings: Any) -> float:
        return estimate([(one_run(**settings), TASK)]).core_seconds

    base = seconds(max_examples=1000)
    assert seconds(max_examples=1000, rounds=3) - base == pytest.approx(
        2 * (seconds(max_examples=1000, rounds=2) - base)
    )
    assert seconds(max_examples=1000, rounds=2) > base
    assert seconds(max_examples=0) > base
    assert seconds(max_examples=1000, pruning_rates=[0.75]) < base
    full, sub = (seconds(max_examples=1000, algorithm=f"perfedavg{end}") for end in ("", "-sub"))
    assert full > sub
    both = estimate([(one_run(), TASK), (one_run(algorithm="heterofl"), TASK)])
    assert both.num_runs == 2
    assert both.hours(2) == pytest.approx(both.core_seconds / 7200)


@pytest.mark.parametrize(
    ("task", "settings", "measured"),
    [
        # Processor seconds of a round of FedAvg on one core, without measuring.
        ("cifar10", {"max_examples": 5000}, 3.3),
        ("cifar100", {"max_examples": 5000}, 4.5),
        ("ag-news", {}, 1.8),
        ("har", {}, 6.1),
        ("digit5", {"max_examples": 5000}, 1.7),
    ],
)
def test_an_estimate_is_near_what_was_measured(
    task: str, settings: dict[str, Any], measured: float
) -> None:
    there = tasks()[task]
    own = Terms("reduced", "searched", settings={**settings, "evaluate_every": 100})
    found = own.of(Column(task, task, there))

    def seconds(rounds: int) -> float:
        config = RunConfig.of(**{**found, "algorithm": "fedavg", "rounds": rounds})
        return estimate([(config, there)]).core_seconds

    assert seconds(2) - seconds(1) == pytest.approx(measured, rel=0.5)


def test_the_first_table_at_reduced_scale_takes_about_a_day(all_data: None, tmp_path: Path) -> None:
    shown = find("label-skew").with_rows(["subflot-plus"])
    planned = plan(shown, Terms("reduced", "searched", (0, 1, 2)), [tmp_path])
    assert len(planned) == 8 * 12 * (3 + tuning.TRIALS)
    assert estimate((one.config, one.column.task) for one in planned if one.config).hours(2) <= 30
