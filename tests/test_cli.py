"""The command line as a user meets it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from subflot import cli

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 3)
    def forward(self, x):
        return self.c(torch.relu(self.b(self.a(x).sort(1)[0])))

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rest, self.out = nn.Embedding(50, 9), nn.Linear(4, 9), nn.Linear(9, 2)
    def forward(self, tokens, numbers):
        return self.out(self.words(tokens).mean(1) * self.rest(numbers))

class Nothing(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

class Broken(nn.Module):
    def __init__(self, width):
        super().__init__()

net = Net()
number = int
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(NET)
    return str(path)


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *args: str
) -> tuple[int, str, str]:
    """Call the command line in this process; return its code, stdout and stderr."""
    monkeypatch.setattr(sys, "argv", ["subflot", *args])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def subflot(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    return lambda *args: run(capsys, monkeypatch, *args)


def test_cost_prints_every_rate_and_the_mean_as_json(subflot) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = subflot("cost", "digits-cnn", "--rates", "0,0.5", "--json")
    result = json.loads(out)
    assert code == 0
    assert [row["pruning_rate"] for row in result["rates"]] == [0, 0.5]
    assert set(result["rates"][0]) == {"pruning_rate", "parameters", "multiply_adds", "bytes"}
    assert result["rates"][0]["parameters"] == 22698
    for key in ("parameters", "multiply_adds", "bytes"):
        assert result["mean"][key] == sum(row[key] for row in result["rates"]) / 2


def test_cost_shows_the_papers_numbers_beside_ours(subflot) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = subflot("cost", "mobilenetv2")
    assert "2,236,682" in out
    assert "paper | ours" in out
    assert "-6.06%" in out
    assert "with these ours is 6.52 million" in out


def test_trace_prints_spaces_with_reasons_and_tensors_with_axes_as_json(subflot, file) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = subflot("trace", f"{file}:Net", "--input", "6", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["spaces"]["b"] == {"size": 7, "prunable": True, "reason": None}
    assert result["spaces"]["a"]["prunable"] is False
    assert result["spaces"]["a"]["reason"].startswith("sort")
    assert result["tensors"]["c.weight"][1] == [{"space": "b", "repeat": 1, "copies": 1}]
    assert result["spaces"][result["tensors"]["a.weight"][1][0]["space"]]["reason"] == "input"


def test_trace_prints_tables_that_a_reader_can_use(subflot) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = subflot("trace", "harcnn")
    assert "no: output" in out
    # 26 positions per channel reach the first linear layer.
    assert "classifier.0 | features.3 x 26" in out


def test_several_inputs_and_tokens(subflot, file) -> None:  # type: ignore[no-untyped-def]
    shapes = ("--input", "5:int:50", "--input", "4")
    code, out, _ = subflot("cost", f"{file}:Words", *shapes, "--json")
    assert code == 0
    assert json.loads(out)["rates"][0]["multiply_adds"] == 4 * 9 + 9 * 2


def test_an_instance_in_a_file_is_a_model_too(subflot, file) -> None:  # type: ignore[no-untyped-def]
    assert subflot("trace", f"{file}:net", "--input", "6")[0] == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("cost", "resnet81"), "did you mean `resnet18`?"),
        (("cost", "vgg11", "--rates", "1.0"), "lies in [0, 1)"),
        (("cost", "vgg11", "--rates", "half"), "not a list of pruning rates"),
        (("trace", "FILE:Nothing", "--input", "4"), "nothing in Nothing can be cut"),
        (("trace", "FILE:Net"), "add --input"),
        (("trace", "FILE:Net", "--input", "5"), "Net does not run on the example"),
        (("trace", "FILE:Net", "--input", "3x4"), "is not the shape of an input"),
        (("trace", "FILE:Absent", "--input", "4"), "there is no `Absent`"),
        (("trace", "FILE:Broken", "--input", "4"), "built without arguments"),
        (("trace", "FILE:number", "--input", "4"), "not a torch module"),
        (("trace", "nowhere.py:Net", "--input", "4"), "there is no file nowhere.py"),
        (("trace", "no.such.package:Net", "--input", "4"), "cannot import no.such.package"),
    ],
)
def test_mistakes_are_one_message_on_stderr(subflot, file, args, said) -> None:  # type: ignore[no-untyped-def]
    code, out, err = subflot(*(arg.replace("FILE", file) for arg in args))
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert "Traceback" not in err


def test_the_installed_command_answers_and_shows_no_traceback(file: str) -> None:
    command = [sys.executable, "-m", "subflot.cli", "trace", f"{file}:Nothing", "--input", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nothing in Nothing can be cut")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["cost", "trace"])
def test_every_help_ends_with_an_example(subflot, command: str) -> None:  # type: ignore[no-untyped-def]
    _, out, _ = subflot(command, "--help")
    assert out.strip().splitlines()[-1].strip().startswith("Example: subflot")
