"""ResNet18.

Paper: "Deep Residual Learning for Image Recognition", CVPR 2016, with the stem for ImageNet (a
7x7 convolution and a pooling, each of stride 2); 32x32 inputs end as a single pixel. Shortcuts
that change the shape are 1x1 convolutions, option B of the paper.
"""

import torch
from torch import Tensor, nn

from subflot.models.initialise import initialise_convs


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
    """Four stages of two blocks, 64 to 512 channels; input (batch, 3, H, W)."""

    blocks = tuple(f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2))
    """Where it can end early; the stem is no block."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)
        initialise_convs(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits
