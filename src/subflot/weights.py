"""Named tensors: how large they are, and how they are read from and written to files."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from subflot.errors import SubflotError
from subflot.texts import checksum, sync

Weights = Mapping[str, Tensor]
"""A state dict, read-only by convention."""
DESCRIPTION = "description"
"""The entry of a file's metadata that holds all texts."""
CHECKSUM = "checksum"
"""The text by which a file's damage shows; files from before there was one have none."""

LENGTH = 8
"""Bytes at the start of a file that say how long its header is."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What files call the types that models have."""


def num_bytes(weights: Weights) -> int:
    """Bytes that the tensors take when sent as they are."""
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; its pages are mapped, not copied, until they are used."""
    return read_described(path)[0]


def read_described(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file and the description that was written with it.

    A file that is not as it was written is an error.
    """
    if not path.is_file():
        raise SubflotError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:  # It sees to it that all offsets fit.
            texts = json.loads((file.metadata() or {}).get(DESCRIPTION, "{}"))
            known = texts.pop(CHECKSUM, None)
            weights = dict(_mapped(path, file))
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise SubflotError(f"{path} is not a safetensors file: {error}") from None
    if known is not None and known != (found := _checksum(weights, texts)):
        raise SubflotError(f"{path} is damaged: its checksum is {found}, and was {known}")
    return weights, texts


def _mapped(path: Path, file: Any) -> Iterator[tuple[str, Tensor]]:
    """Map the tensors of a file that was found sound, in the order in which it has them.

    The library's own way of getting a tensor keeps some memory each time.
    """
    with path.open("rb") as opened:
        start = int.from_bytes(opened.read(LENGTH), "little")
        header = json.loads(opened.read(start))
    bytes_of = torch.UntypedStorage.from_file(str(path), False, path.stat().st_size)
    for name in file.keys():  # noqa: SIM118
        said = header[name]
        if said["dtype"] not in DTYPES:
            yield name, file.get_tensor(name)
            continue
        first, last = (LENGTH + start + offset for offset in said["data_offsets"])
        raw = torch.empty(0, dtype=torch.uint8).set_(bytes_of[first:last])
        yield name, raw.view(DTYPES[said["dtype"]]).reshape(said["shape"])


def _checksum(weights: Weights, texts: Mapping[str, str]) -> str:
    """Sum up all that a file says, in no order of its own."""
    found = checksum(json.dumps(dict(texts), sort_keys=True).encode())
    for name, tensor in sorted(weights.items()):
        found = checksum(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = checksum(tensor.reshape(-1).view(torch.uint8).numpy().data, found)
    return found


def write_weights(
    path: Path,
    weights: Weights,
    description: Mapping[str, str] | None = None,
    *,
    is_lasting: bool = True,
) -> None:
    """Write a safetensors file, whole or not at all; a file of that name is replaced.

    Tensors that share memory, such as tied layers, are written one by one.

    Args:
        path: in a folder that exists.
        weights: what is written.
        description: texts that are kept with it.
        is_lasting: wait until the file would survive a loss of power, and give it a checksum.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    memory: set[int] = set()
    written = {}
    for name, tensor in weights.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        # A file holds what a tensor shows, not the larger storage that it may be a view of.
        is_own = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in memory
        written[name] = tensor if is_own else tensor.clone()
        memory.add(storage.data_ptr())
    try:
        texts = dict(description or {})
        if is_lasting:
            texts[CHECKSUM] = _checksum(written, texts)
        # One entry alone: several have no fixed order, and equal weights are equal files.
        text = json.dumps(texts, sort_keys=True)
        save_file(written, part, metadata={DESCRIPTION: text} if texts else None)
        if is_lasting:
            sync(part)
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise SubflotError(f"cannot write {path}: {error}") from None
    finally:
        part.unlink(missing_ok=True)
