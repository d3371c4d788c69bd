"""What the paper prints of a model's cost is what is counted, or the difference has a reason."""

import pytest

from subflot.channels import trace
from subflot.channels.cost import cost, mean_cost
from subflot.models import MODELS
from subflot.paper.resources import PRINTED, compare


@pytest.mark.parametrize("name", PRINTED)
def test_the_papers_table_is_met_within_one_percent_or_the_difference_is_explained(
    name: str,
) -> None:
    network = MODELS[name]
    model = network.model()
    channels = trace(model, network.example())
    costs = [cost(model, channels, network.example(1), rate) for rate in (0, 0.25, 0.5, 0.75)]
    cells = list(compare(name, costs[0], mean_cost(costs)))
    assert len(cells) == 4
    for cell in cells:
        assert cell.difference == pytest.approx(cell.ours / cell.printed - 1)
        if name == "mobilenetv2" and cell.quantity == "multiply_adds":
            assert "batch norm, activations and pooling" in cell.reason
            assert f"{cell.printed / 1e6:.2f} million" in cell.reason
        else:
            assert abs(cell.difference) < 0.01
            assert not cell.reason
