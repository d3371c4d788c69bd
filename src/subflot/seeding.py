"""Named random streams: what is drawn depends on a seed and names, never on the order of calls."""

from hashlib import sha256

import numpy as np
import torch


def generator(seed: int, *names: str | int) -> torch.Generator:
    """Return a torch generator on the CPU that belongs to the seed and the names alone.

    Example:
        >>> one, same = generator(0, "kept", 7), generator(0, "kept", 7)
        >>> torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=same))
        True
    """
    # torch fills its state on the CPU from the low 32 bits of a seed. Among a hundred thousand
    # streams two may thus be alike, which does no harm between unrelated purposes.
    return torch.Generator().manual_seed(_digest(seed, names) % 2**64)


def numpy_generator(seed: int, *names: str | int) -> np.random.Generator:
    """Return a numpy generator that belongs to the seed and the names alone.

    Example:
        >>> int(numpy_generator(0, "partition").integers(1000))
        29
    """
    return np.random.Generator(np.random.PCG64(_digest(seed, names)))


def _digest(seed: int, names: tuple[str | int, ...]) -> int:
    """Condense seed and names into 256 bits; unlike names, order or kinds give unlike numbers."""
    digest = sha256()
    for part in (seed, *names):
        kind = b"s" if isinstance(part, str) else b"i"
        # numpy's integers and Python's count alike; a fraction is refused.
        text = part if isinstance(part, str) else f"{part.__index__()}"
        encoded = text.encode()
        # With its length before it, no text can be mistaken for two shorter ones.
        digest.update(kind + len(encoded).to_bytes(8, "big") + encoded)
    return int.from_bytes(digest.digest(), "big")
