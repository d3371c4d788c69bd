import pytest
import torch
from commands import subflot  # noqa: F401
from hypothesis import settings

# Sums over threads may be taken in another order on another machine.
torch.set_num_threads(1)

# The same examples on every run; a slow machine is no failure.
settings.register_profile("subflot", derandomize=True, deadline=None)
settings.load_profile("subflot")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
