"""Downloads continue after a break, and nothing broken ever stands under a file's own name."""

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from subflot.data import fetch as fetching
from subflot.data.fetch import download, fetch, md5_of
from subflot.data.settings import NoSettings
from subflot.data.source import Contents, Files, Source, SourceFile
from subflot.errors import SubflotError

CONTENT = os.urandom(3_000_000)
PIECE = fetching.PIECE_BYTES
MD5 = hashlib.md5(CONTENT).hexdigest()


@dataclass
class Server:
    """A server of one file, and how it misbehaves."""

    content: bytes = CONTENT
    breaks: list[int] = field(default_factory=list)
    """For the next answers: bytes after which the connection is closed."""
    knows_ranges: bool = True
    tells_length: bool = True
    shifts_ranges: int = 0
    status: int = 200
    ranges: list[str | None] = field(default_factory=list)
    """What was asked for."""
    url: str = ""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.ranges.append(asked)
            start = 0
            if state.status != 200:
                self.send_error(state.status)
                return
            if asked and state.knows_ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(state.content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(state.content)}")
                    self.end_headers()
                    return
                start -= state.shifts_ranges
                last = len(state.content) - 1
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{last}/{last + 1}")
            else:
                self.send_response(200)
            body = state.content[start:]
            if state.tells_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: state.breaks.pop(0)] if state.breaks else body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setenv("NO_PROXY", "*")
    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{running.server_port}/data.zip"
    yield state
    running.shutdown()
    running.server_close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "set" / "data.zip"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def part(target: Path) -> Path:
    return target.with_name("data.zip.part")


