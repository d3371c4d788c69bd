"""A small network for the 8x8 digits that come with scikit-learn: real data, no download.

No paper: it has what the channel map must follow (convolution, normalisation, a flatten with
several pixels per channel, two linear layers) and trains in seconds.
"""

from torch import Tensor, nn

from subflot.models.initialise import initialise_convs


class DigitsCNN(nn.Module):
    """Two 3x3 convolutions and two linear layers; input (batch, 1, 8, 8)."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(32 * 2 * 2, 128),
            nn.ReLU(),
            nn.Linear(128, num_classes),
        )
        initialise_convs(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits
