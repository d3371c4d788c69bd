"""What rounds call is compiled before they start, and whoever waits for it is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from subflot.transport.compiled import compiled
from subflot.transport.warm import COMPILING, warm_up

KNOWN = """
from pathlib import Path
import sys
from federations import run_rounds
from subflot.algorithms import make
from subflot.transport import auction, gather, survey
from subflot.transport.warm import warm_up

def known():
    functions = [f for module in (auction, gather, survey) for f in vars(module).values()]
    return {f.__name__: f.signatures for f in functions if hasattr(f, "signatures")}

warm_up()
before = known()
assert before["auction"] and before["mean_rows"] and before["spent"]
for name, settings in (("subflot", {}), ("subflot-partial", {}), ("subflot", {"entropy": 1.0})):
    run_rounds(make(name, **settings), Path(sys.argv[1]) / f"{name}{len(settings)}", rounds=2)
assert known() == before, (before, known())
"""


def test_no_round_calls_what_was_not_compiled_before(tmp_path: Path) -> None:
    # In a process of its own, for in this one other tests have called more.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", KNOWN, str(tmp_path)], check=True, env=env)


def test_compiling_is_told_once_and_loading_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    def one_more(number: int) -> int:
        return number + 1

    def one_less(number: int) -> int:
        return number - 1

    functions = [compiled(one_more), compiled(one_less)]

    def work() -> None:
        assert [function(3) for function in functions] == [4, 2]

    warm_up(work)
    assert capsys.readouterr().err == COMPILING
    warm_up(work)
    assert capsys.readouterr().err == ""
