"""What does without torch imports none of it, so that it starts at once and runs anywhere."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import report, write_run

PACKAGE = Path(__file__).parents[1] / "src" / "subflot"

HEAVY = ("torch", "numba", "scipy", "sklearn", "flwr")


def imported(code: str) -> set[str]:
    """The packages that are there after some code has run, in a process of its own."""
    shown = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "module",
    [
        "subflot",
        "subflot.results",
        "subflot.reporting.page",
        *(f"subflot.paper.{name}" for name in ("tables", "bars", "curves", "evidence")),
    ],
)
def test_records_are_read_and_drawn_without_torch(module: str) -> None:
    found = imported(f"import {module}")
    assert "subflot" in found
    assert not found & set(HEAVY)


def called(*args: str) -> set[str]:
    """What a command imports."""
    code = f"import sys\nsys.argv = {['subflot', *args]}\nfrom subflot.cli import main\n"
    return imported(code + "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code")


def test_a_report_needs_records_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "run", [[report(0, 1)]])
    found = called("report", str(tmp_path))
    assert (tmp_path / "report.html").is_file()
    assert not found & set(HEAVY)


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_what_only_tells_of_the_commands_imports_none_of_them(args: list[str]) -> None:
    assert not called(*args) & {*HEAVY, "numpy", "PIL"}


def test_nothing_is_imported_that_windows_lacks() -> None:
    """At the head of a file: what is done on one system alone is imported where it is done."""
    for file in PACKAGE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {getattr(node, "module", None), *(alias.name for alias in node.names)}
                assert not names & {"fcntl", "grp", "pty", "pwd", "resource", "termios"}, file
