"""What happens on a client: training on its examples, and measuring a model on them."""

from subflot.training.evaluate import Measurement, measure, recalibrate
from subflot.training.local import Objective, Trained, batches, train_locally

__all__ = [
    "Measurement",
    "Objective",
    "Trained",
    "batches",
    "measure",
    "recalibrate",
    "train_locally",
]
