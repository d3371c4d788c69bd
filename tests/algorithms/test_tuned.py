"""What a method asks to be tuned can be set."""

from dataclasses import fields

import pytest

from subflot.algorithms import ALGORITHMS, make
from subflot.experiments.config import RunConfig

TUNED = {name: kind.tuned for name, kind in ALGORITHMS.items() if kind.tuned}


def test_methods_with_a_setting_of_their_own_paper_name_it() -> None:
    assert TUNED["fedprox"].keys() == {"proximal_weight"}
    assert TUNED["pfedme-sub"] == TUNED["pfedme"]
    assert "adaptivefl" not in TUNED


@pytest.mark.parametrize("name", TUNED)
def test_the_default_is_among_the_values_and_each_makes_a_run_of_its_own(name: str) -> None:
    defaults = {field.name: field.default for field in fields(ALGORITHMS[name])}  # type: ignore[arg-type]
    assert len(TUNED[name]) <= 2
    for setting, values in TUNED[name].items():
        assert defaults[setting] in values
        assert 2 <= len(values) <= 3
        for value in values:
            # Of numbers that have words for some values, the default may be a word.
            has_words = "auto" in (value, defaults[setting])
            same = type(value) is type(defaults[setting]) or defaults[setting] is None
            assert same or has_words
            assert getattr(make(name, **{setting: value}), setting) == value
        runs = {RunConfig.of(algorithm=name, **{setting: value}).run_id for value in values}
        assert len(runs) == len(values)
