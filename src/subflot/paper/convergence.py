"""SubFLOT on a strongly convex task, its gap to the optimum beside the bound of Theorem 1.

The task is softmax regression on the bundled digits with a squared penalty. So that there are
channels to prune, the model is a sum of experts, each a linear classifier: the loss is convex in
all their weights together, and an absent expert is one of zeros, as the theorem counts it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.algorithms.subflot import SubFLOT
from subflot.data import load as load_data
from subflot.data.dataset import Dataset
from subflot.data.federated import Examples, FederatedData, federate
from subflot.paper.theorem import Constants, bound, error_terms, largest_step, proof_bound
from subflot.simulation import Round, simulate
from subflot.simulation.roster import drawn
from subflot.task import LocalTraining, Task
from subflot.training.local import seeded
from subflot.weights import Weights

ROUNDS = {"smoke": 5, "reduced": 100, "paper": 200}
NUM_CLIENTS, CLASSES_PER_CLIENT, NUM_EXPERTS = 10, 4, 4
CONVEXITY, BATCH = 0.1, 32
PRUNING_RATES = (0.0, 0.25, 0.5, 0.75)


class Experts(nn.Module):
    """A sum of linear classifiers; input (batch, features)."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.experts = nn.Linear(num_features, NUM_EXPERTS * num_classes, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        logits: Tensor = self.experts(inputs).unflatten(1, (-1, self.num_classes)).sum(1)
        return logits


@dataclass(frozen=True)
class Slope:
    """A client's gradient at a point: the squared length of its mean, and its spread in a batch."""

    squared: float
    variance: float


def convergence(
    rounds: int, seed: int = 0, on_round: Callable[[Round], None] = lambda _: None
) -> dict[str, Any]:
    """Run SubFLOT on the task and return the gap, the bound and all constants, round by round."""
    data = _data(seed)
    clients = [data.train(client) for client in range(data.num_clients)]
    pooled = Examples(
        torch.cat([c.inputs for c in clients]), torch.cat([c.labels for c in clients])
    )
    steps = max(-(-len(client) // BATCH) for client in clients)
    method = SubFLOT()
    weight = float(method.penalty_weight)
    smoothness = max(_smoothness(client.inputs) for client in clients)
    rate = largest_step(smoothness, steps, weight, max(PRUNING_RATES))
    task = _task(data, LocalTraining(1, BATCH, rate, weight_decay=CONVEXITY), seed)
    least = _least_loss(pooled)
    gaps = [loss(task.initial, pooled) - least]
    slopes = [slope(task.initial, client) for client in clients]
    moved: dict[str, list[float]] = {"delta_ot": [], "delta_p": []}
    roster = drawn(NUM_CLIENTS, PRUNING_RATES, seed)
    for done in simulate(method, task, data, roster, rounds=rounds, seed=seed, workers=1):
        state = done.state
        gaps.append(loss(state.weights, pooled) - least)
        for number, client in enumerate(clients):
            slopes += [slope(state.weights, client), slope(state.history[number], client)]
        shown = done.metrics["clients"]
        shares = np.array(shown["num_examples"]) / sum(shown["num_examples"])
        for name, found in moved.items():
            found.append(float(np.dot(shares, shown[name])))
        on_round(done)
    constants = Constants(
        smoothness=smoothness,
        convexity=CONVEXITY,
        variance=max(one.variance for one in slopes),
        gradient=max(one.squared for one in slopes),
        delta_ot=max(moved["delta_ot"]),
        delta_p=max(moved["delta_p"]),
        steps=steps,
        learning_rate=rate,
        penalty_weight=weight,
        max_rate=max(client.pruning_rate for client in roster(1)),
    )
    return describe(constants, gaps)


def describe(constants: Constants, gaps: list[float]) -> dict[str, Any]:
    """Put the measured gaps beside the bound; both start before the first round."""
    bounds = [bound(constants, gaps[0], number) for number in range(len(gaps))]
    return {
        "name": "convergence",
        "title": "Gap to the optimum on a strongly convex task, and the bound of Theorem 1",
        "constants": {**asdict(constants), "contraction": constants.contraction},
        "terms": error_terms(constants),
        "gaps": gaps,
        "bounds": bounds,
        "proof_bounds": [proof_bound(constants, gaps[0], n) for n in range(len(gaps))],
        "is_below": all(gap <= most for gap, most in zip(gaps, bounds, strict=True)),
    }


def loss(weights: Weights, examples: Examples) -> float:
    """Return F at some weights of any width: mean cross-entropy and the squared penalty."""
    experts = _experts(weights)
    logits = examples.inputs.double() @ experts.sum(0).T
    return float(F.cross_entropy(logits, examples.labels) + CONVEXITY / 2 * experts.square().sum())


def slope(weights: Weights, examples: Examples) -> Slope:
    """Measure a client's gradient: what Assumptions 3 and 4 bound."""
    experts, inputs = _experts(weights), examples.inputs.double()
    num_experts, count = len(experts), len(examples)
    wrong = torch.softmax(inputs @ experts.sum(0).T, 1)
    wrong[torch.arange(count), examples.labels] -= 1
    mean = wrong.T @ inputs / count  # Of the cross-entropy, the same for every expert.
    squared = float((mean + CONVEXITY * experts).square().sum())
    each = float((wrong.square().sum(1) * inputs.square().sum(1)).mean())
    spread = num_experts * (each - float(mean.square().sum()))
    # A batch is drawn without replacement.
    size = min(BATCH, count)
    return Slope(squared, spread / size * (count - size) / max(1, count - 1))


def _experts(weights: Weights) -> Tensor:
    """Return the weights as (experts, classes, features), in double precision."""
    tensor = weights["experts.weight"].double()
    return tensor.reshape(-1, 10, tensor.shape[1])


def _smoothness(inputs: Tensor) -> float:
    """Bound the curvature of a client's loss; that of softmax is one half at most.

    All experts see the same inputs, so it is multiplied by their number.
    """
    moments = inputs.double().T @ inputs.double() / len(inputs)
    return NUM_EXPERTS / 2 * float(torch.linalg.eigvalsh(moments)[-1]) + CONVEXITY


def _least_loss(pooled: Examples) -> float:
    """Find the least loss; at the optimum all experts are equal, so their sum is enough."""
    inputs = pooled.inputs.double()
    total = torch.zeros(10, inputs.shape[1], dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS(
        [total], max_iter=500, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def value() -> Tensor:
        search.zero_grad()
        penalty = CONVEXITY / (2 * NUM_EXPERTS) * total.square().sum()
        found = F.cross_entropy(inputs @ total.T, pooled.labels) + penalty
        found.backward()
        return found

    search.step(value)
    return float(value().detach())


def _data(seed: int) -> FederatedData:
    """Divide the digits, centred and of length one, so that no direction is far the steepest."""
    whole = load_data("digits")
    pixels = np.asarray(whole.inputs, dtype=np.float32).reshape(len(whole), -1)
    pixels = pixels - pixels.mean(0)
    pixels /= np.linalg.norm(pixels, axis=1, keepdims=True)
    dataset = Dataset("digits", pixels, np.asarray(whole.labels), whole.classes)
    return federate(
        dataset,
        partition="pathological",
        num_clients=NUM_CLIENTS,
        seed=seed,
        classes_per_client=CLASSES_PER_CLIENT,
    )


def _task(data: FederatedData, local: LocalTraining, seed: int) -> Task:
    with seeded(seed, "cpu"):
        model = Experts(data.dataset.input_shape[0], len(data.dataset.classes))
    return Task.of(model, data.dataset.tensors([0, 1])[0], local)
