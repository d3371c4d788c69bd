"""A client's model leaves a run as one file, and comes back as a module that says the same."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command
from safetensors.torch import save_file

import subflot
from subflot.algorithms import ALGORITHMS
from subflot.algorithms.partly import PartlyShared
from subflot.data import load as load_data
from subflot.errors import SubflotError
from subflot.experiments import RunConfig, run
from subflot.experiments.export import describe, export, load, predict, read_examples
from subflot.experiments.runner import assemble
from subflot.results import RunRecord

RATES = (0.0, 0.5, 0.75)


def finished(folder: Path, **settings: Any) -> RunRecord:
    usual = {"num_clients": 3, "client_rates": RATES, "partition": "iid", "max_examples": 240}
    trained = {"rounds": 2, "epochs": 1, "batch_size": 16, "learning_rate": 0.1}
    config = RunConfig.of(**{**usual, **trained, **settings})
    return run(config, folder / "run", workers=1)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    return finished(tmp_path_factory.mktemp("export"), algorithm="subflot-partial")


def by_hand(path: Path, config: RunConfig, client: int) -> float:
    """The accuracy of an exported file on a client's test examples, from raw inputs on."""
    _, data, _ = assemble(config)
    indices = data.shares[client].test
    inputs, labels = data.dataset.inputs[indices], data.dataset.labels[indices]
    found = predict(load(path), describe(path), np.asarray(inputs)).argmax(1).numpy()
    return float((found == labels).mean())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_file_is_as_good_as_the_record_says_the_client_was(
    algorithm: str, tmp_path: Path
) -> None:
    record = finished(tmp_path, algorithm=algorithm)
    client, path = 1, tmp_path / "client.safetensors"
    described = export(record.folder, client, path)
    assert described.accuracy == by_hand(path, RunConfig.of(**record.config), client)
    method = ALGORITHMS[algorithm]
    stored_whole = method.keeps_history or not method.has_global
    if stored_whole and not issubclass(method, PartlyShared):
        assert described.accuracy == record.client_accuracies()[client]


def test_a_file_rebuilds_a_module_of_the_clients_own_size(
    record: RunRecord, tmp_path: Path
) -> None:
    sizes = []
    for client, rate in enumerate(RATES):
        described = export(record.folder, client, tmp_path / "one.safetensors")
        assert (described.client, described.pruning_rate, described.round) == (client, rate, 2)
        module = subflot.load(tmp_path / "one.safetensors")
        assert not module.training
        sizes.append(sum(p.numel() for p in module.parameters()))
    counted = record.rounds[-1]["clients"]["parameters"]
    assert sizes == counted


def test_the_global_model_is_exported_whole(record: RunRecord, tmp_path: Path) -> None:
    path = tmp_path / "global.safetensors"
    described = export(record.folder, None, path)
    assert (described.client, described.pruning_rate, described.accuracy) == (None, 0.0, None)
    probabilities = predict(load(path), described, load_data("digits").inputs[:300])
    assert probabilities.shape == (300, 10)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(300))


def test_pictures_and_arrays_are_read_as_raw_examples(record: RunRecord, tmp_path: Path) -> None:
    from PIL import Image

    described = export(record.folder, 0, tmp_path / "one.safetensors")
    raw = load_data("digits").inputs[:3]
    np.save(tmp_path / "some.npy", raw[:2])
    Image.fromarray(raw[2, 0]).save(tmp_path / "one.png")
    read = read_examples(described, [tmp_path / "some.npy", tmp_path / "one.png"])
    np.testing.assert_array_equal(read, raw)


def test_a_model_of_ones_own_needs_its_template_and_no_file_names_code_to_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Sequential):\n    def __init__(self):\n"
        "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(),"
        " torch.nn.Linear(8, 10))\n"
    )
    record = finished(tmp_path, algorithm="heterofl", model=f"{tmp_path}/net.py:Net")
    path = tmp_path / "one.safetensors"
    export(record.folder, 2, path, is_trusted=True)
    (tmp_path / "net.py").write_text("raise SystemExit('code from a file was run')\n")
    with pytest.raises(SubflotError, match="template"):
        load(path)
    full = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10)
    )
    module = load(path, template=full)
    assert module[1].weight.shape == (2, 64)  # type: ignore[index]


def test_what_cannot_be_exported_or_read_is_one_clear_error(
    record: RunRecord, tmp_path: Path
) -> None:
    with pytest.raises(SubflotError, match="no client 3"):
        export(record.folder, 3, tmp_path / "x.safetensors")
    with pytest.raises(SubflotError, match="not the folder of a run"):
        export(tmp_path, 0, tmp_path / "x.safetensors")
    local = finished(tmp_path, algorithm="local")
    with pytest.raises(SubflotError, match="no global model"):
        export(local.folder, None, tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()
    save_file({"w": torch.zeros(2)}, tmp_path / "plain.safetensors")
    with pytest.raises(SubflotError, match="does not say which model"):
        load(tmp_path / "plain.safetensors")
    described = export(record.folder, 0, tmp_path / "one.safetensors")
    (tmp_path / "broken.npy").write_bytes(b"no array")
    with pytest.raises(SubflotError, match=r"cannot read examples from .*broken.npy"):
        read_examples(described, [tmp_path / "broken.npy"])
    with pytest.raises(SubflotError, match="do not fit the model"):
        described.prepared(np.zeros((2, 3, 8, 8), dtype=np.uint8))
    with pytest.raises(SubflotError, match="float64 examples"):
        described.prepared(np.zeros((2, *described.input_shape)))


def test_the_commands_write_a_file_and_say_what_it_sees(
    record: RunRecord, tmp_path: Path, subflot: Command
) -> None:
    path = str(tmp_path / "seven.safetensors")
    code, _, err = subflot("export", str(record.folder), "--client", "1", "--output", path)
    assert code == 0
    assert "digits-cnn at pruning rate 0.5, accuracy " in err
    _, out, _ = subflot("predict", path, "--data", "digits", "--count", "4", "--json")
    rows = json.loads(out)["predictions"]
    expected = predict(load(path), describe(path), load_data("digits").inputs[:4]).max(1)
    assert [row["class"] for row in rows] == [str(i) for i in expected.indices.tolist()]
    assert [row["probability"] for row in rows] == pytest.approx(expected.values.tolist())
