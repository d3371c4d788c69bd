"""What does without torch imports none of it, so that it starts at once and runs anywhere."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "numba", "scipy", "sklearn", "flwr")


def imported(code: str) -> set[str]:
    """The packages that are there after some code has run, in a process of its own."""
    shown = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "module", ["subflot", "subflot.results", "subflot.reporting.page", "subflot.paper.figures"]
)
def test_records_are_read_and_drawn_without_torch(module: str) -> None:
    found = imported(f"import {module}")
    assert "subflot" in found
    assert not found & set(HEAVY)
