"""Submodels of uneven widths: what they cost, how they are cut and chosen."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds import RATES, parameters_of, tiny_task
from tolerances import EXACT
from traced import traced

from subflot.algorithms.widths import (
    as_pool,
    as_sizes,
    budget_of,
    first_channels,
    fitted,
    is_inside,
    largest_that_fits,
    narrowed,
    num_parameters,
    sizes_at,
)
from subflot.channels import take
from subflot.channels.cost import cost_of
from subflot.channels.resize import build, state_of
from subflot.task import Task

HARD = ["dense blocks", "grouped", "own attention", "lstm", "shuffle", "tied"]
"""Networks with axes that are more than one stretch, and with spaces that are cut together."""
TASK = tiny_task()
WHOLE = {space: TASK.channels.sizes[space] for space in TASK.channels.prunable}


@pytest.mark.parametrize("name", HARD)
def test_parameters_are_counted_as_in_a_model_that_was_built(name: str) -> None:
    model, channels, example = traced(name)
    task = Task(model, channels, example[0])
    ratios = {s: (0.3, 0.9, 0.5)[place % 3] for place, s in enumerate(channels.prunable)}
    sizes = sizes_at(channels, ratios)
    part = take(state_of(model), channels, first_channels(sizes))
    built = build(model, channels, part)
    assert num_parameters(task, sizes) == cost_of(built, example).parameters


@pytest.mark.parametrize("name", HARD)
def test_what_is_cut_without_copying_is_what_is_taken(name: str) -> None:
    model, channels, _ = traced(name)
    weights = {n: t for n, t in state_of(model).items() if n in channels.axes}
    sizes = sizes_at(channels, dict.fromkeys(channels.prunable, 0.6))
    views = narrowed(weights, channels, sizes)
    torch.testing.assert_close(views, take(weights, channels, first_channels(sizes)), **EXACT)


def test_cutting_shares_the_memory_of_plain_layers() -> None:
    weights = {name: tensor.clone() for name, tensor in TASK.initial.items()}
    part = narrowed(weights, TASK.channels, {**WHOLE, "hidden": 3})
    weights["hidden.weight"][0] = 5
    assert part["hidden.weight"].shape[0] == 3
    assert part["hidden.weight"][0].eq(5).all()


@pytest.mark.parametrize("rate", RATES)
def test_the_budget_is_what_the_uniform_model_costs(rate: float) -> None:
    assert budget_of(TASK, rate) == parameters_of(TASK, rate)


@given(limit=st.floats(0, 3), most=st.floats(0.1, 2))
def test_halving_finds_the_largest_that_fits(limit: float, most: float) -> None:
    found = largest_that_fits(lambda number: number <= limit, most)
    assert found <= limit
    assert found == pytest.approx(min(limit, most), abs=1e-9)


def test_a_client_trains_the_largest_that_fits_inside_what_it_received() -> None:
    small, flat, wide = (
        {**WHOLE, "hidden": size, "stem": stem} for size, stem in ((1, 2), (12, 2), (6, 8))
    )
    pool = as_pool(TASK.channels, [small, flat, wide, WHOLE])
    assert [as_sizes(TASK.channels, row) for row in pool] == [small, flat, wide, WHOLE]
    assert fitted(TASK, pool, WHOLE, 0.0) == (3, WHOLE)
    # At a quarter removed, only those that keep two channels of the stem fit.
    assert num_parameters(TASK, wide) > budget_of(TASK, 0.5) >= num_parameters(TASK, flat)
    assert fitted(TASK, pool, WHOLE, 0.5) == (1, flat)
    # The flat one does not lie in the wide one, which is all the client has.
    assert not is_inside(flat, wide)
    assert fitted(TASK, pool, wide, 0.5) == (0, small)


def test_a_client_that_no_member_fits_trains_the_uniform_model_in_what_it_received() -> None:
    pool = as_pool(TASK.channels, [WHOLE])
    received = {**WHOLE, "hidden": 2}
    row, sizes = fitted(TASK, pool, received, 0.5)
    assert (row, sizes) == (0, {"stem": 4, "inner": 2, "hidden": 2})
