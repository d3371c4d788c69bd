"""MobileNetV2.

Paper: "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018, with the strides for
ImageNet: an image shrinks 32 times, so that 32x32 inputs end as a single pixel.
"""

import torch
from torch import Tensor, nn

from subflot.models.initialise import initialise_classifier, initialise_convs
from subflot.models.width import scaled

# Table 2 of the paper: expansion, output channels, number of blocks, stride of the first block.
BOTTLENECKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv_norm(
    inputs: int, outputs: int, kernel_size: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the image size, up to its stride, and its normalisation."""
    conv = nn.Conv2d(
        inputs,
        outputs,
        kernel_size,
        stride,
        padding=kernel_size // 2,
        groups=groups,
        bias=False,
    )
    return [conv, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """Expand, filter each channel by itself, project back without an activation.

    The input is added where it has the shape of the output.
    """

    def __init__(
        self, inputs: int, outputs: int, stride: int, expansion: int, width: float = 1.0
    ) -> None:
        super().__init__()
        # Decided before anything is narrowed: a narrower copy adds where the full network does.
        self.is_residual = stride == 1 and inputs == outputs
        inputs, hidden, outputs = (scaled(n, width) for n in (inputs, inputs * expansion, outputs))
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*conv_norm(inputs, hidden, 1), nn.ReLU6()]
        layers += [*conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
        layers += conv_norm(hidden, outputs, 1)
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Features, shape (batch, outputs, height / stride, width / stride)."""
        out: Tensor = self.conv(x)
        return x + out if self.is_residual else out


class MobileNetV2(nn.Module):
    """Seventeen inverted residual blocks between two convolutions; input (batch, 3, H, W).

    Args:
        num_classes: outputs of the linear layer.
        width: share of all hidden channels, the last convolution's too.
    """

    def __init__(self, num_classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        layers: list[nn.Module] = [*conv_norm(3, scaled(32, width), 3, stride=2), nn.ReLU6()]
        inputs = 32
        for expansion, outputs, num_blocks, stride in BOTTLENECKS:
            for block in range(num_blocks):
                own = stride if block == 0 else 1
                layers.append(InvertedResidual(inputs, outputs, own, expansion, width))
                inputs = outputs
        last = scaled(1280, width)
        layers += [*conv_norm(scaled(inputs, width), last, 1), nn.ReLU6()]
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.2)
        self.classifier = nn.Linear(last, num_classes)
        initialise_convs(self)
        initialise_classifier(self.classifier)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        # With channels last in memory a processor convolves faster, depthwise most of all.
        images = images.contiguous(memory_format=torch.channels_last)
        pooled = self.pool(self.features(images)).flatten(1)
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits
