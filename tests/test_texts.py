"""The small text files of a run are whole or not there."""

import errno
import os
from pathlib import Path

import pytest

from subflot.errors import SubflotError
from subflot.texts import write_text


def test_a_text_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    write_text(path, "[1]")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SubflotError, match=r"cannot write .*manifest\.json: .*No space left"):
        write_text(path, "[2]")
    assert path.read_text() == "[1]"
    assert [file.name for file in tmp_path.iterdir()] == ["manifest.json"]
