"""A small network for the 8x8 digits that come with scikit-learn: real data, no download.

No paper: it has what the channel map must follow (convolution, normalisation, a flatten with
several pixels per channel, two linear layers) and trains in seconds.
"""

from torch import Tensor, nn

from subflot.models.initialise import initialise_convs
from subflot.models.width import scaled


class DigitsCNN(nn.Module):
    """Two 3x3 convolutions and two linear layers; input (batch, 1, 8, 8).

    Args:
        num_classes: outputs of the last layer.
        width: share of all hidden channels.
    """

    def __init__(self, num_classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        first, second, hidden = (scaled(channels, width) for channels in (16, 32, 128))
        self.features = nn.Sequential(
            nn.Conv2d(1, first, kernel_size=3, padding=1),
            nn.BatchNorm2d(first),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2),
            nn.Conv2d(first, second, kernel_size=3, padding=1),
            nn.BatchNorm2d(second),
            nn.ReLU(),
            nn.MaxPool2d(kernel_size=2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(second * 2 * 2, hidden),
            nn.ReLU(),
            nn.Linear(hidden, num_classes),
        )
        initialise_convs(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits
