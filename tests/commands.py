"""The command line, called in this process."""

import sys
from collections.abc import Callable

import pytest

from subflot import cli

Command = Callable[..., tuple[int, str, str]]
"""Takes what stands behind `subflot`; returns the exit code, stdout and stderr."""


@pytest.fixture
def subflot(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["subflot", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return call
