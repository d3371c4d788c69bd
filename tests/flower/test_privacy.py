"""A privacy setting holds, or it is refused: by the settings, by the client, by the server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federations import final_state, metrics_of, run_rounds
from flower_runs import OddGrid, app_of, run_on_grid
from flwr.app import Array, Context, Message, RecordDict

from subflot.algorithms import make
from subflot.errors import SubflotError
from subflot.experiments import flower as apps
from subflot.experiments.config import RunConfig
from subflot.flower.settings import FlowerSettings


def uploads(settings: FlowerSettings, tmp_path: Path) -> list[dict[str, torch.Tensor]]:
    """How far each client moves in the first round, as the server sees it."""
    method = make("subflot")  # It keeps what clients upload.
    run_on_grid(method, tmp_path, rounds=1, settings=settings)
    start = run_rounds(make("subflot"), tmp_path / "own", rounds=1)
    moved = []
    for client in final_state(tmp_path).history:
        mine, free = (final_state(f).history[client] for f in (tmp_path, start))
        moved.append({name: mine[name] - free[name] for name in mine})
    return moved


def test_clipping_holds_back_the_change_and_keeps_whole_numbers(tmp_path: Path) -> None:
    far = uploads(FlowerSettings(privacy="clipping", clipping_norm=1e6), tmp_path / "far")
    assert all(tensor.abs().max() < 1e-6 for one in far for tensor in one.values())
    near = uploads(FlowerSettings(privacy="clipping", clipping_norm=1e-3), tmp_path / "near")
    assert all(max(tensor.abs().max() for tensor in one.values()) > 1e-3 for one in near)
    assert all(one["norm.num_batches_tracked"] == 0 for one in near)


def test_local_noise_is_as_large_as_its_settings_say(tmp_path: Path) -> None:
    settings = FlowerSettings(
        privacy="local-dp", clipping_norm=0.05, sensitivity=0.1, epsilon=2.0, delta=1e-5
    )
    np.random.seed(0)  # noqa: NPY002 - the stream that Flower draws from
    added = [t for one in uploads(settings, tmp_path) for t in one.values()]
    noise = torch.cat([tensor.flatten() for tensor in added if tensor.is_floating_point()])
    wanted = 0.1 * np.sqrt(2 * np.log(1.25 / 1e-5)) / 2.0
    assert len(noise) > 500
    assert abs(float(noise.std()) / wanted - 1) < 0.1  # Four standard errors.


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"sensitivity": 0.0}, "sensitivity is 0"),
        ({"sensitivity": -1.0}, "sensitivity is -1"),
        ({"sensitivity": 1.9}, "clipped to 1 can lie 2 apart\n.*sensitivity=2"),
        ({"clipping_norm": 3.0}, "clipped to 3 can lie 6 apart"),
        ({"delta": 1.0}, "delta is 1"),
        ({"epsilon": 10.0}, "epsilon is 10, where Flower's noise gives a delta of 2.3e-05"),
        ({"epsilon": 1e6}, "epsilon is 1e.06"),
    ],
)
def test_noise_that_does_not_give_what_it_promises_is_refused(
    table: dict[str, Any], why: str
) -> None:
    with pytest.raises(SubflotError, match=why):
        FlowerSettings.of({"privacy": "local-dp", **table})


@pytest.mark.parametrize("privacy", ["clipping", "local-dp"])
def test_what_is_further_off_than_clipping_allows_is_not_merged(
    privacy: str, tmp_path: Path
) -> None:
    """A client without the mod is left out; those that have it are not."""
    settings = FlowerSettings(privacy=privacy, clipping_norm=0.01, sensitivity=0.02)
    method, before = make("fedavg"), dict[str, Any]()

    def change(part: int, round: int, reply: Message) -> Message:
        if (part, round) == (2, 2):
            arrays = reply.content.array_records["arrays"]
            before.update({name: array.numpy() for name, array in arrays.items()})
            for name in arrays:
                arrays[name] = Array(before[name] + np.float32(1))
        return reply

    folder = tmp_path / "flower"
    grid = OddGrid(app_of(method, folder, settings=settings), change=change)
    run_on_grid(method, folder, grid=grid, settings=settings)
    lines = metrics_of(folder)
    assert [line["num_rejected"] for line in lines] == [0, 1, 0]
    fault = lines[1]["clients"]["fault"]
    assert [bool(one) for one in fault] == [False, False, True, False]
    assert "long, and clipping allows 0.01" in fault[2] or privacy == "local-dp"
    assert "its change is" in fault[2]


def test_what_local_noise_does_not_cover_is_not_sent(tmp_path: Path) -> None:
    settings = FlowerSettings(privacy="local-dp")
    with pytest.raises(SubflotError, match="beside its weights, to which local-dp adds no noise"):
        run_on_grid(make("heterofl", masked_loss=True), tmp_path, rounds=1, settings=settings)


def test_the_record_says_what_was_promised(tmp_path: Path) -> None:
    settings = FlowerSettings(privacy="local-dp")
    apps._claim(tmp_path, settings)
    text = (tmp_path / "flower.toml").read_text()
    assert "epsilon = 1.0\n" in text
    apps._claim(tmp_path, settings)  # It goes on.
    # A run of a time when the noise was too small to hold what it promised.
    (tmp_path / "flower.toml").write_text('privacy = "local-dp"\n')
    with pytest.raises(SubflotError, match="sensitivity is 1, and two changes"):
        apps._claim(tmp_path, settings)


def test_privacy_is_not_changed_for_the_server_alone(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("rounds = 3\n")

    def read(changes: str) -> tuple[RunConfig, FlowerSettings]:
        context = Context(1, 1, {}, RecordDict(), {"set": changes})
        return apps._read(tmp_path, context)

    assert read("flower.min_nodes=3")[1].min_nodes == 3
    with pytest.raises(SubflotError, match=r"privacy of .flower. would .* the server alone\n.*run"):
        read("flower.privacy=local-dp")
