"""The bundled digits, plain and in five styles: the same pictures for ever."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits

from subflot.data.digits import DIGITS, DIGITS_DOMAINS, STYLES, Pixels, blurred, noisy, thick
from subflot.data.settings import NoSettings
from subflot.data.source import Contents


@pytest.fixture(scope="module")
def plain() -> Contents:
    return DIGITS.read({}, NoSettings())


@pytest.fixture(scope="module")
def domains() -> Contents:
    return DIGITS_DOMAINS.read({}, NoSettings())


def test_digits_are_the_pictures_of_scikit_learn_from_black_to_white(plain: Contents) -> None:
    bundled = load_digits()
    assert plain.inputs.shape == (1797, 1, 8, 8)
    assert plain.inputs.dtype == np.uint8
    assert np.abs(plain.inputs[:, 0] / 255 * 16 - bundled.images).max() < 1 / 16
    assert (plain.inputs.min(), plain.inputs.max()) == (0, 255)
    assert np.array_equal(plain.labels, bundled.target)
    assert plain.classes == tuple("0123456789")


def test_the_data_never_change(plain: Contents, domains: Contents) -> None:
    assert domains.groups is not None
    digests = [
        hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
        for array in (plain.inputs, domains.inputs, domains.groups)
    ]
    assert digests == ["b41ca9fd335466ee", "9cbfc7735e4a4566", "2c063e125fc20640"]


def test_every_picture_is_in_one_style_and_styles_are_equally_frequent(
    plain: Contents, domains: Contents
) -> None:
    assert domains.groups is not None
    assert domains.group_names == ("inverted", "rotated", "noisy", "thick", "blurred")
    assert np.bincount(domains.groups).tolist() == [360, 360, 359, 359, 359]
    assert np.array_equal(domains.labels, plain.labels)
    for group, style in enumerate(STYLES.values()):
        chosen = domains.groups == group
        assert np.array_equal(domains.inputs[chosen], style(plain.inputs[chosen]))
        # Each style has every digit, as often as chance would have it.
        assert np.bincount(domains.labels[chosen], minlength=10).min() > 15


CORNER = np.zeros((1, 1, 3, 3), dtype=np.uint8)
CORNER[0, 0, 0, 2] = 160


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("inverted", [[255, 255, 95], [255, 255, 255], [255, 255, 255]]),
        ("rotated", [[160, 0, 0], [0, 0, 0], [0, 0, 0]]),
        ("thick", [[0, 0, 160], [0, 0, 160], [0, 0, 0]]),
        ("blurred", [[0, 20, 40], [0, 10, 20], [0, 0, 0]]),
    ],
)
def test_a_style_is_what_it_says(style: str, expected: list[list[int]]) -> None:
    assert STYLES[style](CORNER)[0, 0].tolist() == expected


def test_noise_lies_behind_the_digit_and_differs_from_picture_to_picture() -> None:
    images = np.zeros((200, 1, 8, 8), dtype=np.uint8)
    images[:, :, 2, 3] = 200
    made = noisy(images)
    assert (made[:, 0, 2, 3] == 200).all()
    background = np.delete(made.reshape(200, 64), 2 * 8 + 3, axis=1)
    assert len(np.unique(background, axis=0)) == 200
    assert background.max() == 127
    # The mean of 12,600 even numbers from 0 to 127: 63.5, with a deviation of 0.33.
    assert abs(background.mean() - 63.5) < 5 * 0.33


@pytest.mark.parametrize("style", STYLES.values())
def test_a_style_leaves_the_pictures_it_was_given_alone(style, plain: Contents) -> None:  # type: ignore[no-untyped-def]
    before = plain.inputs.copy()
    style(plain.inputs)
    assert np.array_equal(plain.inputs, before)


def test_strokes_and_blur_do_not_wrap_around_the_border() -> None:
    lower_right: Pixels = np.zeros((1, 1, 4, 4), dtype=np.uint8)
    lower_right[0, 0, 3, 3] = 255
    for style in (thick, blurred):
        assert style(lower_right)[0, 0, 0].tolist() == [0, 0, 0, 0]
        assert style(lower_right)[0, 0, :, 0].tolist() == [0, 0, 0, 0]
