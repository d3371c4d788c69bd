"""The command line as a user meets it."""

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command
from matplotlib.image import imread
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.testing import assert_close

import subflot as package
from subflot import build, public, take, trace
from subflot.models.load import load
from subflot.transport import align, solve
from subflot.transport.diagnose import diagnose

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


def test_cost_prints_every_rate_and_the_mean_as_json(subflot: Command) -> None:
    code, out, _ = subflot("cost", "digits-cnn", "--rates", "0,0.5", "--json")
    result = json.loads(out)
    assert code == 0
    assert [row["pruning_rate"] for row in result["rates"]] == [0, 0.5]
    assert set(result["rates"][0]) == {"pruning_rate", "parameters", "multiply_adds", "bytes"}
    assert result["rates"][0]["parameters"] == 22698
    for key in ("parameters", "multiply_adds", "bytes"):
        assert result["mean"][key] == sum(row[key] for row in result["rates"]) / 2


def test_cost_shows_the_papers_numbers_beside_ours(subflot: Command) -> None:
    _, out, _ = subflot("cost", "mobilenetv2")
    assert "2,236,682" in out
    assert "paper | ours" in out
    assert "-6.06%" in out
    assert "with these ours is 6.52 million" in out


def test_trace_prints_spaces_with_reasons_and_tensors_with_axes_as_json(
    subflot: Command, file: str
) -> None:
    code, out, _ = subflot("trace", f"{file}:Net", "--input", "6", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["spaces"]["b"] == {"size": 7, "prunable": True, "reason": None}
    assert result["spaces"]["a"]["prunable"] is False
    assert result["spaces"]["a"]["reason"].startswith("sort")
    assert result["tensors"]["c.weight"][1] == [{"space": "b", "repeat": 1, "copies": 1}]
    assert result["spaces"][result["tensors"]["a.weight"][1][0]["space"]]["reason"] == "input"


def test_trace_prints_tables_that_a_reader_can_use(subflot: Command) -> None:
    _, out, _ = subflot("trace", "harcnn")
    assert "no: output" in out
    # 26 positions per channel reach the first linear layer.
    assert "classifier.0 | features.3 x 26" in out


def test_several_inputs_and_tokens(subflot: Command, file: str) -> None:
    shapes = ("--input", "5:int:50", "--input", "4")
    code, out, _ = subflot("cost", f"{file}:Words", *shapes, "--json")
    assert code == 0
    assert json.loads(out)["rates"][0]["multiply_adds"] == 4 * 9 + 9 * 2


def test_an_instance_in_a_file_is_a_model_too(subflot: Command, file: str) -> None:
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
def test_mistakes_are_one_message_on_stderr(
    subflot: Command, file: str, args: tuple[str, ...], said: str
) -> None:
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


PRESSED = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # Jobs in the background ignore it.
import subflot.cli
assert "torch" not in sys.modules

class Pressing:
    def find_spec(self, name, *_):
        if name == "torch":
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(60)
            except KeyboardInterrupt:
                raise AttributeError("what a library makes of it")

sys.meta_path.insert(0, Pressing())
sys.argv = ["subflot", "algorithms"]
subflot.cli.main()
"""


def test_ctrl_c_ends_the_command_also_while_it_starts() -> None:
    done = subprocess.run([sys.executable, "-c", PRESSED], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_the_version_is_told(subflot: Command) -> None:
    assert subflot("--version") == (0, f"subflot {version('subflot')}\n", "")
    assert package.__version__ == version("subflot")


def test_public_names_are_imported_when_they_are_asked_for() -> None:
    assert set(public.__all__) <= set(dir(package))
    assert all(getattr(package, name) is getattr(public, name) for name in public.__all__)
    with pytest.raises(AttributeError, match="module `subflot` has no attribute `simulat`"):
        _ = package.simulat  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["align", "cost", "trace"])
def test_every_help_ends_with_an_example(subflot: Command, command: str) -> None:
    _, out, _ = subflot(command, "--help")
    assert out.strip().splitlines()[-1].strip().startswith("Example: subflot")


@pytest.fixture
def files(tmp_path: Path, file: str) -> dict[str, str]:
    """A model, its half-width prefix slice, and files that something is wrong with."""
    torch.manual_seed(0)
    module, example = load(f"{file}:Net", ["6"])
    wide = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    channels = trace(module, example)
    first = {space: torch.arange(k) for space, k in channels.kept_sizes(0.5).items()}
    digits = load("digits-cnn")[0].state_dict()
    saved = {
        "WIDE": wide,
        "HALF": take(wide, channels, first),
        "MORE": wide | {"more": torch.zeros(2)},
        "LESS": {name: tensor for name, tensor in wide.items() if name != "b.bias"},
        "CLASSES": wide | {"c.weight": torch.zeros(4, 7), "c.bias": torch.zeros(4)},
        "AXES": wide | {"b.bias": torch.zeros(7, 1)},
        "INTEGERS": wide | {"b.bias": torch.zeros(7, dtype=torch.int64)},
        "NAN": wide | {"b.weight": torch.full((7, 8), torch.nan)},
        "KERNEL": digits | {"features.0.weight": F.pad(digits["features.0.weight"], (1, 1))},
    }
    paths = {name: str(tmp_path / f"{name.lower()}.safetensors") for name in saved}
    for name, weights in saved.items():
        save_file({key: tensor.contiguous() for key, tensor in weights.items()}, paths[name])
    return paths | {"FILE": file, "FOLDER": str(tmp_path)}


def test_align_prints_what_diagnose_finds_as_json(subflot: Command, files: dict[str, str]) -> None:
    model = ("--model", f"{files['FILE']}:Net", "--input", "6")
    code, out, _ = subflot("align", files["WIDE"], files["HALF"], *model, "--json")
    result = json.loads(out)
    assert code == 0
    assert set(result) == {"matches", "delta_ot", "delta_p", "global_share"}
    (match,) = result["matches"]  # The channels that were sorted are never matched.
    assert set(match) == {
        "tensor",
        "space",
        "num_source_channels",
        "num_target_channels",
        "cost",
        "share_moved",
        "is_optimal",
    }
    module, example = load(f"{files['FILE']}:Net", ["6"])
    channels = trace(module, example)
    source, target = load_file(files["WIDE"]), load_file(files["HALF"])
    found = diagnose(align(source, target, channels), source, target, channels)
    assert match == vars(found.matches[0])
    assert (match["tensor"], match["space"]) == ("b.weight", "b")
    assert (result["delta_ot"], result["delta_p"]) == (found.delta_ot, found.delta_p)


def test_align_prints_a_table_and_totals_and_writes_what_is_asked(
    subflot: Command, files: dict[str, str], tmp_path: Path
) -> None:
    plot, output = tmp_path / "plans.png", tmp_path / "aligned.safetensors"
    code, out, err = subflot(
        *("align", files["WIDE"], files["HALF"], "--model", f"{files['FILE']}:Net"),
        *("--input", "6", "--plan", "partial", "--plot", str(plot), "--output", str(output)),
    )
    assert code == 0
    assert "wide.safetensors carried to half.safetensors" in out
    # The narrow model is a slice, so a one-to-one matching finds it, where it is and for nothing.
    row = next(line for line in out.splitlines() if "b.weight" in line)
    assert row.replace("│", " ").split() == ["b.weight", "b", "7", "4", "0", "0.0%", "yes"]
    assert "delta_OT^2, aligned against source: " in out
    assert "delta_P^2, anchor against source: " in out
    assert err == f"wrote {plot}\nwrote {output}\n"
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert float(np.ptp(imread(plot))) > 0.5
    module, example = load(f"{files['FILE']}:Net", ["6"])
    half, aligned = load_file(files["HALF"]), load_file(output)
    narrow = build(module, trace(module, example), half)
    narrow.load_state_dict({name: torch.zeros_like(tensor) for name, tensor in half.items()})
    narrow.load_state_dict(aligned, strict=True)
    assert_close(dict(narrow.state_dict()), half, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("option", "value", "setting"),
    [
        ("--plan", "partial", {"plan": "partial"}),
        ("--input-map", "sum", {"input_map": "sum"}),
        ("--entropy", "0.3", {"entropy": 0.3}),
        ("--residual", "joint", {"residual": "joint"}),
    ],
)
def test_every_setting_reaches_the_alignment(
    subflot: Command,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    option: str,
    value: str,
    setting: dict[str, Any],
) -> None:
    settings = {"plan": "balanced", "residual": "average", "input_map": "mean", "entropy": 0.0}
    seen = []

    def watched(*args: Any, **given: Any) -> Any:
        seen.append(given)
        return align(*args, **given)

    monkeypatch.setattr("subflot.cli.align.align", watched)
    model = ("--model", f"{files['FILE']}:Net", "--input", "6")
    assert subflot("align", files["WIDE"], files["HALF"], *model, option, value)[0] == 0
    assert seen == [settings | setting]


def test_distances_count_parameters_only(subflot: Command, tmp_path: Path) -> None:
    weights = load("digits-cnn")[0].state_dict()
    save_file(weights, tmp_path / "a.safetensors")
    moved = {name: t + 1 if "running" in name else t for name, t in weights.items()}
    save_file(moved, tmp_path / "b.safetensors")
    names = (str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"))
    _, out, _ = subflot("align", *names, "--model", "digits-cnn", "--json")
    assert json.loads(out)["delta_p"] == 0


def test_a_plan_that_has_not_converged_is_a_warning_on_stderr(
    subflot: Command, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]
) -> None:
    monkeypatch.setattr(sys.modules[solve.__module__], "SINKHORN_STEPS", 1)
    model = ("--model", f"{files['FILE']}:Net", "--input", "6")
    code, out, err = subflot(
        "align", files["WIDE"], files["HALF"], *model, "--entropy", "0.001", "--json"
    )
    assert code == 0
    assert err.startswith("warning: the entropic plan of 'b.weight' has not converged")
    assert len(err.splitlines()) == 1
    assert json.loads(out)["matches"][0]["is_optimal"] is False


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("absent.safetensors", "HALF"), "there is no file absent.safetensors"),
        (("WIDE", "FOLDER"), "there is no file FOLDER"),
        (("WIDE", "FILE"), "FILE is not a safetensors file"),
        (("MORE", "HALF"), "MORE does not fit FILE:Net: the model has no tensor `more`"),
        (("WIDE", "LESS"), "LESS does not fit FILE:Net: tensor `b.bias` is missing"),
        (("CLASSES", "HALF"), "does not fit FILE:Net: tensor `c.weight` has an axis of 4 entries"),
        (("WIDE", "AXES"), "does not fit FILE:Net: tensor `b.bias` has shape (7, 1)"),
        (("WIDE", "INTEGERS"), "tensor `b.bias` is torch.int64, expected torch.float32"),
        (("KERNEL", "KERNEL", "--model", "digits-cnn"), "of which axis 3 is always 3"),
        (("NAN", "HALF"), "the weights of 'b.weight' hold NaN"),
        (("WIDE", "HALF", "--plan", "balancd"), "unknown --plan `balancd`"),
        (("WIDE", "HALF", "--residual", "sum"), "unknown --residual `sum`"),
        (("WIDE", "HALF", "--input-map", "max"), "unknown --input-map `max`"),
        (("WIDE", "HALF", "--entropy", "-1"), "entropy=-1.0"),
        (("WIDE", "HALF", "--model", "vgg12"), "did you mean `vgg11`?"),
        (("absent.safetensors", "HALF", "--plot", "plans.gif"), "cannot draw into `plans.gif`"),
        (("WIDE", "HALF", "--plot", "FOLDER"), "cannot write FOLDER"),
        (("WIDE", "HALF", "--output", "FOLDER/no/a.safetensors"), "cannot write FOLDER/no/"),
    ],
)
def test_what_cannot_be_aligned_is_one_message_on_stderr(
    subflot: Command, files: dict[str, str], args: tuple[str, ...], said: str
) -> None:
    def filled(text: str) -> str:
        for name, path in files.items():
            text = text.replace(name, path)
        return text

    model = () if "--model" in args else ("--model", "FILE:Net", "--input", "6")
    code, out, err = subflot("align", *(filled(arg) for arg in (*args, *model)))
    assert code == 2
    assert out == ""
    assert filled(said) in err
    message, *hint = err.splitlines()
    assert message.startswith("error: ")
    assert [line.partition(" ")[0] for line in hint] in ([], ["hint:"])


def test_weights_are_replaced_at_once_or_not_at_all(
    subflot: Command, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "out" / "aligned.safetensors"
    output.parent.mkdir()
    output.write_text("as before")

    def interrupted(weights: dict[str, Tensor], path: Path, **_: object) -> None:
        path.write_text("half of it")
        raise OSError("no space left")

    monkeypatch.setattr("subflot.weights.save_file", interrupted)
    model = ("--model", f"{files['FILE']}:Net", "--input", "6")
    code, out, err = subflot("align", files["WIDE"], files["HALF"], *model, "--output", str(output))
    assert (code, out) == (2, "")
    assert err == f"error: cannot write {output}: no space left\n"
    assert [path.name for path in output.parent.iterdir()] == ["aligned.safetensors"]
    assert output.read_text() == "as before"


def test_weights_may_be_written_over_those_that_were_read(
    subflot: Command, files: dict[str, str]
) -> None:
    half = load_file(files["HALF"])
    model = ("--model", f"{files['FILE']}:Net", "--input", "6", "--plan", "partial")
    code, _, _ = subflot("align", files["WIDE"], files["HALF"], *model, "--output", files["WIDE"])
    assert code == 0
    assert_close(load_file(files["WIDE"]), half, rtol=0, atol=0)
