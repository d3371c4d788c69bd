"""Models that clients bring to a run, as files in a folder."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from subflot.errors import SubflotError
from subflot.weights import Weights, read_weights

SUFFIX = ".safetensors"


class Folder(Mapping[int, Weights]):
    """Client -> the weights in its file `ID.safetensors`, read when they are asked for."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise SubflotError(
                f"there is no folder {path}", hint="paths begin in the folder you are in"
            )
        names = [file.stem for file in self.path.glob(f"*{SUFFIX}")]
        odd = sorted(name for name in names if not (name.isascii() and name.isdigit()))
        if odd or not names:
            raise SubflotError(
                f"{path} names no client in {odd[0]}{SUFFIX}" if odd else f"{path} holds no models",
                hint=f"files are called as the client whose model they hold: 0{SUFFIX}, 1{SUFFIX}",
            )
        self._ids = sorted(map(int, names))

    def __getitem__(self, client: int) -> Weights:
        if client not in self._ids:
            raise KeyError(client)
        return read_weights(self.path / f"{client}{SUFFIX}")

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def digest(self) -> str:
        """Tell the models by their content."""
        seen = sha256()
        for client in self:
            data = (self.path / f"{client}{SUFFIX}").read_bytes()
            seen.update(f"{client} {len(data)} ".encode() + data)
        return seen.hexdigest()[:10]


def check_own(models: str, epochs: int, share: float, round: int) -> None:
    """See that settings about clients with models of their own have an effect.

    Args:
        models: the folder of the models.
        epochs: that clients train one alone.
        share: of all clients, those that do.
        round: in which they join.
    """
    if not 0 < share <= 1:
        raise SubflotError(f"owner_share is {share}", hint="above 0 and at most 1")
    if models and (epochs or share != 1):
        raise SubflotError(
            f"models are given in {models}, and others are to be trained",
            hint="leave out models, or own_epochs and owner_share",
        )
    if not (models or epochs) and (share != 1 or round != 1):
        raise SubflotError(
            "owner_share and own_round are about clients with a model of their own",
            hint="set own_epochs, or models",
        )
    if round > 1 and not models and share == 1:
        raise SubflotError(
            f"all clients join in round {round}, and nobody is there before",
            hint="set owner_share below 1",
        )
