"""Learning rates are chosen on validation examples, from one grid for all."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import made_run

from subflot.errors import SubflotError
from subflot.experiments.batch import run_all
from subflot.experiments.config import RunConfig, grid
from subflot.experiments.paper import PaperTask
from subflot.experiments.runner import assemble
from subflot.experiments.scales import Terms
from subflot.experiments.tuning import GRID, Choice, Tuning, choose, trials
from subflot.results import RunRecord

TASK = PaperTask(
    "digits",
    "Digits",
    1797,
    {"data": "digits", "model": "digits-cnn", "partition": "iid", "num_clients": 3},
    {"smoke": {"max_examples": 120}},
)
TERMS = Terms("smoke", "tuned", seeds=(3, 4))


def test_trials_differ_in_the_learning_rate_alone_and_never_see_test_examples() -> None:
    found = trials("heterofl", TASK, TERMS)
    assert tuple(found) == GRID
    configs = list(found.values())
    assert [config.learning_rate for config in configs] == list(GRID)
    assert len({replace(config, learning_rate=0.0).run_id for config in configs}) == 1
    trial = configs[0]
    assert (trial.measure_on, trial.validation_share, trial.seed) == ("validation", 0.2, 3)
    final = replace(trial, measure_on="test", validation_share=0.0)
    tested, hidden = assemble(trial)[1], assemble(final)[1]
    for client in range(3):
        seen = {*tested.shares[client].train, *tested.shares[client].test}
        assert not seen & set(hidden.shares[client].test)


def test_the_best_on_validation_examples_is_chosen(tmp_path: Path) -> None:
    found = trials("heterofl", TASK, TERMS)
    for config, accuracy in zip(found.values(), (0.5, 0.9, 0.7), strict=True):
        made_run(tmp_path / config.run_id, [[accuracy]])
    choice = choose([("heterofl", TASK)], TERMS, [tmp_path], {})["heterofl", "digits"]
    assert choice.learning_rate == 0.05
    assert choice.scores == pytest.approx({0.01: 0.5, 0.05: 0.9, 0.1: 0.7})
    assert choice.is_complete


def test_the_last_round_decides_not_the_best_one(tmp_path: Path) -> None:
    found = trials("heterofl", TASK, TERMS)
    for config, rounds in zip(found.values(), ([0.9, 0.2], [0.1, 0.5], [0.8, 0.3]), strict=True):
        made_run(tmp_path / config.run_id, [[accuracy] for accuracy in rounds])
    choice = choose([("heterofl", TASK)], TERMS, [tmp_path], {})["heterofl", "digits"]
    assert choice.learning_rate == 0.05


def test_of_equals_the_smallest_rate_is_chosen() -> None:
    assert Choice("a", "b", {0.1: 0.5, 0.01: 0.5, 0.05: 0.5}).learning_rate == 0.01


def test_failed_and_missing_trials_are_left_out_and_named(tmp_path: Path) -> None:
    found = trials("heterofl", TASK, TERMS)
    made_run(tmp_path / found[0.01].run_id, [[0.1]])
    made_run(tmp_path / found[0.05].run_id, [[0.9]], is_finished=False)
    failures = {found[0.1].run_id: "round 1 has 0 good uploads"}
    choice = choose([("heterofl", TASK)], TERMS, [tmp_path], failures)["heterofl", "digits"]
    assert choice.learning_rate == 0.01
    assert not choice.is_complete
    assert choice.reason == "round 1 has 0 good uploads"
    assert Choice("a", "b", {0.1: None}).learning_rate is None


def test_a_task_without_data_has_no_trials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path))
    har = replace(TASK, settings={**TASK.settings, "data": "har"})
    assert trials("heterofl", har, TERMS) == {}


def test_the_choice_is_that_of_real_runs(tmp_path: Path) -> None:
    found = trials("local", TASK, replace(TERMS, settings={"rounds": 1, "per_round": 0}))
    assert run_all(list(found.values()), tmp_path, workers=1) == {}
    terms = replace(TERMS, settings={"rounds": 1, "per_round": 0})
    choice = choose([("local", TASK)], terms, [tmp_path], {})["local", "digits"]
    accuracies = {
        rate: RunRecord(tmp_path / one.run_id).rounds[-1]["trained"]["mean"]
        for rate, one in found.items()
    }
    assert choice.scores == pytest.approx(accuracies)
    assert choice.learning_rate == max(accuracies, key=lambda rate: (accuracies[rate], -rate))


# ----- runs of a file

FILE = {
    "algorithm": ["heterofl", "local"],
    "seed": [3, 4],
    "num_clients": 3,
    "max_examples": 120,
    "rounds": 4,
    "epochs": 1,
}


def test_runs_of_a_file_take_the_rate_that_was_best_on_validation_examples(tmp_path: Path) -> None:
    configs = grid(FILE)
    tuning = Tuning.of({"learning_rate": [0.001, 0.1], "rounds": 2})
    for name, best in (("heterofl", 0.1), ("local", 0.001)):
        for rate, config in tuning.trials(configs)[name].items():
            made_run(tmp_path / config.run_id, [[0.9 if rate == best else 0.4]])
    tuned, choices = tuning.choose(configs, tmp_path, lambda _: {})
    assert [(c.algorithm, c.seed, c.learning_rate) for c in tuned] == [
        ("heterofl", 3, 0.1),
        ("local", 3, 0.001),
        ("heterofl", 4, 0.1),
        ("local", 4, 0.001),
    ]
    assert [replace(c, learning_rate=0.05) for c in tuned] == configs  # Nothing else changed.
    assert [choice.scores for choice in choices] == [{0.001: 0.4, 0.1: 0.9}, {0.001: 0.9, 0.1: 0.4}]


def test_trials_of_a_file_are_short_and_see_no_test_example(tmp_path: Path) -> None:
    tuning = Tuning.of({"learning_rate": [0.05, 0.1], "rounds": 2})
    configs = grid(FILE)
    ran: list[RunConfig] = []

    def runner(given: Sequence[RunConfig]) -> dict[str, str]:
        ran.extend(given)
        return run_all(given, tmp_path, workers=1)

    _, choices = tuning.choose(configs, tmp_path, runner)
    assert {(c.algorithm, c.seed, c.rounds, c.measure_on) for c in ran} == {
        ("heterofl", 3, 2, "validation"),
        ("local", 3, 2, "validation"),
    }
    last = RunRecord(tmp_path / ran[1].run_id).rounds[-1]["trained"]["mean"]
    assert choices[0].scores[0.1] == pytest.approx(last)


def test_a_method_that_no_rate_fits_is_one_clear_error(tmp_path: Path) -> None:
    configs = grid({**FILE, "algorithm": "local"})
    with pytest.raises(SubflotError, match=r"no learning rate works for local: round . has 0 good"):
        Tuning.of({"learning_rate": [1e30]}).choose(
            configs, tmp_path, lambda given: run_all(given, tmp_path, workers=1)
        )


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (3, "tune is 3"),
        ({"rate": [0.1]}, "no setting `rate`"),
        ({"learning_rate": 0.1}, "learning_rate 0.1"),
        ({"learning_rate": [0.1, -1]}, "learning_rate"),
        ({"learning_rate": []}, "learning_rate"),
        ({"rounds": -1}, "rounds -1"),
    ],
)
def test_what_tune_cannot_mean_is_one_clear_error(settings: object, named: str) -> None:
    with pytest.raises(SubflotError, match=named) as error:
        Tuning.of(settings)
    assert "learning_rate = [" in str(error.value)
