"""Settings are chosen on validation examples, with as many trials for every method."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from made_records import made_run

from subflot.algorithms import ALGORITHMS
from subflot.algorithms.fedprox import FedProx
from subflot.errors import SubflotError
from subflot.experiments.batch import run_all
from subflot.experiments.config import RunConfig
from subflot.experiments.runner import assemble
from subflot.experiments.search import Trial
from subflot.experiments.tuning import RATES, TRIALS, Choice, Tuning
from subflot.results import FAILED, RunRecord


def config(algorithm: str = "heterofl", **settings: Any) -> RunConfig:
    return RunConfig.of(
        **{"num_clients": 3, "max_examples": 120, "rounds": 4, "epochs": 1, **settings},
        algorithm=algorithm,
        seed=3,
    )


def scored(
    folder: Path, score: Callable[[RunConfig], float | None]
) -> tuple[Callable[[Sequence[RunConfig]], dict[str, str]], list[RunConfig]]:
    """A runner that leaves records with known scores, and the list of what it ran."""
    ran: list[RunConfig] = []

    def runner(given: Sequence[RunConfig]) -> dict[str, str]:
        ran.extend(given)
        failures = {}
        for one in given:
            found = score(one)
            if found is None:
                failures[one.run_id] = "round 1 has 0 good uploads"
            else:
                made_run(folder / one.run_id, [[found]])
        return failures

    return runner, ran


def one_choice(found: Mapping[tuple[str, str], Choice]) -> Choice:
    (choice,) = found.values()
    return choice


# ----- trials


def test_trials_differ_in_the_learning_rate_alone_and_never_see_test_examples(
    tmp_path: Path,
) -> None:
    own = config("feddrop", partition="iid")
    runner, ran = scored(tmp_path, lambda _: 0.5)
    Tuning().choose({("feddrop", "digits"): own}, [tmp_path], runner)
    assert [one.learning_rate for one in ran[:3]] == list(RATES)
    assert len(ran) == len({one.run_id for one in ran}) == TRIALS
    assert len({replace(one, learning_rate=0.0).run_id for one in ran}) == 1
    trial = ran[0]
    assert (trial.measure_on, trial.validation_share, trial.seed) == ("validation", 0.2, 3)
    assert replace(own, learning_rate=0.0) == replace(
        trial,
        learning_rate=0.0,
        measure_on="test",
        validation_share=0.0,
        evaluate_every=own.evaluate_every,
    )
    tested, hidden = assemble(trial)[1], assemble(own)[1]
    for client in range(3):
        seen = {*tested.shares[client].train, *tested.shares[client].test}
        assert not seen & set(hidden.shares[client].test)


def test_the_best_on_validation_examples_is_chosen(tmp_path: Path) -> None:
    scores = {0.03: 0.5, 0.1: 0.9, 0.3: 0.7}
    runner, ran = scored(tmp_path, lambda one: scores.get(one.learning_rate, 0.2))
    pair = {("heterofl", "digits"): config()}
    choice = one_choice(Tuning().choose(pair, [tmp_path], runner))
    assert choice.learning_rate == 0.1
    assert choice.is_complete
    assert choice.is_inside
    assert choice.applied(config()) == config(learning_rate=0.1)
    # Nothing is run again, and drawn without running it is the same choice.
    before = len(ran)
    assert one_choice(Tuning().choose(pair, [tmp_path], runner)) == choice
    assert len(ran) == before
    assert one_choice(Tuning().choose(pair, [tmp_path])) == choice


def test_the_last_round_decides_not_the_best_one(tmp_path: Path) -> None:
    tuning = Tuning((0.01, 0.05, 0.1), trials=3)
    for rate, rounds in ((0.01, [0.9, 0.2]), (0.05, [0.1, 0.5]), (0.1, [0.8, 0.3])):
        trial = tuning.trial(config(), Trial(rate))
        made_run(tmp_path / trial.run_id, [[accuracy] for accuracy in rounds])
    found = tuning.choose({("heterofl", "digits"): config()}, [tmp_path])
    assert one_choice(found).learning_rate == 0.05


def test_a_search_that_was_cut_off_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    def score(one: RunConfig) -> float:
        return 0.9 if one.learning_rate == 0.3 else 0.5

    whole, ran = scored(tmp_path / "whole", score)
    pair = {("heterofl", "digits"): config()}
    choice = one_choice(Tuning().choose(pair, [tmp_path / "whole"], whole))
    for one in ran[:4]:
        made_run(tmp_path / "parted" / one.run_id, [[score(one)]])
    runs = [tmp_path / "parted"]
    assert not one_choice(Tuning().choose(pair, runs)).is_complete
    count, following = Tuning().known(config(), runs)
    assert (count, following) == (4, ran[4 : 4 + len(following)])
    rest, ran_again = scored(tmp_path / "parted", score)
    assert one_choice(Tuning().choose(pair, runs, rest)) == choice
    assert [one.run_id for one in ran_again] == [one.run_id for one in ran[4:]]


def test_failed_trials_are_named_and_remembered(tmp_path: Path) -> None:
    pair = {("heterofl", "digits"): config()}
    runner, ran = scored(tmp_path, lambda one: None if one.learning_rate > 0.05 else 0.5)
    choice = one_choice(Tuning().choose(pair, [tmp_path], runner))
    assert choice.learning_rate is not None
    assert choice.learning_rate < 0.05
    assert choice.is_complete
    assert choice.reason == "round 1 has 0 good uploads"
    # Where nothing is run, a trial that failed is told from one that was never run.
    assert not one_choice(Tuning().choose(pair, [tmp_path])).is_complete
    for one in ran:
        if one.learning_rate > 0.05:
            (tmp_path / one.run_id).mkdir()
            (tmp_path / one.run_id / FAILED).write_text("round 1 has 0 good uploads\n")
    assert one_choice(Tuning().choose(pair, [tmp_path])) == choice


def test_a_run_that_fails_says_so_in_its_folder_until_it_succeeds(tmp_path: Path) -> None:
    broken = config("local", learning_rate=1e30)
    failures = run_all([broken], tmp_path, workers=1)
    record = RunRecord(tmp_path / broken.run_id)
    assert record.failure == failures[broken.run_id]
    assert "has 0 good uploads" in record.failure
    mended = config("local", rounds=1)
    (tmp_path / mended.run_id).mkdir()
    (tmp_path / mended.run_id / FAILED).write_text("no room on the disk\n")
    assert run_all([mended], tmp_path, workers=1) == {}
    assert RunRecord(tmp_path / mended.run_id).failure == ""


# ----- settings of a method


@pytest.fixture
def tuned_fedprox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedProx, "tuned", {"proximal_weight": (0.001, 0.01, 1.0)})


def test_settings_of_a_method_are_tried_and_share_its_trials(
    tuned_fedprox: None, tmp_path: Path
) -> None:
    def score(one: RunConfig) -> float:
        is_good = one.algorithm_settings.get("proximal_weight") == 1.0
        return (0.5 if one.learning_rate == 0.1 else 0.3) + (0.2 if is_good else 0.0)

    wanted = {(name, "digits"): config(name) for name in ("fedprox", "heterofl")}
    runner, ran = scored(tmp_path, score)
    found = Tuning().choose(wanted, [tmp_path], runner)
    choice = found["fedprox", "digits"]
    assert choice.settings == {"proximal_weight": 1.0}
    assert choice.applied(config("fedprox")).algorithm_settings["proximal_weight"] == 1.0
    held = choice.applied(config("fedprox"), held=["proximal_weight"])
    assert held.algorithm_settings["proximal_weight"] == 0.01
    for name in ("fedprox", "heterofl"):
        assert sum(one.algorithm == name for one in ran) == TRIALS
    told = choice.told()
    assert (told["learning_rate"], told["settings"]) == (0.1, {"proximal_weight": 1.0})
    assert len(told["trials"]) == TRIALS


def test_settings_that_somebody_chose_are_not_tried(tuned_fedprox: None, tmp_path: Path) -> None:
    runner, ran = scored(tmp_path, lambda _: 0.5)
    pair = {("fedprox", "digits"): config("fedprox")}
    Tuning(held=frozenset({"proximal_weight"})).choose(pair, [tmp_path], runner)
    assert {one.algorithm_settings["proximal_weight"] for one in ran} == {0.01}
    assert len(ran) == TRIALS


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_a_method_tunes_are_its_settings_and_their_defaults_are_among_the_values(
    name: str,
) -> None:
    kind: Any = ALGORITHMS[name]
    defaults = {one.name: one.default for one in fields(kind)}
    for key, values in kind.tuned.items():
        assert defaults[key] in values
        for value in values:
            config(name, **{key: value})


# ----- real runs


def test_the_choice_is_that_of_real_runs(tmp_path: Path) -> None:
    ran: list[RunConfig] = []

    def runner(given: Sequence[RunConfig]) -> dict[str, str]:
        ran.extend(given)
        return run_all(given, tmp_path, workers=1)

    tuning = Tuning((0.05, 0.1), trials=3, rounds=1)
    found = tuning.choose({("local", "digits"): config("local")}, [tmp_path], runner)
    choice = one_choice(found)
    assert [(one.rounds, one.measure_on) for one in ran] == [(1, "validation")] * 3
    scores = {
        one.learning_rate: RunRecord(tmp_path / one.run_id).rounds[-1]["trained"]["mean"]
        for one in ran
    }
    got = {trial.learning_rate: one.score for trial, one in choice.outcomes.items()}
    assert got == pytest.approx(scores)
    assert choice.learning_rate == max(scores, key=lambda rate: (scores[rate], -rate))


def test_a_plan_has_all_trials_though_their_settings_are_not_known_yet(tmp_path: Path) -> None:
    planned = Tuning().planned(config(), [tmp_path])
    assert len({one.run_id for one in planned}) == TRIALS
    made_run(tmp_path / planned[0].run_id, [[0.5]])
    assert len({one.run_id for one in Tuning().planned(config(), [tmp_path])}) == TRIALS


# ----- the table in a file


def test_what_tune_leaves_out_is_usual() -> None:
    assert Tuning.of({}) == Tuning(RATES, TRIALS, 0)
    read = Tuning.of({"learning_rate": [0.1, 1], "trials": 4, "rounds": 2}, held=["mu"])
    assert read == Tuning((0.1, 1.0), 4, 2, frozenset({"mu"}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (3, "tune is 3"),
        ({"rate": [0.1]}, "no setting `rate`"),
        ({"learning_rate": 0.1}, "learning_rate 0.1"),
        ({"learning_rate": [0.1, -1]}, "learning_rate"),
        ({"learning_rate": []}, "learning_rate"),
        ({"rounds": -1}, "rounds -1, which must be at least 0"),
        ({"trials": 2}, "trials 2, which must be at least 3"),
        ({"trials": True, "learning_rate": [0.1]}, "trials True"),
        ({"trials": 4.5}, "trials 4.5"),
    ],
)
def test_what_tune_cannot_mean_is_one_clear_error(settings: object, named: str) -> None:
    with pytest.raises(SubflotError, match=named) as error:
        Tuning.of(settings)
    assert "learning_rate = [" in str(error.value)
