"""What runs will take, before any is started: hours and disk, to a factor of two or so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from subflot.algorithms import ALGORITHMS
from subflot.algorithms.subflot import SubFLOT
from subflot.channels.cost import Cost, cost_of
from subflot.data.sets import find as find_set
from subflot.data.sets import load as load_data
from subflot.errors import SubflotError
from subflot.experiments.config import RunConfig
from subflot.models import find as find_model
from subflot.paper.grids import PaperTask

MULTIPLY_ADDS_PER_SECOND = 40e9
SECONDS_PER_PARAMETER_STEP = 5e-10
"""A step of gradient descent reads and writes every parameter a few times."""
SECONDS_PER_PARAMETER_TRANSPORT = 1.2e-7
"""Of aligning a model to a client and back."""
SECONDS_PER_TENSOR_STEP = 2e-4
"""Small layers cost what it takes to call them."""
SECONDS_PER_RUN = 3.0
"""Until the first round: reading data, tracing the model. All on one core of a recent server."""
EVALUATION_PASSES = 3
"""Over all examples in a measured round: two models per client and the global one."""
TRAINING: Mapping[str, float] = {
    "depthfl": 1.4,
    "feddse": 1.3,
    "flado": 1.3,
    "flexfl": 1.7,
    "scalefl": 1.3,
}
"""What the training of a method takes where it is more than that of a cut model: several exits,
distillation, gradients for choosing channels. Ratios to HeteroFL in the recorded runs."""
BYTES_PER_LINE, BYTES_PER_CLIENT = 500, 80
"""Of a round in the record, and of each client in it."""


@dataclass(frozen=True)
class Estimate:
    """What runs take together."""

    num_runs: int
    core_seconds: float
    record_bytes: float
    """What stays on disk."""
    model_bytes: float
    """What the largest run needs while it runs."""

    def hours(self, cores: int) -> float:
        """Return the hours on so many cores that are all busy."""
        return self.core_seconds / cores / 3600


def estimate(runs: Iterable[tuple[RunConfig, PaperTask]]) -> Estimate:
    """Estimate what runs take; with each comes its task, which knows the size of the data."""
    found = [_one(config, task) for config, task in runs]
    return Estimate(
        len(found),
        sum(one.core_seconds for one in found),
        sum(one.record_bytes for one in found),
        max((one.model_bytes for one in found), default=0.0),
    )


def _one(config: RunConfig, task: PaperTask) -> Estimate:
    kind = ALGORITHMS[config.algorithm]
    rates = (0.0,) if kind.ignores_budgets else config.client_rates or config.pruning_rates
    # Weights between two layers shrink with the width of both.
    share = sum((1 - rate) ** 2 for rate in rates) / len(rates)
    full, num_tensors = _full_cost(config)
    clients = config.num_clients or task.num_groups
    active = config.per_round or clients
    examples = _num_examples(config, task) * active / clients
    trained = examples * _train_share(config)
    # The last batch of an epoch is half full on average.
    steps = config.epochs * (trained / config.batch_size + active / 2)
    # Backwards costs twice what forwards does.
    training = 3 * config.epochs * trained * share * full.multiply_adds / MULTIPLY_ADDS_PER_SECOND
    training += steps * share * full.parameters * SECONDS_PER_PARAMETER_STEP
    training += steps * num_tensors * SECONDS_PER_TENSOR_STEP
    measuring = EVALUATION_PASSES * examples * share * full.multiply_adds
    seconds = training * TRAINING.get(config.algorithm, 1.0)
    seconds += measuring / MULTIPLY_ADDS_PER_SECOND / config.evaluate_every
    if issubclass(kind, SubFLOT):
        seconds += active * share * full.parameters * SECONDS_PER_PARAMETER_TRANSPORT
    models = 2 + (clients * share if kind.keeps_history else 0)
    return Estimate(
        1,
        SECONDS_PER_RUN + config.rounds * seconds,
        config.rounds * (BYTES_PER_LINE + active * BYTES_PER_CLIENT),
        models * full.bytes,
    )


def _num_examples(config: RunConfig, task: PaperTask) -> int:
    """Count the examples that a run takes: of those at hand, or of those published."""
    try:
        there = len(load_data(config.data, **config.data_settings))
    except SubflotError:
        there = task.num_examples
    return min(there, config.max_examples or there)


def _train_share(config: RunConfig) -> float:
    """Return the share of the examples that is trained on."""
    usual = find_set(config.data).test_share
    test = usual if config.test_share < 0 else config.test_share
    return (1 - test) * (1 - config.validation_share)


def _full_cost(config: RunConfig) -> tuple[Cost, int]:
    if ":" in config.model:
        return Cost(1e6, 1e7, 0, 4e6), 50  # Somebody's own: of a usual size.
    size, channels = (config.data_settings.get(key) for key in ("size", "channels"))
    return _count(config.model, tuple(sorted(config.model_settings.items())), size, channels)


@cache
def _count(
    model: str, settings: tuple[tuple[str, Any], ...], size: int | None, channels: int | None
) -> tuple[Cost, int]:
    """Count what a whole model costs on inputs of the data's size, and its tensors."""
    network = find_model(model)
    example = network.example(1)
    if network.vocabulary is not None:
        example = torch.ones_like(example)  # A token of every vocabulary.
    elif size:
        example = torch.zeros(1, channels or 3, size, size)
    build: Any = network.build
    module = build(network.num_classes, **dict(settings))
    return cost_of(module, example), len(list(module.parameters()))
