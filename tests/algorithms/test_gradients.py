"""A model can be looked at elsewhere, and stands afterwards where it stood."""

import torch
from tolerances import EXACT
from torch import nn

from subflot.algorithms.gradients import (
    fixed_buffers,
    gradient,
    standing_at,
    trainable,
    with_gradient,
)


def test_a_model_stands_again_where_it_stood_to_the_bit_even_after_an_error() -> None:
    model = nn.Linear(3, 2)
    parameters = trainable(model)
    before, memory = [p.detach().clone() for p in parameters], [p.data_ptr() for p in parameters]
    for fails in (False, True):
        try:
            with standing_at(parameters, [torch.zeros_like(p) for p in parameters]):
                assert not model(torch.ones(1, 3)).any()
                if fails:
                    raise KeyError
        except KeyError:
            pass
        assert [p.data_ptr() for p in parameters] == memory
        for now, then in zip(parameters, before, strict=True):
            torch.testing.assert_close(now.data, then, **EXACT)


def test_the_gradient_is_zero_for_what_the_loss_does_not_use() -> None:
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    found = gradient((used * 3).sum(), [used, unused])
    assert [g.tolist() for g in found] == [[3.0, 3.0], [0.0, 0.0, 0.0]]


def test_passes_inside_leave_no_trace_in_running_statistics() -> None:
    norm = nn.BatchNorm1d(2)
    with fixed_buffers(norm):
        norm(torch.randn(8, 2) + 5)
        assert norm.num_batches_tracked == 1
    assert norm.num_batches_tracked == 0
    assert norm.running_mean is not None
    assert not norm.running_mean.any()


def test_a_loss_with_a_known_gradient_passes_it_on_scaled() -> None:
    point = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = 3 * with_gradient(torch.tensor(7.0), [point], [torch.tensor([0.5, -1.0])])
    assert loss.item() == 21
    loss.backward()
    assert point.grad is not None
    assert point.grad.tolist() == [1.5, -3.0]
