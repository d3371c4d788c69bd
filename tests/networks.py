"""Networks that are not bundled, as users write them: each holds something hard to cut."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class DenseBlocks(nn.Module):
    """Concatenation as in DenseNet, with batch norm over it and a flatten behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.grow1 = nn.Conv2d(8, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(14)
        self.grow2 = nn.Conv2d(14, 6, 3, padding=1)
        self.head = nn.Linear(20 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = torch.cat([x, F.relu(self.grow1(x))], 1)
        x = torch.cat([x, self.grow2(F.relu(self.norm(x)))], 1)
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))


class UNet(nn.Module):
    """Skips joined by concatenation, transposed convolution, output as large as the input."""

    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Conv2d(2, 6, 3, padding=1)
        self.down2 = nn.Conv2d(6, 10, 3, padding=1)
        self.bottom = nn.Conv2d(10, 14, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(14, 10, 2, stride=2)
        self.join2 = nn.Conv2d(20, 10, 3, padding=1)
        self.up1 = nn.ConvTranspose2d(10, 6, 2, stride=2)
        self.join1 = nn.Conv2d(12, 6, 3, padding=1)
        self.out = nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.down1(x))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        x = F.relu(self.bottom(F.max_pool2d(two, 2)))
        x = F.relu(self.join2(torch.cat([two, self.up2(x)], 1)))
        x = F.relu(self.join1(torch.cat([one, self.up1(x)], 1)))
        return self.out(x)


class SqueezeExcite(nn.Module):
    """A gate per channel, computed from all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1)
        self.squeeze = nn.Conv2d(12, 4, 1)
        self.excite = nn.Conv2d(4, 12, 1)
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.conv(x))
        gate = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.head((x * gate).amax((2, 3)))


class ChannelsFirstNorm(nn.Module):
    """Layer norm over channels that keeps their number as a setting of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.normalized_shape = (channels,)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias)
        return x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """Depthwise convolution, layer norm, an inverted bottleneck of linear layers, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 4, stride=4)
        self.stem_norm = ChannelsFirstNorm(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.norm = nn.LayerNorm(12)
        self.expand = nn.Linear(12, 24)
        self.shrink = nn.Linear(24, 12)
        self.scale = nn.Parameter(torch.full((12,), 0.5))
        self.head = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x))
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.shrink(F.gelu(self.expand(y)))
        return self.head((x + y.permute(0, 3, 1, 2)).mean((2, 3)))


class Grouped(nn.Module):
    """Grouped convolution, group norm, depthwise with a multiplier, instance norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.grouped = nn.Conv2d(16, 24, 3, padding=1, groups=4)
        self.depthwise = nn.Conv2d(24, 48, 3, padding=1, groups=24)
        self.instance = nn.InstanceNorm2d(48, affine=True, track_running_stats=True)
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.grouped(self.norm(self.stem(x))))
        return self.head(self.instance(self.depthwise(x)).amax((2, 3)))


class Transformer(nn.Module):
    """A classifier on torch's own encoder layer; 6 entries per head, which no rate divides."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 24)
        self.places = nn.Parameter(torch.randn(1, 7, 24))
        layer = nn.TransformerEncoderLayer(24, 4, 40, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.words(tokens) + self.places).mean(1))


class OwnAttention(nn.Module):
    """Attention written by hand around settings of the module, in a pre-norm residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.width, self.heads, self.head_size = 24, 3, 8
        self.words = nn.Embedding(30, 24)
        self.norm = nn.LayerNorm(24)
        self.qkv = nn.Linear(24, 72)
        self.mix = nn.Linear(24, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        batch, length, _ = x.shape
        parts = self.qkv(self.norm(x)).split(self.width, dim=2)
        query, key, value = (
            p.view(batch, length, self.heads, self.head_size).transpose(1, 2) for p in parts
        )
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, length, self.width))
        return self.head(x[:, -1])


class TextCNN(nn.Module):
    """Convolutions of several lengths over words, the largest response of each."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 10)
        self.convs = nn.ModuleList([nn.Conv1d(10, 6, size) for size in (2, 3, 4)])
        self.head = nn.Linear(18, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(x)).max(dim=2)[0] for conv in self.convs], 1))


class Tied(nn.Module):
    """One weight as embedding and as output layer, and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 12)
        self.twice = nn.Linear(12, 12)
        self.head = nn.Linear(12, 20, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).mean(1)
        return self.head(torch.tanh(self.twice(torch.tanh(self.twice(x)))))


