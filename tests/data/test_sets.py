"""Loading by name: settings, where files lie, and what happens the second time."""

import csv
import pickle
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tolerances import FLOAT32
from torch.testing import assert_close

from subflot.data import sets
from subflot.data.mapped import MappedFile
from subflot.data.sets import SETS, find, load
from subflot.data.settings import ImageSettings, fill, parse, values_of
from subflot.data.source import Contents, Files, Source, SourceFile
from subflot.errors import SubflotError, UnknownName


def read_table(files: Files, settings: ImageSettings) -> Contents:
    """Rows of class, domain and grey value."""
    with files["table.csv"].open() as file:
        rows = list(csv.reader(file))
    shape = (settings.channels, settings.size, settings.size)
    return Contents(
        np.stack([np.full(shape, int(row[2]), dtype=np.uint8) for row in rows]),
        np.array([int(row[0]) for row in rows]),
        ("cat", "dog"),
        np.array([int(row[1]) for row in rows]),
        ("photo", "sketch"),
    )


TABLE = Source(
    "two-kinds",
    "a table",
    "free",
    "page.org",
    0.25,
    ImageSettings,
    read_table,
    ((SourceFile("table.csv"),),),
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with one set, which is registered."""
    monkeypatch.setattr(sets, "SETS", {**SETS, TABLE.name: TABLE})
    (tmp_path / "data" / "two-kinds").mkdir(parents=True)
    table = tmp_path / "data" / "two-kinds" / "table.csv"
    table.write_text("0,0,0\n1,0,255\n1,1,51\n0,1,102\n")
    return tmp_path / "data"


def test_a_set_is_loaded_as_it_describes_itself(root: Path) -> None:
    data = load("two-kinds", root=root)
    assert (data.name, len(data), data.test_share) == ("two-kinds", 4, 0.25)
    assert data.input_shape == (3, 32, 32)
    assert data.group_names == ("photo", "sketch")
    inputs, labels = data.tensors([1, 2])
    assert_close(inputs[:, 0, 0, 0], torch.tensor([1.0, -0.6]), **FLOAT32)
    assert labels.tolist() == [1, 1]


def test_settings_reach_the_reader_and_are_kept_apart(root: Path) -> None:
    assert load("two-kinds", root=root, size=4, channels=1).input_shape == (1, 4, 4)
    assert load("two-kinds", root=root, size=5).input_shape == (3, 5, 5)
    assert load("two-kinds", root=root, size=4, channels=1).mean == (0.5,)


def test_the_second_load_reads_nothing_and_maps_the_same_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load("two-kinds", root=root)

    def read_again(files: Files, settings: ImageSettings) -> Contents:
        raise AssertionError("read again")

    monkeypatch.setattr(sets, "SETS", {TABLE.name: replace(TABLE, read=read_again)})
    second = load("two-kinds", root=root)
    travelled = pickle.loads(pickle.dumps(second))
    for name in ("inputs", "labels", "groups"):
        places = [MappedFile.of(getattr(data, name)) for data in (first, second, travelled)]
        assert places[0] is not None
        assert places[0] == places[1] == places[2]
    assert len(pickle.dumps(second)) < 3000


def test_a_file_that_changes_is_read_again(root: Path) -> None:
    load("two-kinds", root=root)
    (root / "two-kinds" / "table.csv").write_text("0,0,7\n1,1,8\n")
    assert load("two-kinds", root=root).inputs[:, 0, 0, 0].tolist() == [7, 8]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,0,7\n0,1,8\n", "class `dog` has no examples"),
        ("0,0,7\n1,0,8\n", "group `sketch` has no examples"),
        ("0,0,7\n2,1,8\n", "example 1 has label 2"),
        ("0,0,7\n1,2,8\n", "example 1 has group 2"),
    ],
)
def test_what_is_not_complete_is_refused_and_not_kept(
    root: Path, tmp_path: Path, rows: str, said: str
) -> None:
    (root / "two-kinds" / "table.csv").write_text(rows)
    for _ in range(2):
        with pytest.raises(SubflotError, match=said):
            load("two-kinds", root=root)
    assert not (tmp_path / "cache").exists()


def test_files_are_found_where_the_user_says(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBFLOT_DATA", str(root))
    assert len(load("two-kinds")) == 4
    assert len(load("two_kinds")) == 4
    assert len(load("two-kinds", root=str(root))) == 4
    (root / "two-kinds").rename(root / "two_kinds")
    assert len(load("two-kinds")) == 4
    monkeypatch.delenv("SUBFLOT_DATA")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(SubflotError, match=r"`table.csv` not found in .*home.*two-kinds") as caught:
        load("two-kinds")
    assert caught.value.hint == "get table.csv from page.org and put it there by hand"


def test_data_that_cannot_be_written_to_is_only_read(root: Path) -> None:
    folder = root / "two-kinds"
    before = sorted(path.name for path in root.rglob("*"))
    folder.chmod(0o555)
    root.chmod(0o555)
    try:
        assert len(load("two-kinds", root=root)) == 4
        assert sorted(path.name for path in root.rglob("*")) == before
    finally:
        root.chmod(0o755)
        folder.chmod(0o755)


def test_unknown_names_offer_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean `cifar10`"):
        find("cifar01")
    with pytest.raises(UnknownName, match=r"unknown setting of `cifar10` `sise`(.|\n)*`size`"):
        load("cifar10", sise=3)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": "64"}, "setting `size` of `cifar10` is '64'"),
        ({"size": 64.0}, "setting `size`"),
        ({"size": True}, "setting `size`"),
        ({"channels": 2}, "channels is 2"),
    ],
)
def test_settings_of_another_type_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SubflotError, match=said):
        load("cifar10", **settings)


def test_a_set_without_settings_says_so() -> None:
    with pytest.raises(SubflotError, match="`har` has no settings"):
        load("har", size=3)


@pytest.mark.parametrize(
    ("name", "pairs", "expected"),
    [
        ("cifar10", ["size=64", "channels=1"], {"size": 64, "channels": 1}),
        ("cifar100", ["labels=coarse"], {"labels": "coarse"}),
        ("digit5", ["domains=mnist,usps"], {"domains": ("mnist", "usps")}),
        ("har", [], {}),
    ],
)
def test_settings_are_read_as_written_on_the_command_line(
    name: str, pairs: list[str], expected: dict[str, Any]
) -> None:
    kind = SETS[name].settings
    values = parse(kind, pairs, name)
    assert values == expected
    assert expected.items() <= values_of(fill(kind, values, name)).items()


@pytest.mark.parametrize(
    ("pair", "said"),
    [("size", "sets nothing"), ("size=x", "no value for `size`"), ("sise=3", "did you mean")],
)
def test_a_wrong_pair_is_an_error(pair: str, said: str) -> None:
    with pytest.raises(SubflotError, match=said):
        parse(SETS["cifar10"].settings, [pair], "cifar10")


@pytest.mark.parametrize("name", SETS)
def test_every_set_describes_itself(name: str) -> None:
    source = SETS[name]
    assert re.fullmatch(r"[a-z0-9-]+", source.name) is not None
    assert source.name == name
    assert source.title
    assert source.licence
    assert 0 < source.test_share < 1
    assert is_dataclass(source.settings)
    if source.package and not source.package.is_for_all:
        assert source.layouts[0][0].md5  # What a command leaves is compared.
    assert set(values_of(source.settings())) == {field.name for field in fields(source.settings)}
    for file in (file for layout in source.layouts for file in layout):
        assert re.fullmatch(r"(https?://\S+)?", file.url) is not None
        assert re.fullmatch(r"([0-9a-f]{32})?", file.md5) is not None
        assert file.url or source.package or not file.md5
        assert file.domain in ("", *getattr(source.settings(), "domains", ()))
