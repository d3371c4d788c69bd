"""A model named on the command line: one of ours, or a class in the user's own file."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from subflot.errors import SubflotError
from subflot.models import find

INPUT_HINT = "write the shape of one example without its batch, as in 3,32,32; tokens as 128:int"


def load(
    target: str, inputs: Sequence[str] = (), num_classes: int | None = None, batch: int = 2
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Build a model and an example to call it with.

    Args:
        target: a bundled name, `FILE.py:NAME` or `package.module:NAME`, where NAME is a class or
            function that can be called without arguments, or a module object.
        inputs: shapes of one example, one per argument of the model; needed for a user's model.
        num_classes: for bundled models; None takes the usual number.
        batch: examples per input.
    """
    example = tuple(_input(spec, batch) for spec in inputs)
    if ":" not in target:
        network = find(target)
        return network.model(num_classes), example or (network.example(batch),)
    if not inputs:
        raise SubflotError(f"which input does `{target}` take?", hint=f"add --input: {INPUT_HINT}")
    path, _, name = target.rpartition(":")
    found = getattr(_module(path), name, None)
    if found is None:
        raise SubflotError(f"there is no `{name}` in {path}")
    try:
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:
        raise SubflotError(
            f"`{name}()` failed: {error}",
            hint="the class is built without arguments; wrap it in a function that passes them",
        ) from error
    if not isinstance(model, nn.Module):
        raise SubflotError(f"`{target}` gives a {type(model).__name__}, not a torch module")
    return model, example


def digest(target: str) -> str:
    """Tell the file of a user's model by its content; what it imports does not count.

    Args:
        target: `FILE.py:NAME` or `package.module:NAME`.
    """
    return sha256(_file(target.rpartition(":")[0]).read_bytes()).hexdigest()[:10]


def _file(path: str) -> Path:
    """Find the file that a module is read from."""
    if path.endswith(".py"):
        if not Path(path).is_file():
            raise SubflotError(
                f"there is no file {path}", hint="paths begin in the folder you are in"
            )
        return Path(path)
    try:
        spec = importlib.util.find_spec(path)
    except Exception as error:  # It imports the packages that hold the module.
        raise SubflotError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise SubflotError(f"there is no module {path}", hint="a file is named as FILE.py:NAME")
    return Path(spec.origin)


def _module(path: str) -> ModuleType:
    try:
        if not path.endswith(".py"):
            return importlib.import_module(path)
        file = _file(path)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(file.stem, module)  # Dataclasses and pickles look there.
        sys.path.insert(0, str(file.parent))  # For what it imports from beside itself.
        spec.loader.exec_module(module)
    except SubflotError:
        raise
    except Exception as error:
        raise SubflotError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    return module


def _input(spec: str, batch: int) -> Tensor:
    """Random numbers of a shape as written on the command line.

    Example:
        >>> _input("3,8,8", batch=2).shape, _input("5:int:100", batch=1).dtype
        (torch.Size([2, 3, 8, 8]), torch.int64)
    """
    shape, *kind = spec.split(":")
    try:
        sizes = [int(size) for size in shape.split(",") if size.strip()]
        below = int(kind[1]) if len(kind) > 1 else 2
    except ValueError:
        sizes, below = [0], 0
    if min(sizes, default=1) < 1 or below < 1 or len(kind) > 2 or kind[:1] not in ([], ["int"]):
        raise SubflotError(f"`{spec}` is not the shape of an input", hint=INPUT_HINT)
    generator = torch.Generator().manual_seed(0)
    if kind:
        return torch.randint(0, below, (batch, *sizes), generator=generator)
    return torch.randn((batch, *sizes), generator=generator)
