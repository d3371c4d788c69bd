"""What all pictures share: where they may be written, and the sheet that they are drawn on."""

from pathlib import Path
from typing import TYPE_CHECKING

from subflot.errors import SubflotError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".pdf")


def check_picture(path: str | Path) -> Path:
    """Return the path of a picture if its kind can be written."""
    path = Path(path)
    if path.suffix.lower() not in PICTURES:
        raise SubflotError(
            f"cannot draw into `{path}`", hint=f"its name ends in {' or '.join(PICTURES)}"
        )
    return path


def blank(width: float, height: float) -> "Figure":
    """Make a figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SubflotError(
            "drawing needs matplotlib", hint="pip install 'subflot[plots]'"
        ) from None
    # No pyplot: it would keep the figure alive and choose a window system.
    return Figure(figsize=(width, height), layout="constrained")
