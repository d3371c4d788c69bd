"""Pictures of any kind brought to one shape: uint8, (channels, size, size)."""

import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from subflot.data.settings import ImageSettings
from subflot.errors import SubflotError

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = NDArray[np.uint8]

LARGEST_PIXELS = 64 * 2**20
"""Refused beyond: a small file can declare a picture that fills the memory."""
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def is_image(name: str) -> bool:
    """Whether a file of this name holds a picture that is meant to be seen.

    Example:
        >>> is_image("dog/pic_001.JPG"), is_image("dog/boxes.txt"), is_image("dog/._pic_001.jpg")
        (True, False, False)
    """
    return name.lower().endswith(SUFFIXES) and not name.rpartition("/")[2].startswith(".")


def decode(content: bytes, settings: ImageSettings, name: str) -> Pixels:
    """Decode a picture file, shape (channels, size, size); `name` stands in errors."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > LARGEST_PIXELS:
                raise ValueError(f"it declares {image.width} x {image.height} pixels")
            return fit(image, settings)
    # A decoder meets whatever is in the file, and raises what it likes.
    except Exception as error:
        raise SubflotError(
            f"{name}: cannot be read as a picture ({error})",
            hint="the file is damaged or of a kind that Pillow does not know",
        ) from error


def fit(image: "Image", settings: ImageSettings) -> Pixels:
    """Resize and recolour a picture; without need for either its pixels stay as they are."""
    from PIL import Image

    mode = "L" if settings.channels == 1 else "RGB"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (settings.size, settings.size):
        # In Pillow this filter widens when it shrinks a picture, and so does not alias.
        image = image.resize((settings.size, settings.size), Image.Resampling.BICUBIC)
    pixels = np.asarray(image)
    return pixels[None] if settings.channels == 1 else pixels.transpose(2, 0, 1)


def fit_all(images: Pixels, settings: ImageSettings) -> Pixels:
    """The same for an array of pictures, shape (examples, channels, height, width).

    Example:
        >>> grey = np.full((5, 1, 28, 28), 7, dtype=np.uint8)
        >>> fit_all(grey, ImageSettings(size=32)).shape
        (5, 3, 32, 32)
    """
    from PIL import Image

    examples, channels, height, width = images.shape
    if (height, width) == (settings.size, settings.size):
        if channels == settings.channels:
            return images
        if channels == 1:
            return images.repeat(3, axis=1)
    fitted = np.empty((examples, settings.channels, settings.size, settings.size), dtype=np.uint8)
    for target, image in zip(fitted, images, strict=True):
        pixels = image[0] if channels == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
        target[:] = fit(Image.fromarray(pixels), settings)
    return fitted
