"""He et al., "Delving Deep into Rectifiers", ICCV 2015: weights that keep the signal's scale."""

from torch import nn


def initialise_convs(model: nn.Module) -> None:
    """Draw every convolution from He's normal distribution by fan-out; its biases start at zero."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def initialise_classifier(classifier: nn.Linear) -> None:
    """Start a classifier near zero, so that the first predictions are close to uniform."""
    nn.init.normal_(classifier.weight, std=0.01)
    nn.init.zeros_(classifier.bias)
