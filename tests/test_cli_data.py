"""`subflot data` as a user meets it: list, get and check."""

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Command
from made_files import picture, zip_file

from subflot.cli import data as commands
from subflot.data import sets
from subflot.data.pacs import DOMAINS, PACS
from subflot.data.sets import SETS
from subflot.data.source import SourceFile
from subflot.data.survey import presence


@pytest.fixture
def subflot(subflot: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Call `subflot data` with folders of its own."""
    monkeypatch.setenv("SUBFLOT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SUBFLOT_CACHE", str(tmp_path / "cache"))
    return partial(subflot, "data")


def write_pacs(path: Path) -> Path:
    return zip_file(
        path,
        {
            f"PACS/{domain}/{label}/{number}.png": picture(np.zeros((8, 8)))
            for group, domain in enumerate(DOMAINS)
            for label in ("dog", "house")
            for number in range(group + 1)
        },
    )


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server that publishes PACS, as which it is registered; the file on it."""
    file = write_pacs(tmp_path / "server" / "PACS.zip")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handler = partial(Quiet, directory=str(file.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/PACS.zip"
    md5 = hashlib.md5(file.read_bytes()).hexdigest()
    changed = {**SETS, "pacs": replace(PACS, layouts=((SourceFile("PACS.zip", url, md5),),))}
    for module in (sets, commands):
        monkeypatch.setattr(module, "SETS", changed)
    monkeypatch.setenv("NO_PROXY", "*")
    yield file
    server.shutdown()
    server.server_close()


def test_list_shows_every_set_and_what_is_missing(subflot: Command, tmp_path: Path) -> None:
    code, out, _ = subflot("list")
    assert code == 0
    for name, source in SETS.items():
        assert name in out
        if presence(source).missing:  # Packages may be installed.
            assert source.layouts[0][0].name[:12] in out
    assert "missing from" in out


def test_list_tells_programs_where_files_belong_and_what_can_be_set(
    subflot: Command, tmp_path: Path
) -> None:
    write_pacs(tmp_path / "data" / "pacs" / "PACS.zip")
    _, out, _ = subflot("list", "--json")
    result = json.loads(out)
    found = {entry["name"]: entry for entry in result["sets"]}
    assert result["root"] == str(tmp_path / "data")
    assert set(found) == set(SETS)
    assert found["cifar10"]["missing"] == ["cifar-10-python.tar.gz"]
    assert found["cifar10"]["folder"] == str(tmp_path / "data" / "cifar10")
    assert found["cifar10"]["settings"] == {"size": 32, "channels": 3}
    assert found["pacs"]["missing"] == []
    assert found["pacs"]["bytes"] == (tmp_path / "data" / "pacs" / "PACS.zip").stat().st_size
    assert found["pacs"]["examples"] is None


def test_examples_are_counted_once_a_set_was_read(subflot: Command, tmp_path: Path) -> None:
    write_pacs(tmp_path / "data" / "pacs" / "PACS.zip")
    assert "not read yet" in subflot("list")[1]
    subflot("check", "pacs")
    found = {entry["name"]: entry for entry in json.loads(subflot("list", "--json")[1])["sets"]}
    assert found["pacs"]["examples"] == 20


def test_check_counts_classes_and_groups(subflot: Command, tmp_path: Path) -> None:
    write_pacs(tmp_path / "data" / "pacs" / "PACS.zip")
    code, out, err = subflot("check", "pacs", "--set", "size=16", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert result["examples"] == 20
    assert result["input_shape"] == [3, 16, 16]
    assert result["type"] == "uint8"
    assert result["classes"] == {"dog": 10, "house": 10}
    assert result["groups"] == {"art_painting": 2, "cartoon": 4, "photo": 6, "sketch": 8}
    assert result["checksums"] == {"PACS.zip": "unknown"}
    out = subflot("check", "pacs")[1]
    assert "pacs: 20 examples of 3 x 64 x 64 (uint8)" in out
    assert "sketch" in out


def test_get_fetches_and_then_finds_it_there(
    subflot: Command, published: Path, tmp_path: Path
) -> None:
    code, out, err = subflot("get", "pacs")
    target = tmp_path / "data" / "pacs" / "PACS.zip"
    assert (code, out) == (0, "")
    assert f"fetched {target}" in err
    assert "PACS.zip: " in err  # How far it is.
    assert target.read_bytes() == published.read_bytes()
    code, _, err = subflot("get", "pacs")
    assert (code, err) == (0, f"pacs is already in {target.parent}\n")


def test_a_file_placed_by_hand_is_used_with_a_note(
    subflot: Command, published: Path, tmp_path: Path
) -> None:
    target = tmp_path / "data" / "pacs" / "PACS.zip"
    zip_file(target, {"PACS/photo/dog/1.png": b"other"})
    code, _, err = subflot("get", "pacs")
    assert code == 0
    assert "note: PACS.zip is not the published file" in err
    write_pacs(target)
    with target.open("ab") as file:
        file.write(b"\0")
    code, out, err = subflot("check", "pacs", "--json")
    assert code == 0
    assert json.loads(out)["checksums"] == {"PACS.zip": "other"}
    assert "note: PACS.zip is not the published file" in err


def test_get_refuses_a_file_with_another_checksum(
    subflot: Command, published: Path, tmp_path: Path
) -> None:
    published.write_bytes(b"damaged")
    code, _, err = subflot("get", "pacs")
    assert code == 2
    assert "error: http" in err
    assert "hint: it was removed" in err
    assert list((tmp_path / "data" / "pacs").iterdir()) == []


def test_an_interrupted_get_says_how_to_go_on(
    subflot: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "fetch", interrupted)
    code, _, err = subflot("get", "cifar10")
    assert code == 130
    assert err == "stopped; the same command continues where it was\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("get", "pacs"), "get PACS.zip from https://domaingeneralization.github.io/"),
        (("get", "cifar01"), "did you mean `cifar10`?"),
        (("check", "cifar10"), "`subflot data get cifar10` fetches"),
        (("check", "cifar10", "--set", "sise=1"), "did you mean `size`?"),
        (("check", "cifar10", "--set", "size"), "sets nothing"),
    ],
)
def test_mistakes_are_one_message_with_a_hint(
    subflot: Command, args: tuple[str, ...], said: str
) -> None:
    code, out, err = subflot(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert said in err
