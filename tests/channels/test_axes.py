"""The algebra of axes, in cases small enough to follow by hand."""

from itertools import pairwise

from subflot.channels.axes import (
    Axis,
    Reason,
    cut,
    divide,
    freeze,
    fresh,
    length,
    multiply,
    resolve,
    unify,
)

WHY = Reason("because")


def sizes(axis: Axis) -> list[list[int]]:
    return [[atom.size for atom in product] for product in resolve(axis)]


def test_a_flattened_axis_splits_the_layer_behind_it_into_the_same_factors() -> None:
    channels, positions, inputs = fresh(6), fresh(4, WHY), fresh(24)
    flat = multiply([channels, positions])
    unify(inputs, flat)
    assert sizes(inputs) == [[6, 4]]
    assert resolve(inputs) == resolve(flat)


def test_a_concatenation_splits_what_meets_it_into_a_sum() -> None:
    left, right, norm = fresh(3), fresh(5), fresh(8)
    unify(norm, [*left, *right])
    assert sizes(norm) == [[3], [5]]
    assert resolve(norm) == [*resolve(left), *resolve(right)]


def test_sums_with_other_boundaries_are_cut_at_all_of_them() -> None:
    one, other = [*fresh(2), *fresh(6)], [*fresh(5), *fresh(3)]
    unify(one, other)
    assert sizes(one) == [[2], [3], [3]]
    assert resolve(one) == resolve(other)


def test_a_flattened_concatenation_keeps_its_blocks() -> None:
    flat = multiply([[*fresh(2), *fresh(3)], fresh(4, WHY)])
    assert sizes(flat) == [[2, 4], [3, 4]]


def test_outer_indices_of_a_sum_are_frozen_and_repeat_it() -> None:
    outer = fresh(3)
    flat = multiply([outer, [*fresh(2), *fresh(1)]])
    assert sizes(flat) == [[2], []] * 3
    assert resolve(outer)[0][0].reason is not None


def test_merging_passes_a_reason_on_to_everything_that_moves_along() -> None:
    one, two, three = fresh(4), fresh(4), fresh(4)
    unify(one, two)
    unify(two, three)
    freeze(one, WHY)
    assert resolve(three)[0][0].reason == WHY


def test_a_frozen_axis_freezes_the_parts_it_is_found_to_have() -> None:
    whole = fresh(6, WHY)
    unify(whole, multiply([fresh(2), fresh(3)]))
    assert [atom.reason for atom in resolve(whole)[0]] == [WHY, WHY]


def test_regrouping_that_does_not_divide_is_frozen() -> None:
    axis = multiply([fresh(4), fresh(6)])
    parts = divide(axis, [6, 4])
    assert [length(part) for part in parts] == [6, 4]
    assert all(atom.reason for atom in resolve(axis)[0])


def test_unequal_lengths_are_frozen_instead_of_guessed() -> None:
    one, other = fresh(4), fresh(6)
    unify(one, other)
    assert resolve(one)[0][0].reason
    assert resolve(other)[0][0].reason


def test_a_cut_on_a_boundary_of_channels_splits_them_and_one_inside_a_channel_freezes() -> None:
    axis = multiply([fresh(4), fresh(3)])
    assert [sizes(piece) for piece in cut(axis, [6, 6])] == [[[2, 3]], [[2, 3]]]
    other = multiply([fresh(4), fresh(3)])
    cut(other, [5, 7])
    assert all(atom.reason for atom in resolve(other)[0])


def test_equal_blocks_of_a_sum_move_alike_once_they_are_stacked() -> None:
    left, right = fresh(4), fresh(4)
    stacked, inner = divide([*left, *right], [2, 4])
    assert resolve(left) == resolve(right) == resolve(inner)
    assert resolve(stacked)[0][0].reason


def test_long_chains_of_merges_resolve() -> None:
    for order in (1, -1):  # As a recurrent layer ties its steps.
        axes = [fresh(3) for _ in range(5000)]
        for pair in pairwise(axes):
            unify(*pair[::order])
        assert resolve(axes[0]) == resolve(axes[-1])
