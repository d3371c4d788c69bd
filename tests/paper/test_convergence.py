"""The bound is the printed one, its constants are what they are called, and the gap is below it."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from subflot.data.federated import Examples
from subflot.paper import convergence
from subflot.paper.convergence import CONVEXITY, describe, loss, slope
from subflot.paper.theorem import (
    Constants,
    bound,
    error_terms,
    largest_step,
    proof_bound,
)

# Primes, so that no term can be mistaken for another.
MADE = Constants(
    smoothness=3.0,
    convexity=0.5,
    variance=7.0,
    gradient=11.0,
    delta_ot=13.0,
    delta_p=17.0,
    steps=2,
    learning_rate=0.1,
    penalty_weight=5.0,
    max_rate=0.4,
)


def test_every_term_is_the_printed_one() -> None:
    # With L = 3, E = 2, eta = 0.1, lambda rho_max = 2, worked out by hand:
    assert error_terms(MADE) == pytest.approx(
        {
            "variance": 2.1,  # L eta E sigma^2 / 2 = 3 * 0.1 * 2 * 7 / 2
            "gradient": 158.4,  # 4 L^2 E^2 eta G^2 = 4 * 9 * 4 * 0.1 * 11
            "drift": 86.4,  # 16 L E eta / (lambda rho_max) (sigma^2 + G^2) = 9.6 / 2 * 18
            "delta_ot": 32.5,  # 5 / 2 delta_OT^2
            "delta_p": 204.0,  # 4 L delta_P^2 = 12 * 17
            "penalty": 32.64,  # 4 L E^2 eta^2 (lambda rho_max)^2 delta_P^2 = 12 * 0.04 * 4 * 17
        }
    )


def test_the_bound_is_contraction_and_error() -> None:
    # gamma = 1 - 0.5 * 0.1 * 2 / 2 = 0.95; the error is 516.04, over mu = 0.5: 1032.08.
    assert MADE.contraction == pytest.approx(0.95)
    assert bound(MADE, 100.0, 0) == pytest.approx(1132.08)
    assert bound(MADE, 100.0, 2) == pytest.approx(90.25 + 1032.08)


def test_the_proof_has_the_error_of_a_round_times_two_over_eta_e() -> None:
    assert proof_bound(MADE, 100.0, 1) == pytest.approx(95.0 + 1032.08 * 10)


@pytest.mark.parametrize("penalty_weight", [0.1, 100.0])
def test_the_largest_step_keeps_both_conditions(penalty_weight: float) -> None:
    rate = largest_step(2.0, 5, penalty_weight, 0.75)
    assert rate <= 1 / 80 + 1e-12
    assert rate <= 1 / (3 * penalty_weight) + 1e-12
    assert rate in (1 / 80, 1 / (4 * penalty_weight * 0.75))


def test_a_gap_above_the_bound_is_reported() -> None:
    low = replace(MADE, variance=0, gradient=0, delta_ot=0, delta_p=0)
    assert describe(low, [1.0, 0.95])["is_below"]
    assert not describe(low, [1.0, 0.96])["is_below"]


@pytest.fixture
def point() -> tuple[dict[str, Tensor], Examples]:
    """Two experts, ten classes, three features; six examples."""
    torch.manual_seed(0)
    weights = {"experts.weight": torch.randn(20, 3, dtype=torch.float64)}
    return weights, Examples(torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 9, 5]))


def objective(tensor: Tensor, examples: Examples) -> Tensor:
    """F written another way: through the module's own forward pass."""
    logits = (examples.inputs.double() @ tensor.T).unflatten(1, (-1, 10)).sum(1)
    return F.cross_entropy(logits, examples.labels) + CONVEXITY / 2 * tensor.square().sum()


def test_loss_and_slope_are_those_of_autograd(point: tuple[dict[str, Tensor], Examples]) -> None:
    weights, examples = point
    tensor = weights["experts.weight"].clone().requires_grad_()
    value = objective(tensor, examples)
    (gradient,) = torch.autograd.grad(value, tensor)
    assert loss(weights, examples) == pytest.approx(float(value.detach()))
    assert slope(weights, examples).squared == pytest.approx(float(gradient.square().sum()))


def test_variance_is_that_over_all_batches(
    point: tuple[dict[str, Tensor], Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, examples = point
    monkeypatch.setattr(convergence, "BATCH", 2)
    tensor = weights["experts.weight"].clone().requires_grad_()

    def gradient(chosen: tuple[int, ...]) -> Tensor:
        some = Examples(examples.inputs[list(chosen)], examples.labels[list(chosen)])
        return torch.autograd.grad(objective(tensor, some), tensor)[0]

    mean = gradient(tuple(range(6)))
    batches = list(itertools.combinations(range(6), 2))
    spread = sum(float((gradient(batch) - mean).square().sum()) for batch in batches)
    assert slope(weights, examples).variance == pytest.approx(spread / math.comb(6, 2))


def test_smoothness_bounds_the_curvature(point: tuple[dict[str, Tensor], Examples]) -> None:
    weights, examples = point
    scale = convergence.NUM_EXPERTS / 2  # The point has two experts, the task more.
    hessian = torch.autograd.functional.hessian(
        lambda flat: objective(flat.reshape(20, 3), examples), weights["experts.weight"].flatten()
    )
    curvatures = torch.linalg.eigvalsh(hessian)
    most = (convergence._smoothness(examples.inputs) - CONVEXITY) / scale + CONVEXITY
    assert float(curvatures[-1]) <= most
    assert float(curvatures[0]) >= CONVEXITY - 1e-9


def test_the_least_loss_is_a_minimum_of_the_full_problem(
    point: tuple[dict[str, Tensor], Examples],
) -> None:
    _, examples = point
    tensor = torch.zeros(10 * convergence.NUM_EXPERTS, 3, dtype=torch.float64, requires_grad=True)
    for _ in range(4000):
        (gradient,) = torch.autograd.grad(objective(tensor, examples), tensor)
        tensor = (tensor - 0.3 * gradient).detach().requires_grad_()
    least = float(objective(tensor, examples).detach())
    assert convergence._least_loss(examples) == pytest.approx(least, abs=1e-9)


def test_the_measured_gap_stays_below_the_bound_in_every_round() -> None:
    found = convergence.convergence(rounds=4)
    assert found["is_below"]
    assert len(found["gaps"]) == len(found["bounds"]) == 5
    assert all(gap > 0 for gap in found["gaps"])
    assert found["gaps"][-1] < found["gaps"][0]
    made = dict(found["constants"])
    made.pop("contraction")
    constants = Constants(**made)
    assert found["bounds"][3] == bound(constants, found["gaps"][0], 3)
    assert min(made.values()) > 0
    assert made["learning_rate"] <= 1 / (8 * made["smoothness"] * made["steps"])
