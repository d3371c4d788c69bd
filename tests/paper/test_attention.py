"""Maps are Grad-CAM's, and are compared for the models that they are said to be of."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import TinyNet, tiny_task
from torch import Tensor, nn
from torch.testing import assert_close

from subflot.algorithms.base import Client, State, Turn
from subflot.algorithms.subflot import SubFLOT
from subflot.channels import take
from subflot.channels.keep import prefix
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.experiments import RunConfig, run
from subflot.paper.attention import (
    HISTORY,
    KINDS,
    Attention,
    attend,
    attention,
    describe,
    grad_cam,
    last_layer,
    pictures,
    similarity,
    submodels,
)
from subflot.simulation.store import forget
from subflot.weights import Weights

pytest.importorskip("captum", reason="pip install 'subflot[explain]'")

CONFIG = RunConfig.of(
    data="digits", num_clients=3, max_examples=90, rounds=2, epochs=1, learning_rate=0.1
)


def by_hand(model: TinyNet, image: Tensor, label: int) -> Tensor:
    """Grad-CAM of one image by its definition, on the only convolution."""
    maps = model.conv(image)
    rest = torch.relu(model.norm(maps)).flatten(1)
    score = model.head(torch.relu(model.hidden(rest)))[0, label]
    (gradient,) = torch.autograd.grad(score, maps)
    weighted = sum(gradient[0, k].mean() * maps[0, k] for k in range(maps.shape[1]))
    found = torch.relu(torch.as_tensor(weighted)).detach()
    return found / found.max() if found.max() > 0 else found


def test_a_map_is_what_the_definition_gives() -> None:
    torch.manual_seed(0)
    model = TinyNet().eval()
    examples = Examples(torch.randn(5, 1, 8, 8), torch.tensor([0, 3, 5, 9, 1]))
    found = grad_cam(model, examples)
    for number in range(5):
        wanted = by_hand(model, examples.inputs[[number]], int(examples.labels[number]))
        assert_close(found[number], wanted, rtol=1e-4, atol=1e-6)
    assert float(found.min()) == 0.0
    assert float(found.max()) == 1.0


def test_the_last_layer_with_maps_large_enough_is_explained() -> None:
    layers = [nn.Conv2d(1, 2, 3, stride=2, padding=1) for _ in range(1)]
    deep = nn.Sequential(*layers, nn.Conv2d(2, 2, 3, stride=2, padding=1), nn.Flatten())
    assert last_layer(deep, torch.zeros(1, 1, 16, 16)) is deep[1]  # 8, then 4 pixels a side.
    assert last_layer(deep, torch.zeros(1, 1, 8, 8)) is deep[0]  # 4, then 2.
    assert last_layer(deep, torch.zeros(1, 1, 4, 4)) is deep[1]  # None is large enough.
    with pytest.raises(SubflotError, match="Linear has no convolution to explain"):
        last_layer(nn.Linear(3, 2), torch.zeros(1, 3))


def test_similarity_is_a_cosine_and_zeros_are_like_none() -> None:
    maps = torch.tensor([[[1.0, 2.0]], [[1.0, 0.0]], [[0.0, 0.0]]])
    others = torch.tensor([[[2.0, 4.0]], [[0.0, 3.0]], [[1.0, 1.0]]])
    assert_close(similarity(maps, others), torch.tensor([1.0, 0.0, 0.0]))


def test_submodels_are_cut_as_they_are_named() -> None:
    task, client, turn = tiny_task(), Client(0, 0.5), Turn(3, 3, 0)
    own: Weights = {n: t + 0.1 for n, t in task.narrow(task.initial, 0.5).items()}
    state = State(task.initial, SubFLOT().start(task, [client], turn).extras, {0: own})
    found = submodels(task, SubFLOT(), state, client, turn)
    assert list(found) == list(KINDS)
    assert found[HISTORY] is own
    whole = take(task.initial, task.channels, prefix(task.channels, 0.5))
    assert_close(dict(found["position"]), dict(whole))
    for name, tensor in found["otp"].items():
        if tensor.is_floating_point():  # Half aligned, half history.
            assert_close(tensor, (found["aligned"][name] + own[name]) / 2)
    without = submodels(task, replace(SubFLOT(), global_share=0.0), state, client, turn)
    assert_close(dict(without["otp"]), dict(own))


def test_a_finished_run_is_summed_up_over_all_its_test_images(tmp_path: Path) -> None:
    run(CONFIG, tmp_path / "run", workers=1)
    found = list(attend(CONFIG, tmp_path / "run"))
    content = describe(found)
    assert content["num_images"] == sum(len(one.examples) for one in found)
    assert set(content["similarity"]) == set(KINDS) - {HISTORY}
    for row, one in zip(content["clients"], found, strict=True):
        assert (row["run"], row["client"]) == (CONFIG.run_id, one.client)
    rows = zip(content["clients"], found, strict=True)
    total = sum(row["random"] * len(one.examples) for row, one in rows)
    assert content["similarity"]["random"]["mean"] == pytest.approx(total / content["num_images"])
    shown = pictures(found, count=2)
    assert shown["images"].shape == (2, 8, 8, 1)
    assert (float(shown["images"].min()), float(shown["images"].max())) == (0.0, 1.0)
    sees = [bool(one.any()) for one in found[0].maps[HISTORY]]
    assert content["num_empty"] == sum(
        not one.any() for client in found for one in client.maps[HISTORY]
    )
    assert_close(torch.from_numpy(shown["otp"][0]), found[0].maps["otp"][sees.index(True)])


def test_pictures_are_of_images_in_which_the_historical_model_sees_something() -> None:
    examples = Examples(torch.rand(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64))
    maps = torch.zeros(3, 2, 2)
    blank = Attention("run", 0, examples, dict.fromkeys(KINDS, maps))
    seeing = Attention("run", 1, examples, dict.fromkeys(KINDS, maps.clone()))
    seeing.maps[HISTORY][2, 1, 0] = 0.5
    shown = pictures([blank, seeing], count=2)
    assert not shown[HISTORY][0].any()
    assert shown[HISTORY][1].tolist() == [[0, 0], [0.5, 0]]
    assert describe([blank, seeing])["num_empty"] == 5


def test_a_run_whose_models_are_gone_is_run_again(tmp_path: Path) -> None:
    run(CONFIG, tmp_path / "run", workers=1)
    before = attention([tmp_path / "run"], tmp_path / "maps.npz", workers=1)
    forget(tmp_path / "run")
    with pytest.raises(SubflotError, match=r"the models of .* are gone"):
        list(attend(CONFIG, tmp_path / "run"))
    assert attention([tmp_path / "run"], tmp_path / "maps.npz", workers=1) == before


def test_a_method_without_history_is_refused(tmp_path: Path) -> None:
    config = RunConfig.of(algorithm="heterofl")
    with pytest.raises(SubflotError, match="heterofl keeps no history"):
        list(attend(config, tmp_path))
