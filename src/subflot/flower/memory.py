"""What a client remembers stays with it, in a folder of its own.

The server says which round's memory counts, for only the server knows whether an upload was
accepted and its round saved. So the client keeps that one and the newest, and forgets the rest.
"""

from pathlib import Path

from subflot.algorithms.base import Memory
from subflot.simulation.store import Manifest, Store, file_of


def recall(folder: Path, client: int, round: int) -> Memory:
    """Read what a client remembered after a round; nothing if that is lost."""
    file = file_of("memory", client, round)
    if not round or not (folder / file).is_file():
        return {}
    return Store(folder).memory(Manifest(round, memory={str(client): file}), client)


def remember(folder: Path, client: int, round: int, memory: Memory, counting: int) -> None:
    """Keep what a client remembers since this round, beside what counted before it."""
    place = folder / "memory"
    place.mkdir(parents=True, exist_ok=True)
    named = {Path(file_of("memory", client, one)).name for one in (round, counting)}
    for path in place.glob(f"{client}-*.safetensors"):
        if path.name not in named:
            path.unlink(missing_ok=True)
    if memory:
        Store(folder).keep("memory", client, round, memory)
