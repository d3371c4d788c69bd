"""FedAvg of submodels that are cut out of the global model by their positions."""

from dataclasses import dataclass, replace
from typing import ClassVar

from subflot.algorithms.base import Client, Download, State, Turn, Upload
from subflot.algorithms.fedavg import FedAvg
from subflot.channels.scale import keep_scale, undo_scale
from subflot.task import Task


@dataclass(frozen=True)
class CutFedAvg(FedAvg):
    """What methods share that send the channels they chose, and put them back in place.

    Attributes:
        scale: whether a layer whose inputs are cut is multiplied by what it lost, on the client
            (`subflot.channels.scale`), as in `subflot-plus`; the papers go without.
    """

    ignores_budgets: ClassVar[bool] = False

    scale: bool = False

    def download(self, task: Task, state: State, client: Client, turn: Turn) -> Download:
        sent = super().download(task, state, client, turn)
        if self.scale:
            sent = replace(sent, weights=keep_scale(sent.weights, task.channels))
        return sent

    def place(self, task: Task, state: State, client: Client, upload: Upload, turn: Turn) -> Upload:
        if self.scale:
            upload = replace(upload, weights=undo_scale(upload.weights, task.channels))
        return upload
