"""Pictures of any kind come to one shape."""

import io

import numpy as np
import pytest
from made_files import picture
from PIL import Image

from subflot.data import images
from subflot.data.images import decode, fit_all
from subflot.data.settings import ImageSettings
from subflot.errors import SubflotError

COLOUR = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
GREY = COLOUR[:, :1]


def test_a_picture_of_the_right_shape_stays_as_it_is() -> None:
    assert np.array_equal(fit_all(COLOUR, ImageSettings(size=8)), COLOUR)
    assert np.array_equal(fit_all(GREY, ImageSettings(size=8, channels=1)), GREY)
    file = picture(COLOUR[0].transpose(1, 2, 0))
    assert np.array_equal(decode(file, ImageSettings(size=8), "x"), COLOUR[0])


def test_grey_becomes_colour_by_repetition() -> None:
    assert np.array_equal(fit_all(GREY, ImageSettings(size=8)), GREY.repeat(3, axis=1))
    file = picture(GREY[0, 0])
    assert np.array_equal(decode(file, ImageSettings(size=8), "x"), GREY[0].repeat(3, axis=0))


def test_colour_becomes_grey_by_luma() -> None:
    weights = np.array([0.299, 0.587, 0.114])
    expected = np.einsum("nchw,c->nhw", COLOUR.astype(float), weights)
    found = fit_all(COLOUR, ImageSettings(size=8, channels=1))
    assert found.shape == (5, 1, 8, 8)
    # Pillow cuts the fraction off, in fixed point.
    assert np.abs(found[:, 0] - expected).max() <= 1


def test_shrinking_does_not_alias() -> None:
    """Stripes one pixel wide become grey, where picking pixels would make them black or white."""
    stripes = np.zeros((1, 1, 64, 64), dtype=np.uint8)
    stripes[..., ::2] = 255
    small = fit_all(stripes, ImageSettings(size=16, channels=1))[0, 0, 2:-2, 2:-2]
    assert np.abs(small.astype(int) - 127).max() <= 3


def test_growing_keeps_every_channel_and_its_place() -> None:
    image = np.zeros((1, 3, 4, 4), dtype=np.uint8)
    image[0, 1, 0, 3] = 255
    large = fit_all(image, ImageSettings(size=16))[0]
    assert np.unravel_index(large.argmax(), large.shape)[0] == 1
    assert large[1, :4, 12:].mean() > 100
    assert large[[0, 2]].max() == 0
    assert large[1, 8:].max() == 0


@pytest.mark.parametrize("mode", ["RGBA", "P", "CMYK", "L", "1"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_of_picture_is_taken(mode: str, channels: int) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (20, 10), (255, 255, 255)).convert(mode).save(stream, "TIFF")
    found = decode(stream.getvalue(), ImageSettings(size=6, channels=channels), "x")
    assert found.shape == (channels, 6, 6)
    assert found.min() >= 250


def test_what_is_no_picture_is_named() -> None:
    whole = picture(COLOUR[0].transpose(1, 2, 0))
    for content in (b"", b"text", whole[: len(whole) // 2]):
        with pytest.raises(SubflotError, match=r"dog\.png: cannot be read as a picture"):
            decode(content, ImageSettings(), "dog.png")


def test_a_picture_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LARGEST_PIXELS", 99)
    with pytest.raises(SubflotError, match="declares 10 x 10 pixels"):
        decode(picture(np.zeros((10, 10))), ImageSettings(), "dog.png")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"size": 0}, "size is 0"), ({"size": 10**6}, "size is"), ({"channels": 2}, "channels is 2")],
)
def test_impossible_shapes_are_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(SubflotError, match=said):
        ImageSettings(**wrong)
