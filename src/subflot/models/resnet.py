"""ResNet18.

Paper: "Deep Residual Learning for Image Recognition", CVPR 2016, with the stem for ImageNet (a
7x7 convolution and a pooling, each of stride 2); 32x32 inputs end as a single pixel. Shortcuts
that change the shape are 1x1 convolutions, option B of the paper.
"""

import torch
from torch import Tensor, nn

from subflot.models.initialise import initialise_convs
from subflot.models.width import scaled


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, added to a shortcut of the input before the last activation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Features, shape (batch, outputs, height / stride, width / stride)."""
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return torch.relu(out + self.downsample(x))


class ResNet18(nn.Module):
    """Four stages of two blocks, 64 to 512 channels; input (batch, 3, H, W).

    Args:
        num_classes: outputs of the linear layer.
        width: share of all hidden channels.
    """

    blocks = tuple(f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2))
    """Where it can end early; the stem is no block."""

    def __init__(self, num_classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        first, second, third, last = (scaled(channels, width) for channels in (64, 128, 256, 512))
        self.conv1 = nn.Conv2d(3, first, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(first)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(first, first, 1), BasicBlock(first, first, 1))
        self.layer2 = nn.Sequential(BasicBlock(first, second, 2), BasicBlock(second, second, 1))
        self.layer3 = nn.Sequential(BasicBlock(second, third, 2), BasicBlock(third, third, 1))
        self.layer4 = nn.Sequential(BasicBlock(third, last, 2), BasicBlock(last, last, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(last, num_classes)
        initialise_convs(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits
