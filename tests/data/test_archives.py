"""Archives are read by name; damaged and hostile ones are one clear error each."""

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_files import tar_file, zip_file

from subflot.data import archives
from subflot.data.archives import ZipReader, read_tar, text
from subflot.errors import SubflotError

MEMBERS = {"top/a.txt": b"alpha\nbeta\n", "top/b.bin": bytes(range(256)) * 40}


def test_members_come_out_as_they_went_in(tmp_path: Path) -> None:
    with ZipReader(zip_file(tmp_path / "a.zip", MEMBERS)) as archive:
        assert {name: archive.read(name) for name in archive.names} == MEMBERS
        assert archive.lines("top/a.txt") == ["alpha", "beta"]
    assert read_tar(tar_file(tmp_path / "a.tar.gz", MEMBERS), list(MEMBERS)) == MEMBERS


def test_a_tar_made_in_its_own_folder_is_read_too(tmp_path: Path) -> None:
    dotted = {f"./{name}": content for name, content in MEMBERS.items()}
    assert read_tar(tar_file(tmp_path / "a.tar.gz", dotted), list(MEMBERS)) == MEMBERS


def test_a_zip_inside_a_zip_is_read_in_memory(tmp_path: Path) -> None:
    inner = zip_file(tmp_path / "inner.zip", MEMBERS).read_bytes()
    with ZipReader(zip_file(tmp_path / "outer.zip", {"inner.zip": inner})) as outer:
        content = outer.read("inner.zip")
    with ZipReader(tmp_path / "outer.zip" / "inner.zip", content) as archive:
        assert archive.read("top/b.bin") == MEMBERS["top/b.bin"]


def test_optional_members_may_be_missing_and_wanted_ones_may_not(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar.gz", MEMBERS)
    assert list(read_tar(path, ["top/a.txt"], optional=["top/none", "top/b.bin"])) == list(MEMBERS)
    with pytest.raises(SubflotError, match=r"a\.tar\.gz: there is no `top/none` in it"):
        read_tar(path, ["top/none"])
    with (
        ZipReader(zip_file(tmp_path / "a.zip", MEMBERS)) as archive,
        pytest.raises(SubflotError, match=r"a\.zip: there is no `top/none` in it"),
    ):
        archive.read("top/none")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.999))
def test_an_archive_that_ends_too_early_is_an_error(tmp_path: Path, share: float) -> None:
    whole = tar_file(tmp_path / "whole.tar.gz", MEMBERS).read_bytes()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(SubflotError, match=r"cut\.tar\.gz") as caught:
        read_tar(cut, list(MEMBERS))
    assert "get it again" in caught.value.hint
    whole = zip_file(tmp_path / "whole.zip", MEMBERS).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(SubflotError, match=r"cut\.zip: cannot be read as a zip file"):
        ZipReader(tmp_path / "cut.zip")


def test_a_wrong_checksum_at_the_very_end_is_seen(tmp_path: Path) -> None:
    path = tar_file(tmp_path / "a.tar.gz", MEMBERS)
    content = bytearray(path.read_bytes())
    content[-8] ^= 1  # The checksum of gzip.
    path.write_bytes(content)
    with pytest.raises(SubflotError, match="CRC"):
        read_tar(path, list(MEMBERS))


def test_a_zip_member_with_a_wrong_checksum_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a.txt", "alphabet")
    path.write_bytes(path.read_bytes().replace(b"alphabet", b"alphabit"))
    with (
        ZipReader(path) as reader,
        pytest.raises(SubflotError, match=r"cannot read `a\.txt` \(Bad CRC"),
    ):
        reader.read("a.txt")


LEAVING = ["../a.txt", "top/../../a.txt", "/etc/a.txt", "..\\a.txt", "C:/a.txt", "C:\\a.txt"]


@pytest.mark.parametrize("name", LEAVING)
def test_members_that_would_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(SubflotError, match=r"would leave the folder"):
        ZipReader(zip_file(tmp_path / "a.zip", {**MEMBERS, name: b"x"}))
    with pytest.raises(SubflotError, match=r"would leave the folder"):
        read_tar(tar_file(tmp_path / "a.tar.gz", {**MEMBERS, name: b"x"}), list(MEMBERS))


def test_dots_inside_a_name_are_harmless(tmp_path: Path) -> None:
    with ZipReader(zip_file(tmp_path / "a.zip", {"a..b/c...txt": b"x"})) as archive:
        assert archive.read("a..b/c...txt") == b"x"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("top/a.txt")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(SubflotError, match=r"`top/a.txt` would leave"):
        read_tar(path, ["top/a.txt"])


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("top/a.txt")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(SubflotError, match=r"`top/a.txt` would leave"):
        ZipReader(tmp_path / "a.zip")


def test_ordinary_permissions_are_no_links(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        info = zipfile.ZipInfo("top/a.txt")
        info.external_attr = (stat.S_IFREG | 0o755) << 16
        archive.writestr(info, "x")
    with ZipReader(tmp_path / "a.zip") as reader:
        assert reader.read("top/a.txt") == b"x"


@pytest.mark.parametrize("limit", ["MEMBER_BYTES", "TOTAL_BYTES"])
def test_absurd_sizes_are_refused_before_anything_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    bomb = {"zeros": bytes(5_000_000), "more": bytes(5_000_000)}
    monkeypatch.setattr(archives, limit, 4_000_000 if limit == "MEMBER_BYTES" else 9_000_000)
    with pytest.raises(SubflotError, match=r"declares .* bytes"):
        ZipReader(zip_file(tmp_path / "a.zip", bomb))
    with pytest.raises(SubflotError, match=r"declares .* bytes"):
        read_tar(tar_file(tmp_path / "a.tar.gz", bomb), ["zeros"])


def block(kind: bytes, size: int, name: str = "top/a.txt") -> bytes:
    """A header of a tar file."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


LONG = [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE]


@pytest.mark.parametrize("kind", LONG)
def test_a_header_is_bounded_before_it_is_read(tmp_path: Path, kind: bytes) -> None:
    """Sixty megabytes of zeros are sixty kilobytes in the file."""
    path = tmp_path / "a.tar.gz"
    size = 60 * 2**20
    path.write_bytes(gzip.compress(block(kind, size) + bytes(size) + bytes(1024), 1))
    tracemalloc.start()
    with pytest.raises(SubflotError, match=r"a header declares 62,914,560 bytes"):
        read_tar(path, ["top/a.txt"])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize("kind", LONG)
def test_headers_without_end_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes
) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(block(kind, 512) + b"9 a=bcde\n".ljust(512, b"\0"), 1) * 5000)
    with pytest.raises(SubflotError, match=r"a\.tar\.gz"):
        read_tar(path, ["top/a.txt"])
    monkeypatch.setattr(archives, "HEADERS", 30)
    path.write_bytes(gzip.compress(block(tarfile.REGTYPE, 0), 1) * 50)
    with pytest.raises(SubflotError, match=r"more than 30 headers"):
        read_tar(path, ["top/a.txt"])


def test_a_long_name_is_read_and_a_sparse_member_is_not(tmp_path: Path) -> None:
    for style in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        name = "top/" + 300 * "a"
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=style) as archive:
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
        assert read_tar(tmp_path / "a.tar.gz", [name]) == {name: b"abc"}
    content = block(tarfile.GNUTYPE_SPARSE, 512) + bytes(2048)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(content))
    with pytest.raises(SubflotError, match="a member is sparse"):
        read_tar(tmp_path / "a.tar.gz", ["top/a.txt"])


def test_what_follows_the_last_member_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar_file(tmp_path / "a.tar.gz", MEMBERS)
    path.write_bytes(path.read_bytes() + gzip.compress(bytes(5 * 2**20)))
    assert read_tar(path, list(MEMBERS)) == MEMBERS
    monkeypatch.setattr(archives, "TRAILING_BYTES", 2**22)
    with pytest.raises(SubflotError, match="follow its last member"):
        read_tar(path, list(MEMBERS))


def test_a_zip_never_gives_more_than_it_declares(tmp_path: Path) -> None:
    path = zip_file(tmp_path / "a.zip", {"zeros": bytes(100_000)})
    declared = (100_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(declared, (10).to_bytes(4, "little")))
    with ZipReader(path) as reader, pytest.raises(SubflotError, match="cannot read `zeros`"):
        reader.read("zeros")


def test_another_kind_of_file_is_an_error(tmp_path: Path) -> None:
    for name, content in {
        "page.html": b"<html>",
        "empty": b"",
        "text.gz": gzip.compress(b"hi"),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SubflotError, match=f"{name}: cannot be read as a zip"):
            ZipReader(tmp_path / name)
        with pytest.raises(SubflotError, match=name):
            read_tar(tmp_path / name, ["a"])


def test_an_encrypted_member_is_an_error(tmp_path: Path) -> None:
    path = zip_file(tmp_path / "a.zip", {"a.txt": b"alpha"})
    content = bytearray(path.read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with ZipReader(path) as reader, pytest.raises(SubflotError, match="encrypted"):
        reader.read("a.txt")


def test_text_must_be_text() -> None:
    assert text("é".encode(), "x") == "é"
    with pytest.raises(SubflotError, match=r"train\.csv: is not UTF-8 text \(byte 1\)"):
        text(b"a\xff", "train.csv")
