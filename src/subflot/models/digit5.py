"""The convolutional network for Digit-5.

Paper: "KD3A: Unsupervised Multi-Source Decentralized Domain Adaptation via Knowledge
Distillation", ICML 2021.
"""

import torch
from torch import Tensor, nn

from subflot.models.width import scaled


class Digit5CNN(nn.Module):
    """Three 5x5 convolutions and three linear layers; input (batch, 3, 32, 32).

    Batch norm after every layer but the last. Starts from torch's default initialisation.

    Args:
        num_classes: outputs of the last layer.
        hidden: widths of the two hidden linear layers, which hold nearly all parameters.
        width: share of all hidden channels, those of `hidden` too.
    """

    def __init__(
        self, num_classes: int = 10, hidden: tuple[int, int] = (3072, 2048), width: float = 1.0
    ) -> None:
        super().__init__()
        first, second, third, wide, narrow = (scaled(n, width) for n in (64, 64, 128, *hidden))
        self.features = nn.Sequential(
            nn.Conv2d(3, first, kernel_size=5, padding=2),
            nn.BatchNorm2d(first),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            nn.Conv2d(first, second, kernel_size=5, padding=2),
            nn.BatchNorm2d(second),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=3, stride=2, padding=1),
            nn.Conv2d(second, third, kernel_size=5, padding=2),
            nn.BatchNorm2d(third),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(third * 8 * 8, wide),
            nn.BatchNorm1d(wide),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(wide, narrow),
            nn.BatchNorm1d(narrow),
            nn.ReLU(),
            nn.Linear(narrow, num_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        # With channels last in memory a processor convolves and pools faster.
        images = images.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits
