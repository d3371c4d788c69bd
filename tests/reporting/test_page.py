"""The report page shows what the records say, whatever they hold, and stays one small file."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Command
from hypothesis import given
from hypothesis import strategies as st
from made_runs import report, write_run
from PIL import Image, PngImagePlugin

from subflot.errors import SubflotError
from subflot.experiments.maps import MOST_CELLS, MOST_CLIENTS, MOST_LAYERS
from subflot.reporting.digest import (
    MOST_POINTS,
    MOST_STEPS,
    clients,
    digest,
    experiments,
    ignores_budgets,
    labels,
    moved,
    series,
)
from subflot.reporting.notices import notices
from subflot.reporting.page import PICTURES_BUDGET, render
from subflot.results import CHANNELS, PLANS, RunRecord, find_runs


def content(page: str) -> dict[str, Any]:
    """What a page holds."""
    found = re.search(r'<script type="application/json" id="records">(.*?)</script>', page, re.S)
    assert found
    held: dict[str, Any] = json.loads(found[1])
    return held


# ----- what is read off the records


def test_labels_tell_runs_apart_by_what_differs_and_by_nothing_else() -> None:
    configs = [
        {"name": "a", "algorithm": "fedavg", "seed": 0, "epochs": 5},
        {"name": "a", "algorithm": "subflot", "seed": 0, "epochs": 5, "global_share": 0.5},
        {"name": "a", "algorithm": "subflot", "seed": 0, "epochs": 5, "global_share": 0.2},
        {"name": "a", "algorithm": "subflot", "seed": 1, "epochs": 5, "global_share": 0.2},
    ]
    assert labels(configs, ["1", "2", "3", "4"]) == [
        ("fedavg", "fedavg"),
        ("subflot, global_share=0.5", "subflot, global_share=0.5"),
        ("subflot, global_share=0.2", "subflot, global_share=0.2, seed 0"),
        ("subflot, global_share=0.2", "subflot, global_share=0.2, seed 1"),
    ]


def test_runs_of_equal_settings_are_told_apart_by_their_folders_and_names() -> None:
    one = {"name": "a", "algorithm": "local", "seed": 0}
    assert labels([one, one], ["x", "y"]) == [("local", "local (x)"), ("local", "local (y)")]
    other = {**one, "name": "b"}
    assert labels([one, other], ["x", "y"]) == [("a: local", "a: local"), ("b: local", "b: local")]


def test_runs_of_one_name_are_parted_by_their_data_and_trials_stand_apart() -> None:
    configs: list[dict[str, Any]] = [
        {"name": "runs", "data": "har", "algorithm": "local", "seed": 0},
        {"name": "runs", "data": "pacs", "algorithm": "local", "seed": 0},
        {"name": "runs", "data": "har", "algorithm": "local", "measure_on": "validation"},
        {"name": "digits", "data": "digits", "algorithm": "local"},
    ]
    kinds = ["runs, har", "runs, pacs", "runs, har, trials", "digits"]
    assert experiments(configs) == kinds
    # Data and examples that are the same in an experiment tell nothing apart in it.
    assert [name for name, _ in labels(configs, list("abcd"))] == [f"{k}: local" for k in kinds]


def test_curves_add_up_bytes_and_seconds_over_rounds_that_were_not_measured(tmp_path: Path) -> None:
    rounds = [[report(1, None)], [report(0, 10), report(1, 20)], [report(1, None)]]
    found = series(write_run(tmp_path / "run", rounds))
    assert found["round"] == [2]
    assert found["trained"] == [0.75]
    assert found["worst"] == [0.5]
    assert found["extracted"] == [0.375]
    assert found["global"] == [0.42]
    assert found["bytes"] == [3 * 4000 + 401 + 400 + 401]
    assert found["seconds"] == [3.0 + 4.0]
    assert found["delta_p"] == [2.0]


def test_what_moved_is_a_row_per_layer_of_the_rounds_that_tell_it(tmp_path: Path) -> None:
    silent = replace(report(0, 1), metrics={})
    rounds = [[silent], [report(1, None), report(3, 1)], [report(2, 1)]]
    found = moved(write_run(tmp_path / "run", rounds))
    assert found == {"layers": ["conv.weight"], "rounds": [2, 3], "shares": [[0.25, 0.25]]}
    assert moved(write_run(tmp_path / "other", [[silent]]))["layers"] == []


def test_the_rounds_that_tell_what_moved_are_thinned(tmp_path: Path) -> None:
    rounds = [[report(1, None)] for _ in range(MOST_STEPS + 5)]
    found = moved(write_run(tmp_path / "run", rounds))
    assert len(found["rounds"]) == len(found["shares"][0]) == MOST_STEPS
    assert (found["rounds"][0], found["rounds"][-1]) == (1, len(rounds))


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path: Path) -> None:
    rounds = [[report(0, i % 20)] for i in range(2 * MOST_POINTS + 7)]
    record = write_run(tmp_path / "run", rounds)
    found = series(record)
    drawn = found["round"]
    assert len(drawn) == len(set(drawn)) == MOST_POINTS
    assert (drawn[0], drawn[-1]) == (1, len(rounds))
    every = {line["round"]: line["trained"]["mean"] for line in record.rounds}
    assert found["trained"] == [every[number] for number in drawn if number is not None]


@given(
    rounds=st.lists(
        st.lists(st.integers(0, 5), min_size=1, unique=True).flatmap(
            lambda who: st.lists(st.integers(0, 20), min_size=len(who), max_size=len(who)).map(
                lambda correct: list(zip(who, correct, strict=True))
            )
        ),
        min_size=1,
        max_size=5,
    )
)
def test_clients_agree_with_the_summary_whoever_takes_part(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[int, int]]]
) -> None:
    reports = [[report(client, correct) for client, correct in line] for line in rounds]
    record = write_run(tmp_path_factory.mktemp("runs") / "run", reports)
    found, summary = clients(record), record.summary()
    assert found["client"] == sorted({client for line in rounds for client, _ in line})
    assert np.mean(found["trained"]) == pytest.approx(summary["trained"])
    assert min(found["trained"]) == summary["worst"]
    assert sum(found["bytes"]) == summary["bytes_down"] + summary["bytes_up"]
    assert sum(found["rounds"]) == sum(map(len, rounds))


def test_a_group_is_the_mean_over_its_finished_seeds(tmp_path: Path) -> None:
    for seed, correct in enumerate((10, 14, 0)):
        write_run(
            tmp_path / f"{seed}",
            [[report(0, correct)]],
            is_finished=correct > 0,
            seed=seed,
            algorithm="fedavg",
        )
    found = digest(list(find_runs(tmp_path)), tmp_path)
    assert [run["label"] for run in found["runs"]] == [f"fedavg, seed {seed}" for seed in range(3)]
    (group,) = found["groups"]
    assert (group["num_runs"], group["num_finished"]) == (3, 2)
    assert group["trained"] == pytest.approx(0.6)
    assert group["trained_spread"] == pytest.approx(0.1 * 2**0.5)  # Of 0.5 and 0.7, one less.


def test_settings_are_held_once_where_runs_agree(tmp_path: Path) -> None:
    for name in ("fedavg", "heterofl"):
        write_run(tmp_path / name, [[report(0, 1)]], algorithm=name, epochs=3)
    found = digest(list(find_runs(tmp_path)), tmp_path)
    assert found["common"]["epochs"] == 3
    assert "algorithm" not in found["common"]
    assert [run["settings"]["algorithm"] for run in found["runs"]] == ["fedavg", "heterofl"]
    for record, run in zip(find_runs(tmp_path), found["runs"], strict=True):
        whole = {**found["common"], **{k: v for k, v in run["settings"].items() if v is not None}}
        assert whole == record.config


# ----- warnings


def warned(root: Path) -> list[tuple[str, str]]:
    records = list(find_runs(root))
    return [(one["about"], one["text"]) for one in notices(records, digest(records, root))]


def test_runs_without_faults_raise_no_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[report(0, 10)]], algorithm="fedavg")
    write_run(tmp_path / "b", [[report(0, 10)]], algorithm="local")
    assert warned(tmp_path) == []


def test_rejected_uploads_are_told_with_their_reasons(tmp_path: Path) -> None:
    bad = [[report(0, 1), report(1, 2, fault="`w` is not finite")]] * 5
    write_run(tmp_path / "a", bad, algorithm="fedavg")
    ((about, text),) = warned(tmp_path)
    assert about == "fedavg"
    assert text.startswith("5 rejected uploads: round 1, client 1: `w` is not finite; round 2")
    assert text.endswith("; and 2 more")


def test_unfinished_and_diverged_runs_are_told(tmp_path: Path) -> None:
    record = write_run(tmp_path / "a", [[report(0, 1)]] * 3, is_finished=False, algorithm="local")
    lines = [
        json.loads(line) for line in (record.folder / "metrics.jsonl").read_text().split("\n")[:2]
    ]
    lines[1]["trained"]["loss"] = None
    (record.folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert [text for _, text in warned(tmp_path)] == [
        "unfinished: 2 of 3 rounds",
        "the loss is not finite from round 2 on: training diverged",
    ]


def test_missing_seeds_and_mixed_environments_are_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[report(0, 1)]], algorithm="fedavg", seed=0)
    write_run(tmp_path / "b", [[report(0, 1)]], algorithm="fedavg", seed=1)
    other = {"python": "3.12.0", "cores": 2}
    write_run(tmp_path / "c", [[report(0, 1)]], algorithm="local", seed=0, environment=other)
    assert warned(tmp_path) == [
        ("local", "missing: seed 1, which others have"),
        ("all runs", "made in 2 environments, which differ in python"),
    ]


# ----- the file


class Elements(HTMLParser):
    """Collects what a browser would load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[dict[str, str | None]] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "script":
            self.scripts.append(found)
        self.loaded += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")]


HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


def test_names_in_records_stay_text(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[report(0, 1, fault=HOSTILE)]], name=HOSTILE, algorithm="fedavg")
    page = render(list(find_runs(tmp_path)), tmp_path)
    elements = Elements()
    elements.feed(page)
    assert elements.scripts == [
        {"type": "application/json", "id": "records"},
        {"type": "module"},
    ]
    assert elements.loaded == ["data:,"]
    assert content(page)["runs"][0]["experiment"] == HOSTILE
    assert HOSTILE in content(page)["notices"][0]["text"]


def test_the_title_is_escaped(tmp_path: Path) -> None:
    root = tmp_path / "<b>&"
    write_run(root / "a", [[report(0, 1)]], algorithm="fedavg")
    page = render(list(find_runs(root)), root)
    assert "<title>subflot: &lt;b&gt;&amp;</title>" in page


def test_the_policy_allows_the_pages_own_script_and_style_alone(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [[report(0, 1)]], algorithm="fedavg")
    page = render(list(find_runs(tmp_path)), tmp_path)
    script = page.partition('<script type="module">')[2].partition("</script>")[0]
    style = page.partition("<style>")[2].partition("</style>")[0]
    for directive, text in (("script-src", script), ("style-src", style)):
        digest_ = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest_}'" in page
    assert "default-src 'none'" in page
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", page) == []


