"""AG News, from small tables made here and from the real ones."""

import csv
import io
import re
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_files import tar_file

from subflot.data.sets import load
from subflot.data.source import Files
from subflot.errors import SubflotError

TRAIN = (
    '"3","Oil rises","Oil, again: it\'s ""up""."\n'
    '"1","Oil and\npeace","zebra 10"\n"2","b","c"\n"4","a","d"\n'
)
TEST = '"2","OIL","unseen zebra"\n"4","...","!"\n'


def write(root: Path, train: str = TRAIN, test: str = TEST, extra: str | None = None) -> None:
    tables = {"train.csv": train, "test.csv": test, "classes.txt": "World\n"}
    tables |= {} if extra is None else {"train_extra_merged.csv": extra}
    files = {f"ag_news_csv/{name}": text.encode() for name, text in tables.items()}
    tar_file(root / "ag_news" / "ag_news_csv.tar.gz", files)


def test_words_are_numbered_by_frequency_and_then_by_the_alphabet(tmp_path: Path) -> None:
    write(tmp_path)
    data = load("ag-news", root=tmp_path, length=8)
    # Training words: oil 3; then once each 10 a again and b c d it peace rises s up zebra.
    numbers = {"oil": 2, "10": 3, "a": 4, "again": 5, "and": 6, "b": 7, "c": 8, "d": 9}
    numbers |= {"it": 10, "peace": 11, "rises": 12, "s": 13, "up": 14, "zebra": 15}
    texts = ["oil rises oil again it s up", "oil and peace zebra 10", "b c", "a d"]
    for row, text in zip(data.inputs, texts, strict=False):
        words = [numbers[word] for word in text.split()]
        assert row.tolist() == words + [0] * (8 - len(words))
    assert data.inputs[4].tolist() == [2, 1, 15, 0, 0, 0, 0, 0]
    assert data.inputs[5].tolist() == [0] * 8
    assert data.labels.tolist() == [2, 0, 1, 3, 1, 3]
    assert data.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert data.test_share == 0.06


def test_a_vocabulary_and_a_length_are_limits(tmp_path: Path) -> None:
    write(tmp_path)
    data = load("ag-news", root=tmp_path, vocabulary=4, length=2)
    assert data.inputs.tolist() == [[2, 1], [2, 1], [1, 1], [1, 1], [2, 1], [0, 0]]


def test_further_training_rows_come_between_training_and_test(tmp_path: Path) -> None:
    write(tmp_path, extra='"1","","unseen unseen unseen unseen"\n')
    data = load("ag-news", root=tmp_path, length=4)
    assert data.labels.tolist() == [2, 0, 1, 3, 0, 1, 3]
    assert data.inputs[4].tolist() == [2, 2, 2, 2]
    assert data.inputs[5].tolist()[:2] == [3, 2]


def test_plain_tables_give_the_same_as_the_archive(tmp_path: Path) -> None:
    write(tmp_path / "packed")
    folder = tmp_path / "plain" / "ag-news"
    folder.mkdir(parents=True)
    (folder / "train.csv").write_text(TRAIN)
    (folder / "test.csv").write_text(TEST)
    packed, plain = (load("ag-news", root=tmp_path / kind) for kind in ("packed", "plain"))
    assert np.array_equal(packed.inputs, plain.inputs)
    assert np.array_equal(packed.labels, plain.labels)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('"5","a","b"\n', "line 6 is no class from 1 to 4"),
        ('"0","a","b"\n', "line 6 is no class"),
        ('"x","a","b"\n', "line 6 is no class"),
        ('"1","a"\n', "line 6 is no class"),
        ('"1","a","b","c"\n', "line 6 is no class"),
        ('"1","a","b\n', "line 6: "),
        ('"1","a","b"c\n', "line 6: "),
        ("\n", "line 6 is no class"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: str, said: str) -> None:
    write(tmp_path, train=TRAIN + row)
    with pytest.raises(SubflotError, match=rf"ag_news_csv\.tar\.gz: `train\.csv`: {said}"):
        load("ag-news", root=tmp_path)


def test_a_class_without_examples_is_named(tmp_path: Path) -> None:
    write(tmp_path, train='"1","a","b"\n"3","a","b"\n"4","a","b"\n', test='"1","a","b"\n')
    with pytest.raises(SubflotError, match="class `Sports` has no examples"):
        load("ag-news", root=tmp_path)


@pytest.mark.parametrize(
    ("wrong", "said"), [({"vocabulary": 2}, "vocabulary is 2"), ({"length": 0}, "length is 0")]
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SubflotError, match=said):
        load("ag-news", **wrong)


@pytest.mark.slow
def test_the_real_archive(real: Callable[[str], Files]) -> None:
    files = real("ag-news")
    data = load("ag-news")
    tables = {}
    with tarfile.open(files["ag_news_csv.tar.gz"]) as archive:
        for name in archive.getnames():
            stream = archive.extractfile(name)
            if name.endswith(".csv") and stream is not None:
                text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
                tables[Path(name).name] = list(csv.reader(text))
    test = tables.pop("test.csv")
    rows = [row for name in sorted(tables) for row in tables[name]] + test
    assert Counter(data.labels.tolist()) == Counter(int(row[0]) - 1 for row in rows)
    assert data.labels.tolist() == [int(row[0]) - 1 for row in rows]
    assert data.inputs.shape == (len(rows), 64)
    assert data.inputs.max() == 31999
    # Frequency falls with the number of a word, among the words that are not cut off.
    words = Counter(
        word
        for row in rows[: len(rows) - len(test)]
        for word in re.findall(r"\w+", f"{row[1]} {row[2]}".lower())
    )
    first = re.findall(r"\w+", f"{rows[0][1]} {rows[0][2]}".lower())
    ranked = sorted(words, key=lambda word: (-words[word], word))
    assert [ranked[number - 2] for number in data.inputs[0, : len(first)]] == first
