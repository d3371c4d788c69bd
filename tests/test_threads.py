"""What is computed with one thread, and that the others come back."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from subflot.channels import trace
from subflot.threads import one_thread


@pytest.fixture
def three_threads() -> Iterator[None]:
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(1)


def test_threads_come_back_whatever_happens(three_threads: None) -> None:
    @one_thread()
    def fail() -> None:
        raise KeyError(torch.get_num_threads())

    with pytest.raises(KeyError, match="1"):
        fail()
    assert torch.get_num_threads() == 3


def test_models_are_traced_with_one_thread(three_threads: None) -> None:
    seen = set()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, batch: Tensor) -> Tensor:
            seen.add(torch.get_num_threads())
            result: Tensor = self.last(self.first(batch))
            return result

    trace(Net(), torch.zeros(2, 3))
    assert seen == {1}
    assert torch.get_num_threads() == 3