def test_a_damaged_run_is_left_out_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "good", [[report(0, 1)]], algorithm="fedavg")
    bad = write_run(tmp_path / "torn", [[report(0, 1)]], algorithm="local")
    (bad.folder / "metrics.jsonl").write_text('{"round": 1, "tr')
    held = content(render(list(find_runs(tmp_path)), tmp_path))
    assert [run["label"] for run in held["runs"]] == ["fedavg"]
    assert held["notices"][0]["about"] == ["torn"]
    assert "metrics.jsonl is damaged" in held["notices"][0]["text"]


LINE = {"round": 1, "trained": None, "extracted": None, "global": None, "num_rejected": 0}
DAMAGES: dict[str, tuple[str, bytes]] = {
    "no columns": ("metrics.jsonl", json.dumps({**LINE, "bytes_down": 1, "bytes_up": 1}).encode()),
    "no round": ("metrics.jsonl", b"{}"),
    "a number": ("metrics.jsonl", b"3"),
    "null": ("metrics.jsonl", b"null"),
    "words for numbers": (
        "metrics.jsonl",
        json.dumps({**LINE, "bytes_down": "x", "bytes_up": 1, "clients": {}}).encode(),
    ),
    "nesting": ("metrics.jsonl", b"[" * 10**5),
    "bytes": ("metrics.jsonl", b"\xff\xfe"),
    "timing": ("timing.jsonl", b'{"round": 1}'),
    "environment": ("environment.json", b"[1, 2]"),
    "reason": ("failed.txt", b"\xff"),
    "settings": ("config.toml", b"\xff = 1"),
    "channel map": ("channels.json", b'{"ignores_budgets": true, "model": "net"}'),
    "plans": ("plans.json", b'[{"client": 3}]'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_record_that_makes_no_sense_ends_the_report(damage: str, tmp_path: Path) -> None:
    write_run(tmp_path / "good", [[report(0, 1)]], algorithm="fedavg")
    bad = write_run(tmp_path / "torn", [[report(0, 1)]], algorithm="local")
    file, data = DAMAGES[damage]
    (bad.folder / file).write_bytes(data)
    records = list(find_runs(tmp_path))
    held = content(render(records, tmp_path))
    assert [run["label"] for run in held["runs"]] == ["fedavg"]
    notices = [one["text"] for one in held["notices"] if one["about"] == ["torn"]]
    assert len(notices) == 1
    assert re.match(r"left out: .*damaged", notices[0])


def test_what_is_true_of_many_runs_is_said_once(tmp_path: Path) -> None:
    for name in ("fedavg", "local"):
        write_run(tmp_path / name, [[report(0, 1)]], is_finished=False, algorithm=name)
    held = content(render(list(find_runs(tmp_path)), tmp_path))
    assert held["notices"] == [{"about": ["fedavg", "local"], "text": "unfinished: 1 of 1 rounds"}]


def test_a_run_that_has_not_begun_is_shown_without_numbers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [], is_finished=False, algorithm="fedavg")
    (run,) = content(render(list(find_runs(tmp_path)), tmp_path))["runs"]
    assert run["summary"] == {"round": 0}
    assert run["series"] == {}
    assert run["clients"] == {}


def test_a_folder_without_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SubflotError, match=r"there is no run below .*\n  hint: `subflot run"):
        render([], tmp_path)


