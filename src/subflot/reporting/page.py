"""The report page: one HTML file that needs no server and no network."""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image, UnidentifiedImageError

from subflot.errors import SubflotError
from subflot.reporting.digest import channel_map, digest, plans
from subflot.reporting.notices import notices
from subflot.results import SENSELESS, RunRecord

SCRIPTS = (
    "dom",
    "format",
    "table",
    "chart",
    "overview",
    "curves",
    "clients",
    "cost",
    "channels",
    "plans",
    "settings",
    "page",
)
"""Files of `assets`, joined in this order; the last one starts the page."""
PICTURES_BUDGET = 2_000_000
"""Bytes of embedded pictures; what does not fit is named in a notice."""


def render(
    records: Sequence[RunRecord],
    root: Path,
    *,
    with_models: bool = True,
    pictures: Sequence[Path] = (),
) -> str:
    """Return the page of some runs as HTML.

    Records that cannot be read are left out, and the page says so. A picture's caption is the
    `Description` that is written in the file, or else its name.

    Args:
        records: of runs below `root`, finished or not.
        root: the folder that the page is about.
        with_models: show the channel maps and the plans that runs noted.
        pictures: PNG files to embed.
    """
    readable, damaged = _readable(records, root)
    if not readable:
        raise SubflotError(
            f"no run below {root} can be read" if damaged else f"there is no run below {root}",
            hint=damaged[0]["text"] if damaged else "`subflot run quickstart` makes some",
        )
    content = digest(readable, root)
    shown, left_out = _embedded(pictures)
    maps = [channels if with_models else None for channels in map(channel_map, readable)]
    models = [one for n, one in enumerate(maps) if one and one not in maps[:n]]
    for record, run, channels in zip(readable, content["runs"], maps, strict=True):
        run["model"] = models.index(channels) if channels else None
        run["plans"] = plans(record) if with_models else []
    content |= {"models": models, "pictures": shown}
    content["notices"] = _merged([*damaged, *notices(readable, content), *left_out])
    return _html(f"subflot: {root.resolve().name}", content)


def _html(title: str, content: Mapping[str, Any]) -> str:
    assets = files("subflot.reporting") / "assets"
    style = (assets / "page.css").read_text()
    script = "\n".join((assets / f"{name}.js").read_text() for name in SCRIPTS)
    return Template((assets / "page.html").read_text()).substitute(
        title=html.escape(title),
        style=style,
        script=script,
        style_digest=_digest(style),
        script_digest=_digest(script),
        content=_json(content),
    )


def _json(content: Mapping[str, Any]) -> str:
    """Write JSON that stays inside its element, whatever the records hold."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=True, default=str)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _digest(text: str) -> str:
    """What the page's policy names, so that a browser runs our own script and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _readable(
    records: Sequence[RunRecord], root: Path
) -> tuple[list[RunRecord], list[dict[str, str]]]:
    found, damaged = [], []
    for record in records:
        try:
            _ = record.config, record.rounds, record.timing, record.environment, record.failure
            # Whatever is drawn of it can be drawn.
            _ = digest([record], root), channel_map(record), plans(record)
        except SubflotError as error:
            damaged.append({"about": record.folder.name, "text": f"left out: {error.args[0]}"})
        except SENSELESS as error:
            what = f"{type(error).__name__}: {error}"
            text = f"left out: its record is damaged, what it says makes no sense ({what})"
            damaged.append({"about": record.folder.name, "text": text})
        else:
            found.append(record)
    return found, damaged


def _merged(found: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """Say once what is true of many."""
    about: dict[str, list[str]] = {}
    for notice in found:
        about.setdefault(notice["text"], []).append(notice["about"])
    return [{"about": names, "text": text} for text, names in about.items()]


def _embedded(
    pictures: Sequence[Path],
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    shown: list[dict[str, str]] = []
    left_out: list[dict[str, str]] = []
    left = PICTURES_BUDGET
    for path in pictures:
        try:
            with Image.open(path, formats=["PNG"]) as image:
                caption = str(image.info.get("Description") or path.stem.replace("-", " "))
            data = base64.b64encode(path.read_bytes()).decode()
        except (UnidentifiedImageError, OSError) as error:
            left_out.append({"about": path.name, "text": f"left out: {error}"})
            continue
        if len(data) > left:
            text = f"left out: pictures may take {PICTURES_BUDGET / 1e6:g} MB together"
            left_out.append({"about": path.name, "text": text})
            continue
        left -= len(data)
        shown.append({"caption": caption, "source": f"data:image/png;base64,{data}"})
    return shown, left_out
