"""fastText, the bag-of-words text classifier.

Paper: "Bag of Tricks for Efficient Text Classification", EACL 2017.
"""

from torch import Tensor, nn

from subflot.models.width import scaled

PADDING = 0


class FastText(nn.Module):
    """The mean embedding of the tokens, then two linear layers; input (batch, length) integers.

    As in the paper there is no activation anywhere: embedding, mean, linear, linear. Token 0 is
    padding and counts for nothing; a text of padding alone has the mean zero. Starts from torch's
    default initialisation, not from fastText's much smaller embeddings, which need its far larger
    learning rates.

    Args:
        num_classes: outputs of the last layer.
        vocabulary: number of tokens, padding included.
        dim: embedding dimensions, and inputs and outputs of the first linear layer.
        width: share of these dimensions.
    """

    def __init__(
        self, num_classes: int = 4, vocabulary: int = 32000, dim: int = 512, width: float = 1.0
    ) -> None:
        super().__init__()
        dim = scaled(dim, width)
        self.embedding = nn.Embedding(vocabulary, dim, padding_idx=PADDING)
        self.hidden = nn.Linear(dim, dim)
        self.classifier = nn.Linear(dim, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, shape (batch, classes)."""
        is_real = (tokens != PADDING).unsqueeze(-1)
        # Masked although the padding's row starts at zero: merged weights need not keep it there.
        total = (self.embedding(tokens) * is_real).sum(dim=1)
        mean = total / is_real.sum(dim=1).clamp(min=1)
        logits: Tensor = self.classifier(self.hidden(mean))
        return logits
