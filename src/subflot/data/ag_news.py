"""AG News: titles and first lines of news articles in four classes, as tokens.

Paper: "Character-level Convolutional Networks for Text Classification", Zhang et al., NIPS 2015.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from subflot.data.archives import damaged, read_tar, text
from subflot.data.source import Contents, Files, Source, SourceFile
from subflot.errors import SubflotError

CLASSES = ("World", "Sports", "Business", "Sci/Tech")
ARCHIVE = "ag_news_csv.tar.gz"
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
_WORD = re.compile(r"\w+")

Row = tuple[int, list[str]]
"""A label, and the words of its text."""


@dataclass(frozen=True)
class AgNewsSettings:
    """How texts become tokens."""

    vocabulary: int = 32000
    """Number of tokens, padding (0) and unknown (1) included."""
    length: int = 64
    """Tokens per text; longer texts are cut, shorter ones padded at the end."""

    def __post_init__(self) -> None:
        if self.vocabulary <= FIRST_WORD:
            raise SubflotError(
                f"vocabulary is {self.vocabulary}", hint="it counts padding, unknown and words"
            )
        if self.length < 1:
            raise SubflotError(f"length is {self.length}", hint="it is 1 or more tokens")


def read_ag_news(files: Files, settings: AgNewsSettings) -> Contents:
    """Read the training and then the test articles; words are known from the training texts only.

    A file of further training rows is read too where somebody has added one to the archive.
    """
    if ARCHIVE in files:
        top = f"{ARCHIVE.partition('.')[0]}/"
        names = {
            name: f"{top}{name}" for name in ("train.csv", "train_extra_merged.csv", "test.csv")
        }
        wanted = (names["train.csv"], names["test.csv"])
        tables = read_tar(files[ARCHIVE], wanted, optional=names.values())
        shown = {name: f"{files[ARCHIVE]}: `{name}`" for name in names}
        parts = {name: tables[key] for name, key in names.items() if key in tables}
    else:
        shown = {name: str(path) for name, path in files.items()}
        parts = {name: files[name].read_bytes() for name in ("train.csv", "test.csv")}
    rows = {name: _rows(content, shown[name]) for name, content in parts.items()}
    training = [row for name, part in rows.items() if name != "test.csv" for row in part]
    everything = [*training, *rows["test.csv"]]
    words = _vocabulary((words for _, words in training), settings.vocabulary)
    labels = np.array([label for label, _ in everything], dtype=np.int64)
    return Contents(_tokens(everything, words, settings.length), labels, CLASSES)


def _rows(content: bytes, name: str) -> list[Row]:
    """Parse lines of class (from 1), title and text."""
    rows = []
    reader = csv.reader(io.StringIO(text(content, name), newline=""), strict=True)
    try:
        for row in reader:
            if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                raise damaged(
                    name,
                    f"line {reader.line_num} is no class from 1 to 4, title and text "
                    f"but {str(row)[:60]}",
                )
            rows.append((int(row[0]) - 1, _WORD.findall(f"{row[1]} {row[2]}".lower())))
    except csv.Error as error:
        raise damaged(name, f"line {reader.line_num}: {error}") from error
    return rows


def _vocabulary(texts: Iterable[list[str]], size: int) -> dict[str, int]:
    """Number the most frequent words from 2; of equally frequent ones the first in the alphabet.

    Example:
        >>> _vocabulary([["the", "cat"], ["a", "cat"]], size=4)
        {'cat': 2, 'a': 3}
    """
    counts = Counter(word for words in texts for word in words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: size - FIRST_WORD]
    return {word: number for number, word in enumerate(ranked, start=FIRST_WORD)}


def _tokens(rows: list[Row], vocabulary: dict[str, int], length: int) -> NDArray[np.int32]:
    tokens = np.full((len(rows), length), PADDING, dtype=np.int32)
    for target, (_, words) in zip(tokens, rows, strict=True):
        numbers = [vocabulary.get(word, UNKNOWN) for word in words[:length]]
        target[: len(numbers)] = numbers
    return tokens


_RAW = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"

AG_NEWS = Source(
    "ag-news",
    "AG News: 127,600 news articles, 4 classes",
    "research, not commercial",
    "http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
    0.06,
    AgNewsSettings,
    read_ag_news,
    (
        (
            SourceFile("train.csv", f"{_RAW}/train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
            SourceFile("test.csv", f"{_RAW}/test.csv", "d52ea96a97a2d943681189a97654912d"),
        ),
        (SourceFile(ARCHIVE),),
    ),
)