class TwoInputs(nn.Module):
    """An image and a table, joined by a product, a sum of three branches and nn.Bilinear."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Conv2d(1, 6, 3)
        self.table = nn.Linear(5, 6)
        self.left = nn.Linear(6, 9)
        self.right = nn.Linear(6, 9)
        self.skip = nn.Linear(5, 9)
        self.pair = nn.Bilinear(9, 6, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        seen = F.relu(self.image(image)).mean((2, 3))
        known = torch.sigmoid(self.table(table))
        joint = torch.stack([self.left(seen * known), self.right(known), self.skip(table)]).sum(0)
        return self.head(F.relu(self.pair(joint, seen)))


class Shuffle(nn.Module):
    """Channels split in halves, one half convolved, both interleaved, as in ShuffleNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.branch = nn.Conv2d(8, 8, 3, padding=1)
        self.after = nn.Conv2d(16, 10, 1)
        self.head = nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, 1)
        x = torch.cat([left, F.relu(self.branch(right))], 1)
        batch, channels, height, width = x.shape
        x = x.view(batch, 2, channels // 2, height, width).transpose(1, 2).flatten(1, 2)
        return self.head(F.relu(self.after(x)).mean((2, 3)))


class Recurrent(nn.Module):
    """Two bidirectional LSTM layers."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 10)
        self.cells = kind(10, 8, num_layers=2, bidirectional=True, batch_first=True)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.cells(self.words(tokens))[0][:, -1])


class GatedRecurrent(Recurrent):
    """Two bidirectional GRU layers."""

    def __init__(self) -> None:
        super().__init__(nn.GRU)


class Volume(nn.Module):
    """Three-dimensional convolution, PReLU, weight norm, GLU, and a flatten with channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv3d(1, 6, 3, padding=1))
        self.bend = nn.PReLU(6)
        self.gate = nn.Conv3d(6, 10, 1)
        self.head = nn.Linear(5 * 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.glu(self.gate(self.bend(self.conv(x))), dim=1)
        return self.head(F.adaptive_avg_pool3d(x, 2).permute(0, 2, 3, 4, 1).flatten(1))


class Generator(nn.Module):
    """A linear layer unflattened into an image, pixel shuffle, and a bag of words in front."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(30, 9, mode="sum")
        self.spread = nn.Sequential(nn.Linear(9, 8 * 4), nn.Unflatten(1, (8, 2, 2)), nn.ELU())
        self.finer = nn.Sequential(nn.Conv2d(8, 20, 1), nn.PixelShuffle(2), nn.RMSNorm(4))
        self.out = nn.Conv2d(5, 2, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.finer(self.spread(self.words(tokens))))


class Branching(nn.Module):
    """Python control flow that depends on numbers, so it cannot run without them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.head = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        if x.sum() > 0:
            x = F.relu(self.again(x))
        return self.head(x)


class Auxiliary(nn.Module):
    """A second head that only training uses; it must be cut along."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 3)
        self.extra = nn.Linear(8, 6)
        self.extra_head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.conv(x)).mean((2, 3))
        if self.training:
            return self.head(x), self.extra_head(F.relu(self.extra(x)))
        return self.head(x)


@dataclass(frozen=True)
class Case:
    """A network, what to call it with, and what is known of its spaces."""

    model: Callable[[], nn.Module]
    example: Callable[[], tuple[Tensor, ...]]
    num_prunable: int
    mixes_channels: bool = False
    """Some operation computes from all channels of a space (layer norm), or from the norm of one
    that would be zero (weight norm): zeroing is not cutting."""


def _image(channels: int = 3) -> tuple[Tensor, ...]:
    return (torch.randn(3, channels, 8, 8, generator=torch.Generator().manual_seed(1)),)


def _tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, 20, (3, 7), generator=torch.Generator().manual_seed(1)),)


def _pair() -> tuple[Tensor, ...]:
    return (*_image(1), torch.randn(3, 5, generator=torch.Generator().manual_seed(2)))


def _rows() -> tuple[Tensor, ...]:
    return (torch.randn(4, 6, generator=torch.Generator().manual_seed(1)),)


def _volume() -> tuple[Tensor, ...]:
    return (torch.randn(2, 1, 4, 4, 4, generator=torch.Generator().manual_seed(1)),)


CASES: Mapping[str, Case] = {
    "dense blocks": Case(DenseBlocks, _image, 3),
    "u-net": Case(UNet, lambda: _image(2), 7),
    "squeeze and excite": Case(SqueezeExcite, _image, 2),
    "convnext": Case(ConvNeXt, _image, 2, mixes_channels=True),
    "grouped": Case(Grouped, _image, 2, mixes_channels=True),
    "transformer": Case(Transformer, _tokens, 5, mixes_channels=True),
    "own attention": Case(OwnAttention, _tokens, 3, mixes_channels=True),
    "text cnn": Case(TextCNN, _tokens, 4),
    "tied": Case(Tied, _tokens, 1),
    "two inputs": Case(TwoInputs, _pair, 3),
    "shuffle": Case(Shuffle, _image, 3),
    "lstm": Case(Recurrent, _tokens, 2),
    "gru": Case(GatedRecurrent, _tokens, 2),
    "volume": Case(Volume, _volume, 2, mixes_channels=True),
    "generator": Case(Generator, _tokens, 3, mixes_channels=True),
    "branching": Case(Branching, _rows, 1),
    "auxiliary": Case(Auxiliary, lambda: _image(1), 2),
}
