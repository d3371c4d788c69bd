"""Members of zip and tar files, read into memory by name; nothing is ever unpacked to disk.

An archive that declares absurd sizes, or members that would leave the folder it is unpacked in, is
refused as a whole: no published data set has them.
"""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path
from types import TracebackType

from subflot.errors import SubflotError

MEMBER_BYTES = 2 * 2**30
TOTAL_BYTES = 32 * 2**30
HEADER_BYTES = 2**16
"""What one header of a tar file may say beyond a name of a hundred letters."""
HEADERS = 10**6
TRAILING_BYTES = 2**24
"""Zeros behind the last member of a tar file; they fill up its last record."""
BLOCK = 2**20
LONG_TYPES = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Headers that are followed by more of themselves, which tarfile reads at once."""

BROKEN = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, OSError, ValueError)
"""What readers of archives raise when a file is damaged."""
_UNREADABLE = (*BROKEN, RuntimeError, NotImplementedError)  # Encrypted, or compressed oddly.


def damaged(path: Path | str, reason: object) -> SubflotError:
    """Say what is wrong with a file that was published whole."""
    return SubflotError(f"{path}: {reason}", hint="the file is damaged or incomplete: get it again")


class ZipReader:
    """A zip file whose members are read by name.

    Args:
        path: where it lies, and how errors call it.
        content: its bytes, for a zip file inside another.
    """

    def __init__(self, path: Path, content: bytes | None = None) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path if content is None else io.BytesIO(content))
        except BROKEN as error:
            raise damaged(path, f"cannot be read as a zip file ({error})") from error
        self._members = {info.filename: info for info in self._zip.infolist()}
        total = 0
        for info in self._members.values():
            # The upper half of the attributes holds the Unix mode; 0o12 in front marks a link.
            _check(path, info.filename, info.file_size, info.external_attr >> 28 == 0o12)
            total += info.file_size
        if total > TOTAL_BYTES:
            raise damaged(path, f"it declares {total:,} bytes of contents")

    def __enter__(self) -> "ZipReader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()

    @property
    def names(self) -> Collection[str]:
        """Every member, folders with a slash at the end."""
        return self._members.keys()

    def read(self, name: str) -> bytes:
        """The contents of a member; an error if it is missing or its checksum is wrong."""
        if name not in self._members:
            raise damaged(self.path, f"there is no `{name}` in it")
        try:
            return self._zip.read(name)
        except _UNREADABLE as error:
            raise damaged(self.path, f"cannot read `{name}` ({error})") from error

    def lines(self, name: str) -> list[str]:
        """The lines of a text member."""
        return text(self.read(name), f"{self.path}: `{name}`").splitlines()


def read_tar(
    path: Path, wanted: Collection[str], optional: Collection[str] = ()
) -> dict[str, bytes]:
    """Read members of a .tar.gz file in one pass; those `wanted` must be there."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream, _tar(stream) as archive:
            total = 0
            while (member := archive.next()) is not None:
                archive.members.clear()  # It would remember them all.
                _check(path, member.name, member.size, not (member.isfile() or member.isdir()))
                total += member.size
                if total > TOTAL_BYTES:
                    raise damaged(path, f"it declares more than {TOTAL_BYTES:,} bytes of contents")
                name = member.name.removeprefix("./")
                if name in wanted or name in optional:
                    content = archive.extractfile(member)
                    found[name] = content.read() if content else b""
            # The checksum stands behind the last block, which tarfile need not have reached.
            for _ in range(TRAILING_BYTES // BLOCK):
                if not stream.read(BLOCK):
                    break
            else:
                raise damaged(path, f"more than {TRAILING_BYTES:,} bytes follow its last member")
    except (*BROKEN, RecursionError) as error:  # A header may announce a header without end.
        raise damaged(path, f"cannot be read as a tar.gz file ({error})") from error
    for name in wanted:
        if name not in found:
            raise damaged(path, f"there is no `{name}` in it")
    return found


class _Header(tarfile.TarInfo):
    """A header that is looked at before more is read on its word."""

    def _proc_member(
        self, archive: "_Tar"
    ) -> tarfile.TarInfo:  # The way in, made to be overridden.
        archive.num_headers += 1
        if archive.num_headers > HEADERS:
            raise tarfile.ReadError(f"it has more than {HEADERS:,} headers")
        is_more = self.type in LONG_TYPES
        if is_more and self.size > HEADER_BYTES:
            raise tarfile.ReadError(f"a header declares {self.size:,} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a member is sparse")
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class _Tar(tarfile.TarFile):
    tarinfo = _Header
    members: list[tarfile.TarInfo]
    num_headers = 0


def _tar(stream: gzip.GzipFile) -> _Tar:
    return _Tar.open(fileobj=stream, mode="r|")


def read_file(path: Path) -> bytes:
    """Read a file that lies by itself, unless it is larger than any published one."""
    size = path.stat().st_size
    if size > MEMBER_BYTES:
        raise damaged(path, f"it has {size:,} bytes")
    return path.read_bytes()


def text(content: bytes, what: str) -> str:
    """Decode UTF-8; `what` names the content in an error."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise damaged(what, f"is not UTF-8 text (byte {error.start})") from error


def _check(path: Path, name: str, size: int, is_link: bool) -> None:
    parts = name.replace("\\", "/").split("/")
    if is_link or ".." in parts or parts[0] == "" or parts[0].endswith(":"):
        raise SubflotError(
            f"{path}: member `{name}` would leave the folder it is unpacked in",
            hint="no published data set holds such a member: do not trust this file",
        )
    if size > MEMBER_BYTES:
        raise damaged(path, f"member `{name}` declares {size:,} bytes")
