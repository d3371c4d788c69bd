"""VGG11 for 32x32 images.

Paper: "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
configuration A. As usual on CIFAR, the three fully connected layers are replaced by one.
"""

from torch import Tensor, nn

from subflot.models.initialise import initialise_classifier, initialise_convs
from subflot.models.width import scaled

# Output channels of each convolution; a stage ends with a pooling that halves the image.
STAGES = ((64,), (128,), (256, 256), (512, 512), (512, 512))


class VGG11(nn.Module):
    """Eight 3x3 convolutions in five stages and one linear layer; input (batch, 3, 32, 32).

    Args:
        num_classes: outputs of the linear layer.
        batch_norm: normalise after every convolution; the original network does not.
        width: share of all hidden channels.
    """

    def __init__(self, num_classes: int = 10, batch_norm: bool = True, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for stage in STAGES:
            for outputs in (scaled(channels, width) for channels in stage):
                layers.append(nn.Conv2d(inputs, outputs, kernel_size=3, padding=1))
                if batch_norm:
                    layers.append(nn.BatchNorm2d(outputs))
                layers.append(nn.ReLU())
                inputs = outputs
            layers.append(nn.MaxPool2d(kernel_size=2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, num_classes)
        initialise_convs(self)
        initialise_classifier(self.classifier)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        logits: Tensor = self.classifier(self.features(images).flatten(1))
        return logits
