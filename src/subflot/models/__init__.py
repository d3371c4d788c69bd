"""The networks of the paper and a small one, by name. None of them knows about federation."""

from collections.abc import Mapping
from functools import partial

from subflot.errors import UnknownName
from subflot.models.digit5 import Digit5CNN
from subflot.models.digits import DigitsCNN
from subflot.models.fasttext import FastText
from subflot.models.har import HARCNN
from subflot.models.mobilenet import MobileNetV2
from subflot.models.network import Network
from subflot.models.resnet import ResNet18
from subflot.models.vgg import VGG11

__all__ = [
    "HARCNN",
    "MODELS",
    "VGG11",
    "Digit5CNN",
    "DigitsCNN",
    "FastText",
    "MobileNetV2",
    "Network",
    "ResNet18",
    "find",
]

MODELS: Mapping[str, Network] = {
    "vgg11": Network(
        VGG11,
        10,
        (3, 32, 32),
        None,
        "VGG11 with batch norm, for 32x32 images (ICLR 2015)",
    ),
    "vgg11-plain": Network(
        partial(VGG11, batch_norm=False),
        10,
        (3, 32, 32),
        None,
        "VGG11 without batch norm, for 32x32 images (ICLR 2015)",
    ),
    "mobilenetv2": Network(
        MobileNetV2,
        10,
        (3, 32, 32),
        None,
        "MobileNetV2 with ImageNet strides (CVPR 2018)",
    ),
    "resnet18": Network(
        ResNet18,
        10,
        (3, 32, 32),
        None,
        "ResNet18 with the ImageNet stem (CVPR 2016)",
    ),
    "digit5cnn": Network(
        Digit5CNN, 10, (3, 32, 32), None, "convolutional network for Digit-5 (ICML 2021)"
    ),
    "harcnn": Network(
        partial(HARCNN, signals=9),
        6,
        (9, 1, 128),
        None,
        "convolution along time over sensor signals (MobiCASE 2014)",
    ),
    "harcnn-watch": Network(
        partial(HARCNN, signals=6), 7, (6, 1, 128), None, "the same for a smartwatch's six signals"
    ),
    "fasttext": Network(
        FastText, 4, (64,), 32000, "mean word embedding and two linear layers (EACL 2017)"
    ),
    "digits-cnn": Network(
        DigitsCNN, 10, (1, 8, 8), None, "small network for scikit-learn's 8x8 digits"
    ),
}


def find(name: str) -> Network:
    """The network registered as `name`; an unknown name is an error that offers the nearest.

    Example:
        >>> network = find("harcnn")
        >>> network.model()(network.example(batch=5)).shape
        torch.Size([5, 6])
    """
    try:
        return MODELS[name]
    except KeyError:
        raise UnknownName("model", name, MODELS, "subflot cost --help") from None