def full_plans() -> list[dict[str, Any]]:
    """As much as a run notes of its plans."""
    name, side = "layer4.1.conv2.weight", MOST_CELLS
    sizes = {"shape": [512, 384], "grid": [side, side]}
    one = {"layer": name, **sizes, "cells": "_" * side**2, "moved": 0.5}
    about = {"pruning_rate": 0.25, "round": 200, "num_layers": 20, "layers": [one] * MOST_LAYERS}
    return [{"client": client, **about} for client in range(MOST_CLIENTS)]


def test_fifty_long_runs_with_plans_stay_below_five_megabytes(tmp_path: Path) -> None:
    rounds = [[report(client, (7 * i + client) % 21) for client in range(20)] for i in range(200)]
    first = write_run(tmp_path / "0", rounds, algorithm="subflot")
    metrics = (first.folder / "metrics.jsonl").read_text()
    for number in range(1, 50):
        record = write_run(tmp_path / f"{number}", [], algorithm="subflot", seed=number)
        (record.folder / "metrics.jsonl").write_text(metrics)
    records = list(find_runs(tmp_path))
    for record in records:
        (record.folder / PLANS).write_text(json.dumps(full_plans()))
    page = render(records, tmp_path)
    assert len(content(page)["runs"]) == 50
    assert len(page.encode()) < 5_000_000


# ----- what runs noted of their models


def test_runs_of_one_model_share_its_channel_map(tmp_path: Path) -> None:
    spaces = [{"name": "conv", "channels": 4, "kept": [4], "num_tensors": 3, "frozen": ""}]
    noted = {"model": "net", "data": "digits", "rates": [0.0], "spaces": spaces, "tensors": []}
    for name in ("fedavg", "heterofl"):
        channels = {"ignores_budgets": name == "fedavg", **noted}
        plans = full_plans() if name == "heterofl" else []
        write_run(tmp_path / name, [[report(0, 1)]], algorithm=name, channels=channels, plans=plans)
    write_run(tmp_path / "old", [[report(0, 1)]], algorithm="local")
    records = list(find_runs(tmp_path))
    held = content(render(records, tmp_path))
    assert held["models"] == [noted]
    assert [run["model"] for run in held["runs"]] == [0, 0, None]
    assert [run["ignores_budgets"] for run in held["runs"]] == [True, False, False]
    assert [run["plans"] for run in held["runs"]] == [[], full_plans(), []]
    bare = content(render(records, tmp_path, with_models=False))
    assert (bare["models"], [run["plans"] for run in bare["runs"]]) == ([], [[], [], []])
    (tmp_path / "heterofl" / CHANNELS).write_text("{")
    torn = content(render(list(find_runs(tmp_path)), tmp_path))
    assert [run["algorithm"] for run in torn["runs"]] == ["fedavg", "local"]
    assert "channels.json is damaged" in torn["notices"][0]["text"]


def test_a_record_without_notes_shows_whether_all_clients_train_the_full_model(
    tmp_path: Path,
) -> None:
    def shows(name: str, clients: tuple[int, ...], sizes: tuple[float, ...]) -> bool:
        rows = [
            replace(report(c, 1), parameters=size) for c, size in zip(clients, sizes, strict=True)
        ]
        return ignores_budgets(write_run(tmp_path / name, [rows]))

    # Clients 0 to 3 prune nothing, a quarter, a half and three quarters.
    assert shows("full", (0, 1, 3), (1000.0, 1000.0, 1000.0))
    assert not shows("cut", (0, 1, 3), (1000.0, 750.0, 250.0))
    assert not shows("alike", (1, 2), (750.0, 750.0))  # As early exits may be.


# ----- pictures


def test_pictures_carry_the_caption_that_their_file_holds(tmp_path: Path) -> None:
    record = write_run(tmp_path / "run", [[report(0, 1)]], algorithm="fedavg")
    described = PngImagePlugin.PngInfo()
    described.add_text("Description", "Maps of <PACS>")
    Image.new("L", (4, 4)).save(tmp_path / "a.png", pnginfo=described)
    Image.new("L", (4, 4)).save(tmp_path / "grad-cam.png")
    (tmp_path / "torn.png").write_bytes(b"no picture")
    paths = sorted(tmp_path.glob("*.png"))
    held = content(render([record], tmp_path, pictures=paths))
    assert [one["caption"] for one in held["pictures"]] == ["Maps of <PACS>", "grad cam"]
    embedded = held["pictures"][0]["source"].removeprefix("data:image/png;base64,")
    assert base64.b64decode(embedded) == (tmp_path / "a.png").read_bytes()
    assert [notice["about"] for notice in held["notices"]] == [["torn.png"]]


def test_pictures_beyond_the_budget_are_named(tmp_path: Path) -> None:
    record = write_run(tmp_path / "run", [[report(0, 1)]], algorithm="fedavg")
    noise = np.random.default_rng(0).integers(0, 256, (1000, PICTURES_BUDGET // 1500), np.uint8)
    for name in ("a", "b"):
        Image.fromarray(noise).save(tmp_path / f"{name}.png")
    held = content(render([record], tmp_path, pictures=sorted(tmp_path.glob("*.png"))))
    assert [one["caption"] for one in held["pictures"]] == ["a"]
    assert [notice["about"] for notice in held["notices"]] == [["b.png"]]


# ----- the command


def test_the_command_writes_the_page_beside_the_runs(tmp_path: Path, subflot: Command) -> None:
    write_run(tmp_path / "a", [[report(0, 1)]], algorithm="fedavg")
    (tmp_path / "figures").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "figures" / "maps.png")
    code, _, err = subflot("report", str(tmp_path), "--no-models")
    page = (tmp_path / "report.html").read_text()
    assert code == 0
    assert re.fullmatch(r"wrote .*report\.html: 1 run, 0\.\d\d MB\n", err)
    assert [one["caption"] for one in content(page)["pictures"]] == ["maps"]
    subflot("report", str(tmp_path), "--no-models")
    assert (tmp_path / "report.html").read_text() == page  # The same records, the same page.


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "error: there is no folder nowhere\nhint: `subflot run` makes one"),
        ([".", "--output", "page.html"], "error: there is no run below .\nhint: `subflot run"),
    ],
)
def test_the_command_says_what_is_wrong(
    args: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subflot: Command,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = subflot("report", *args)
    assert code == 2
    assert err.startswith(message)
    assert not list(tmp_path.iterdir())


def test_records_are_found_also_in_the_folder_of_one_run(tmp_path: Path) -> None:
    record = write_run(tmp_path / "a", [[report(0, 1)]], algorithm="fedavg")
    (run,) = content(render([RunRecord(record.folder)], record.folder))["runs"]
    assert run["path"] == "."
