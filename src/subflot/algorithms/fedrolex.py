"""FedRolex: HeteroFL with a window of channels that rolls on.

Paper: "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction",
NeurIPS 2022, arXiv:2212.01548.

The window of every layer moves by one channel a round and wraps around, so every channel is trained
equally often even if no client can hold the full model. The first round is HeteroFL's.

Where this departs from the paper's code: the window moves forward, as the paper has it, and not
backward; a part's channels stand in their old order; uploads count by their examples, as the paper
has it and for every method here (the code counts owners, and norms and classifiers by the order in
which they come); the code's option that permutes channels is left out.
"""

from dataclasses import dataclass
from typing import ClassVar

from subflot.algorithms.base import Client, State, Turn
from subflot.algorithms.heterofl import HeteroFL
from subflot.channels import Channels
from subflot.channels.keep import rolling
from subflot.errors import SubflotError
from subflot.task import Task


@dataclass(frozen=True)
class FedRolex(HeteroFL):
    """Submodels that roll over the channels, averaged over their owners.

    Layers of one width roll together, so a narrow client never trains some of the weights between
    them, however long it goes on: a property of the method. So is that one channel a round is slow
    for wide layers.

    Attributes:
        step: channels that the window moves in a round.
        scaler: as HeteroFL's.
        masked_loss: as HeteroFL's.
        scale: as HeteroFL's.
    """

    name: ClassVar[str] = "fedrolex"
    paper: ClassVar[str] = "NeurIPS 2022, arXiv:2212.01548"

    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 0:
            raise SubflotError(f"step is {self.step}", hint="0 or more channels in a round")

    def kept(self, task: Task, state: State, client: Client, turn: Turn) -> Channels:
        window = rolling(task.channels, client.pruning_rate, self.step * (turn.round - 1))
        return {space: index.sort().values for space, index in window.items()}
