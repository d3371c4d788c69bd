"""Gradient descent against torch's own optimiser, to the bit."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from subflot.task import LocalTraining
from subflot.training.descent import Descent

STEPS = 4


def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"used": nn.Linear(5, 3), "late": nn.Linear(3, 2), "never": nn.Linear(2, 2)}
    )


def loss(parts: nn.ModuleDict, step: int) -> Tensor:
    """A loss on which some layers depend from the first step, some from the third, some never."""
    inputs = torch.linspace(-1, 1, 10).view(2, 5) * (step + 1)
    hidden: Tensor = parts["used"](inputs).tanh()
    if step >= 2:
        hidden = parts["late"](hidden)
    return hidden.square().sum()


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_those_of_torch_to_the_bit(momentum: float, weight_decay: float) -> None:
    local = LocalTraining(learning_rate=0.1, momentum=momentum, weight_decay=weight_decay)
    ours, theirs = model(), model()
    descent = Descent(list(ours.parameters()), local)
    optimiser = torch.optim.SGD(
        theirs.parameters(), lr=0.1, momentum=momentum, weight_decay=weight_decay
    )
    for step in range(STEPS):
        ours.zero_grad(set_to_none=False)
        optimiser.zero_grad()
        loss(ours, step).backward()
        loss(theirs, step).backward()
        descent.step()
        optimiser.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(mine, other)
    before = model().state_dict()
    moved = {name for name, now in ours.state_dict().items() if not torch.equal(now, before[name])}
    assert {name.split(".")[0] for name in moved} == {"used", "late"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sparse_gradients_move_the_rows_that_they_have(momentum: float) -> None:
    tables = []
    for is_sparse in (True, False):
        torch.manual_seed(0)
        table = nn.Embedding(4, 3, sparse=is_sparse)
        descent = Descent([table.weight], LocalTraining(learning_rate=0.5, momentum=momentum))
        for row in (1, 3):
            table.zero_grad()
            table(torch.tensor([row])).square().sum().backward()
            descent.step()
        tables.append(table.weight)
    assert torch.equal(*tables)


def test_training_does_not_load_the_compiler() -> None:
    code = """
import sys
import torch
from subflot.task import LocalTraining
from subflot.training.descent import Descent
weight = torch.ones(2, requires_grad=True)
weight.sum().backward()
Descent([weight], LocalTraining(learning_rate=0.5, momentum=0.9, weight_decay=0.1)).step()
torch.testing.assert_close(weight.detach(), torch.full((2,), 0.45))
sys.exit("torch._dynamo" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
