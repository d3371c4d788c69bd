"""The convolutional network for human activity recognition.

Paper: "Convolutional Neural Networks for Human Activity Recognition using Mobile Sensors",
MobiCASE 2014. The paper has the idea, convolution along time over sensor channels; the sizes are
those common in federated learning on the UCI HAR data.
"""

import torch
from torch import Tensor, nn

from subflot.models.width import scaled


class HARCNN(nn.Module):
    """Two convolutions along time and three linear layers; input (batch, signals, 1, 128).

    The signals are channels and the 128 steps of a window are the width. Starts from torch's
    default initialisation.

    Args:
        num_classes: outputs of the last layer.
        width: share of all hidden channels.
        signals: channels of the input.
    """

    def __init__(self, num_classes: int = 6, width: float = 1.0, signals: int = 9) -> None:
        super().__init__()
        first, second, wide, narrow = (scaled(channels, width) for channels in (32, 64, 1024, 512))
        self.features = nn.Sequential(
            nn.Conv2d(signals, first, kernel_size=(1, 9)),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=(1, 2)),
            nn.Conv2d(first, second, kernel_size=(1, 9)),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=(1, 2)),
        )
        self.classifier = nn.Sequential(
            # Time steps left: (128 - 8) / 2 = 60, then (60 - 8) / 2 = 26.
            nn.Linear(second * 26, wide),
            nn.ReLU(),
            nn.Linear(wide, narrow),
            nn.ReLU(),
            nn.Linear(narrow, num_classes),
        )

    def forward(self, windows: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        # With channels last in memory a processor convolves and pools faster.
        windows = windows.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.classifier(self.features(windows).flatten(1))
        return logits