def test_a_file_arrives_whole_and_reports_its_way(server: Server, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    download(server.url, target, md5=MD5, progress=lambda done, total: seen.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names_in(target.parent) == ["data.zip"]


def test_a_broken_connection_is_taken_up_in_the_same_call(server: Server, target: Path) -> None:
    server.breaks = [10 * PIECE, 5 * PIECE + 100]
    download(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, f"bytes={10 * PIECE}-", f"bytes={15 * PIECE}-"]


def test_a_line_that_keeps_breaking_is_continued_by_the_next_call(
    server: Server, target: Path
) -> None:
    server.breaks = [5 * PIECE] * fetching.ATTEMPTS
    here = 5 * PIECE * fetching.ATTEMPTS
    with pytest.raises(SubflotError, match=f"{here:,} bytes are here") as caught:
        download(server.url, target, md5=MD5)
    assert "run the same command again" in caught.value.hint
    assert not target.exists()
    assert part(target).read_bytes() == CONTENT[:here]
    download(server.url, target, md5=MD5)
    assert server.ranges[-1] == f"bytes={here}-"
    assert target.read_bytes() == CONTENT
    assert not part(target).exists()


def test_a_server_without_ranges_sends_everything_again(server: Server, target: Path) -> None:
    server.knows_ranges = False
    server.breaks = [1_000_000]
    download(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT


def test_a_server_that_sends_another_range_is_not_believed(server: Server, target: Path) -> None:
    server.shifts_ranges = 7
    server.breaks = [1_000_000]
    download(server.url, target)
    assert target.read_bytes() == CONTENT


def test_a_server_that_does_not_tell_the_length_is_served(server: Server, target: Path) -> None:
    server.tells_length = False
    seen: list[int | None] = []
    download(server.url, target, md5=MD5, progress=lambda done, total: seen.append(total))
    assert target.read_bytes() == CONTENT
    assert set(seen) == {None}


def test_a_short_answer_is_noticed_by_the_range_it_announced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    part(target).write_bytes(CONTENT[:100])
    server.tells_length = False
    server.breaks = [5 * PIECE]
    download(server.url, target)
    assert server.ranges == ["bytes=100-", f"bytes={100 + 5 * PIECE}-"]
    assert target.read_bytes() == CONTENT


def test_a_part_that_was_complete_is_only_put_in_its_place(server: Server, target: Path) -> None:
    target.parent.mkdir()
    part(target).write_bytes(CONTENT)
    download(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT
    assert len(server.ranges) == 1


def test_a_part_longer_than_the_file_is_thrown_away(server: Server, target: Path) -> None:
    target.parent.mkdir()
    part(target).write_bytes(CONTENT + b"more")
    download(server.url, target, md5=MD5)
    assert target.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing_and_the_next_call_starts_anew(
    server: Server, target: Path
) -> None:
    server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
    with pytest.raises(SubflotError, match=f"expected {MD5}"):
        download(server.url, target, md5=MD5)
    assert names_in(target.parent) == []
    server.content = CONTENT
    download(server.url, target, md5=MD5)
    assert server.ranges == [None, None]
    assert md5_of(target) == MD5


def test_a_part_of_another_file_is_found_out_by_the_checksum(server: Server, target: Path) -> None:
    target.parent.mkdir()
    part(target).write_bytes(b"another file")
    with pytest.raises(SubflotError, match="it was removed"):
        download(server.url, target, md5=MD5)
    assert names_in(target.parent) == []


@pytest.mark.parametrize("status", [404, 403, 500])
def test_a_refusal_is_told_at_once(server: Server, target: Path, status: int) -> None:
    server.status = status
    with pytest.raises(SubflotError, match=f"answers {status}"):
        download(server.url, target)
    assert len(server.ranges) == 1
    assert names_in(target.parent) == []


def test_nobody_there_is_one_clear_error(server: Server, target: Path) -> None:
    with pytest.raises(SubflotError, match=r"cannot fetch http://127\.0\.0\.1:9/x"):
        download("http://127.0.0.1:9/x", target)
    assert not target.exists()


def test_a_full_disk_is_told_and_what_has_arrived_is_kept(server: Server, target: Path) -> None:
    def progress(done: int, total: int | None) -> None:
        if done > 1_000_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(SubflotError, match=r"cannot write .*data\.zip\.part: No space left"):
        download(server.url, target, md5=MD5, progress=progress)
    assert not target.exists()
    kept = part(target).read_bytes()
    assert len(kept) > 1_000_000
    assert kept == CONTENT[: len(kept)]
    download(server.url, target, md5=MD5)
    assert server.ranges[-1] == f"bytes={len(kept)}-"
    assert target.read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SubflotError, match="cannot write") as caught:
        download(server.url, tmp_path / "file" / "data.zip")
    assert "SUBFLOT_DATA" in caught.value.hint


def test_an_interruption_keeps_what_has_arrived(server: Server, target: Path) -> None:
    def progress(done: int, total: int | None) -> None:
        if done > 1_000_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url, target, md5=MD5, progress=progress)
    assert not target.exists()
    kept = part(target).stat().st_size
    download(server.url, target, md5=MD5)
    assert server.ranges[-1] == f"bytes={kept}-"
    assert target.read_bytes() == CONTENT


def nothing(files: Files, settings: NoSettings) -> Contents:
    raise AssertionError("not read here")


def source(url: str) -> Source[NoSettings]:
    files = (SourceFile("data.zip", url, MD5), SourceFile("more.zip", url))
    other = (SourceFile("old.zip"),)
    return Source("some-set", "a set", "free", "page.org", 0.2, NoSettings, nothing, (files, other))


def test_every_missing_file_of_a_set_is_fetched(server: Server, tmp_path: Path) -> None:
    some = source(server.url)
    names = [path.name for path in fetch(some, root=tmp_path)]
    assert names == ["data.zip", "more.zip"]
    assert len(server.ranges) == 2
    assert fetch(some, root=tmp_path) == []
    (tmp_path / "some-set" / "more.zip").unlink()
    assert [path.name for path in fetch(some, root=tmp_path)] == ["more.zip"]


def test_a_file_placed_by_hand_is_left_alone(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "some_set"  # With an underscore it is found too.
    folder.mkdir()
    (folder / "old.zip").write_bytes(b"mine")
    assert fetch(source(server.url), root=tmp_path) == []
    assert server.ranges == []


def test_files_that_cannot_be_fetched_are_named(server: Server, tmp_path: Path) -> None:
    some = replace(
        source(server.url), layouts=((SourceFile("a.zip", server.url), SourceFile("b.zip")),)
    )
    with pytest.raises(SubflotError, match=r"`b\.zip` not found in .*some-set") as caught:
        fetch(some, root=tmp_path)
    assert caught.value.hint == "get b.zip from page.org and put it there by hand"
    assert names_in(tmp_path / "some-set") == ["a.zip"]
