"""Run a model once and label the axes of every tensor it touches."""

import contextlib
import copy
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import subflot.channels.rules  # noqa: F401 - registers them
from subflot.channels.axes import Axis, Reason, freeze, fresh
from subflot.channels.operation import (
    Labels,
    Operation,
    Origin,
    apply,
    describe,
    labels_in,
    opaque,
)
from subflot.channels.resize import state_of

Example = Tensor | Sequence[Any] | Mapping[str, Any]
"""What a model is called with: one tensor, positional arguments, or named ones."""

MAX_DECISIONS = 16
"""How many of the numbers that a forward pass reads are tried the other way."""

APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


@dataclass
class Observation:
    """What one look at a running model has shown."""

    axes: dict[str, list[Axis]]
    """Tensor of the state dict -> its axes."""
    roles: dict[Origin, str] = field(default_factory=dict)
    attributes: dict[tuple[str, str], list[Axis]] = field(default_factory=dict)


class Unrunnable(Exception):  # noqa: N818 - not shown to users
    """The forward pass broke off: after how many operations, within which modules, and why."""

    def __init__(self, step: int, modules: list[str], cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {str(cause).strip().splitlines()[0:1]}")
        self.step, self.modules, self.cause = step, modules, cause


class Recorder(TorchDispatchMode):
    """Applies the rules to every operation of a forward pass, while it runs."""

    def __init__(self, model: nn.Module, observation: Observation, labels: list[Labels]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observation = observation
        self.is_training = False
        self.step = 0
        self.decisions = 0
        self.flipped: int | None = None
        self.stack: list[str] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._labels: dict[object, Labels] = {}
        self._alive: list[Tensor] = []
        for tensor, label in zip(state_of(model).values(), labels, strict=True):
            self.put(tensor, label)

    def put(self, tensor: Tensor, labels: Labels) -> None:
        """Label a tensor; it is kept so that its memory is not used for another."""
        labels.is_boolean = tensor.dtype == torch.bool
        self._alive.append(tensor)
        self._labels[_key(tensor)] = labels

    def get(self, tensor: Tensor) -> Labels:
        """Labels of a tensor; one never seen before is a constant whose order matters."""
        key = _key(tensor)
        if key not in self._labels:
            reason = Reason(
                "a tensor that is not in the state dict",
                module=self.stack[-1] if self.stack else "",
            )
            self.put(tensor, Labels([fresh(size, reason) for size in tensor.shape]))
        return self._labels[key]

    @contextlib.contextmanager
    def watching_modules(self) -> Iterator[None]:
        """Know at any time which module runs. After an exception the stack stays as it was."""

        def enter(module: nn.Module, _: object) -> None:
            self.stack.append(self._names.get(id(module), type(module).__name__))

        def leave(*_: object) -> None:
            self.stack.pop()

        handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        labelled = tree_map(
            lambda leaf: self.get(leaf) if isinstance(leaf, Tensor) else leaf, (args, kwargs)
        )
        for used in labels_in(labelled):
            used.is_used = True
        self.step += 1
        out = _call(func, args, kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._decide(out)
        tensors = _tensors(out)
        names = [argument.name for argument in func._schema.arguments]
        bound = {**dict(zip(names, labelled[0], strict=False)), **labelled[1]}
        name, is_pointwise, is_random = describe(func)
        operation = Operation(
            name=name,
            args={key: value for key, value in bound.items() if value is not None},
            shapes=[list(tensor.shape) for tensor in tensors],
            module=self.stack[-1] if self.stack else "",
            is_training=self.is_training,
            is_pointwise=is_pointwise,
            is_random=is_random,
            roles=self.observation.roles,
            attributes=self.observation.attributes,
        )
        custom = _custom_function()
        if custom:
            operation.name = custom
            results = opaque(operation, "a custom autograd function")
        else:
            results = apply(operation)
        for tensor, result in zip(tensors, results, strict=True):
            self.put(tensor, result)
        return out

    def _decide(self, value: Any) -> Any:
        """A number that Python reads, and may branch on; one of them can be turned around."""
        self.decisions += 1
        if self.decisions - 1 != self.flipped:
            return value
        return not value if isinstance(value, bool) else -value


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation; on the meta device batch norm is spared its slow way to a known shape."""
    if function is torch.ops.aten.native_batch_norm.default and args[0].is_meta:
        x = args[0]
        return torch.empty_like(x), x.new_empty(0), x.new_empty(0)
    return function(*args, **kwargs)


def _key(tensor: Tensor) -> object:
    """What makes two tensor objects the same stretch of memory."""
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _custom_function() -> str:
    """Name of the user's autograd function that is running, if one is."""
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code is APPLY:
            function = frame.f_locals["cls"]
            if not function.__module__.startswith("torch."):
                return str(function.__name__)
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def observe(model: nn.Module, example: Example, device: str | None) -> Observation:
    """Label the state dict of a model by running it, in evaluation and in training mode.

    Args:
        model: it is run and may be changed by that; give a copy.
        example: what to call it with.
        device: `meta` runs it without arithmetic; None runs it where its tensors lie.
    """
    state = state_of(model)
    labels: dict[int, Labels] = {}
    for name, tensor in state.items():
        axes = [fresh(size) for size in tensor.shape]
        origins: list[Origin | None] = [(name, axis) for axis in range(tensor.dim())]
        labels.setdefault(id(tensor), Labels(axes, origins))
    named = [labels[id(tensor)] for tensor in state.values()]
    observation = Observation({n: lab.axes for n, lab in zip(state, named, strict=True)})
    recorder = Recorder(model, observation, named)
    _run(recorder, model, example, device, is_training=False)
    # Paths not taken here tie channels too: those of other numbers, and those of training.
    for decision in range(min(recorder.decisions, MAX_DECISIONS)):
        recorder.flipped = decision
        with contextlib.suppress(Unrunnable):
            _run(recorder, model, example, device, is_training=False)
    recorder.flipped = None
    with contextlib.suppress(Unrunnable):  # A batch of one may not train at all.
        _run(recorder, model, example, device, is_training=True)
    for labels_of_tensor in named:
        if not labels_of_tensor.is_used:
            for axis in labels_of_tensor.axes:
                freeze(axis, Reason("never used in the forward pass"))
    return observation


def _run(
    recorder: Recorder,
    model: nn.Module,
    example: Example,
    device: str | None,
    *,
    is_training: bool,
) -> None:
    model.train(is_training)
    recorder.is_training = is_training
    recorder.step, recorder.stack, recorder.decisions = 0, [], 0
    place = torch.device("meta") if device == "meta" else _without_mkldnn()
    args, kwargs = arguments(moved(example, device))
    for tensor in _tensors((args, kwargs)):
        reason = Reason("input")
        recorder.put(tensor, Labels([fresh(size, reason) for size in tensor.shape]))
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # It hides attention in one operation.
    try:
        with (
            torch.no_grad(),
            place,
            recorder.watching_modules(),
            recorder,
        ):
            out = model(*args, **kwargs)
    except Exception as cause:
        raise Unrunnable(recorder.step, recorder.stack, cause) from cause
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    for tensor in outputs(out):
        labels = recorder.get(tensor)
        for axis in [*labels.axes, *labels.positions]:
            freeze(axis, Reason("output"))


@contextlib.contextmanager
def _without_mkldnn() -> Iterator[None]:
    """Run an LSTM step by step; mkldnn hides it in one operation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of devices that the switch is not about.
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a model is called with an example."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return ((example,) if isinstance(example, Tensor) else tuple(example)), {}


def moved(example: Example, device: str | None = None, dtype: torch.dtype | None = None) -> Example:
    """A copy of an example, on another device or in another precision if asked."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        wanted = dtype if leaf.is_floating_point() else None
        return leaf.detach().to(device, wanted, copy=True)

    result: Example = tree_map(move, example)
    return result


def outputs(result: object) -> list[Tensor]:
    """All tensors in what a model returned, however they are wrapped."""
    return _tensors(result)


def _tensors(tree: object) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping):
        return [tensor for value in tree.values() for tensor in _tensors(value)]
    if isinstance(tree, list | tuple | set):
        return [tensor for value in tree for tensor in _tensors(value)]
    if hasattr(tree, "__dict__") and not isinstance(tree, type | nn.Module):
        return [tensor for value in vars(tree).values() for tensor in _tensors(value)]
    return []


def on_meta(model: nn.Module) -> nn.Module:
    """Copy a model without its numbers."""
    memo: dict[int, object] = {}
    for module in model.modules():
        for owned in (module._parameters, module._buffers, vars(module)):
            for value in owned.values():
                if isinstance(value, nn.Parameter):
                    memo[id(value)] = nn.Parameter(value.detach().to("meta"), value.requires_grad)
                elif isinstance(value, Tensor):
                    memo[id(value)] = value.detach().to("meta")
    return copy.deepcopy(model, memo)
