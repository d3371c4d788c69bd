"""Every method trains every network of the paper on real data, clients of all four sizes."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from subflot.algorithms import ALGORITHMS
from subflot.algorithms.base import Client
from subflot.data.federated import FederatedData
from subflot.data.source import data_root
from subflot.errors import SubflotError
from subflot.experiments import RunConfig
from subflot.experiments.runner import assemble
from subflot.results import RunRecord
from subflot.simulation import simulate
from subflot.task import Task

RATES = (0.0, 0.25, 0.5, 0.75)
SMALL: Mapping[str, Any] = {"epochs": 1, "batch_size": 4, "learning_rate": 0.01, "rounds": 2}
DOMAINS = ("mnist", "mnistm", "svhn", "usps")
NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "vgg11": {"data": "cifar10"},
    "mobilenetv2": {"data": "cifar100"},
    "resnet18": {"data": "pacs"},
    "digit5cnn": {"data": "digit5", "domains": DOMAINS, "hidden": (384, 256)},
    "harcnn": {"data": "har"},
    "fasttext": {"data": "ag-news", "vocabulary": 2000},
}
"""The data that a network is trained on, and what makes it small enough."""


@cache
def assembled(model: str) -> tuple[Task, FederatedData]:
    """A network, and four clients with four examples to train on and four to test."""
    config = RunConfig.of(
        model=model, partition="iid", num_clients=4, proxy_share=0.002, **NETWORKS[model], **SMALL
    )
    try:
        task, data, _ = assemble(config)
    except SubflotError as error:
        pytest.skip(f"no real data: {error}")
    few = [
        type(s)(s.train[:: len(s.train) // 4][:4], np.empty(0, np.int64), s.test[:4])
        for s in data.shares
    ]
    return task, FederatedData(data.dataset, tuple(few))


@pytest.mark.parametrize("model", NETWORKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_rounds_end_with_finite_models_within_their_budgets(
    name: str, model: str, tmp_path: Path
) -> None:
    task, data = assembled(model)
    kind: Callable[..., Any] = ALGORITHMS[name]
    method = kind(proxy_epochs=1) if name == "flexfl" else kind()
    clients = [Client(number, rate) for number, rate in enumerate(RATES)]
    settings: Mapping[str, Any] = {"rounds": 2, "evaluate_every": 2, "workers": 1}
    rounds = list(simulate(method, task, data, clients, seed=1, folder=tmp_path, **settings))
    prepared = method.prepare(task)
    lines = RunRecord(tmp_path).rounds
    assert all(math.isfinite(loss) for loss in lines[-1]["clients"]["trained_loss"])
    for line in lines:
        assert line["num_rejected"] == 0
        columns = line["clients"]
        for rate, parameters in zip(columns["pruning_rate"], columns["parameters"], strict=True):
            allowed = task.cost(task.narrow(task.initial, rate)).parameters
            if rate == 0:  # Early exits come on top of the whole network.
                allowed = prepared.cost(prepared.initial).parameters
            assert method.ignores_budgets or parameters <= allowed
    assert all(t.isfinite().all() for t in rounds[-1].state.weights.values())


def test_real_data_is_there_or_its_absence_is_told() -> None:
    """Where SUBFLOT_DATA is set, no network may be left out in silence."""
    if not data_root().is_dir():
        pytest.skip(f"no real data in {data_root()}: set SUBFLOT_DATA, or `subflot data get`")
    for model in NETWORKS:
        assembled(model)
