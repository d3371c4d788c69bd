"""Run a model once and label the axes of every tensor it touches."""

import contextlib
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import CodeType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

import subflot.channels.rules  # noqa: F401 - registers them
from subflot.channels.axes import Axis, Reason, freeze, fresh, resolve
from subflot.channels.example import Example, arguments, moved, tensors_in
from subflot.channels.flow import Flow, Origin
from subflot.channels.operation import (
    Labels,
    Operation,
    apply,
    describe,
    labels_in,
)
from subflot.channels.resize import copied, state_of
from subflot.errors import ChannelError

MAX_DECISIONS = 16
"""How many of the numbers that a forward pass reads are tried the other way."""

aten = torch.ops.aten
KEEP_SHAPE = {
    *(aten.native_batch_norm.default, aten.relu.default, aten.hardtanh.default),
    *(aten.gelu.default, aten.silu.default, aten.sigmoid.default, aten.tanh.default),
}


class Mode(Enum):
    """How a model is run to be observed."""

    EVALUATION = "evaluation"
    TRAINING = "training"
    TRAINING_FIXED_NORMS = "training, with normalisation as in evaluation"
    """For an example of one: batch norm refuses to train on it."""


@dataclass
class Observation:
    """What one look at a running model has shown."""

    axes: dict[str, list[Axis]]
    """Tensor of the state dict -> its axes."""
    roles: dict[Origin, str] = field(default_factory=dict)
    attributes: dict[tuple[str, str], list[Axis]] = field(default_factory=dict)
    flows: list[Flow] = field(default_factory=list)
    flow_of: dict[Origin, Flow] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    """Tensors that no operation has read."""
    first_mode_shows_all: bool = True
    """Whether the modes after the first have added nothing."""


@dataclass(frozen=True)
class Subject:
    """A model to be observed, and how: a copy of the user's, on which device, in which modes."""

    template: nn.Module
    example: Example
    device: str | None
    """`meta` runs it without arithmetic; None runs it where its tensors lie."""
    modes: tuple[Mode, ...]
    foreign: frozenset[int]
    """Storages of the user's own model, which no copy should touch."""


class Unrunnable(Exception):  # noqa: N818 - not shown to users
    """The forward pass broke off: after how many operations, within which modules, and why."""

    def __init__(self, mode: Mode, step: int, modules: list[str], cause: Exception) -> None:
        super().__init__(str(cause))
        self.mode, self.step, self.modules, self.cause = mode, step, modules, cause

    @property
    def said(self) -> str:
        """The first line of the cause."""
        lines = str(self.cause).strip().splitlines()
        return lines[0] if lines else type(self.cause).__name__


class Recorder(TorchDispatchMode):
    """Applies the rules to every operation of a forward pass, while it runs."""

    def __init__(
        self,
        model: nn.Module,
        observation: Observation,
        labels: list[Labels],
        foreign: frozenset[int],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.observation = observation
        self.is_training = False
        self.step = 0
        self.decisions = 0
        self.flipped: int | None = None
        self.stack: list[str] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._foreign = foreign
        self._labels: dict[object, Labels] = {}
        self._alive: list[Tensor] = []
        self._functions: dict[CodeType, str] = {}
        for tensor, label in zip(state_of(model).values(), labels, strict=True):
            self.put(tensor, label)

    def put(self, tensor: Tensor, labels: Labels) -> None:
        """Label a tensor; it is kept so that its memory is not used for another."""
        labels.is_boolean = tensor.dtype == torch.bool
        labels.strides = tensor.stride() if tensor.layout == torch.strided else ()
        self._alive.append(tensor)
        self._labels[_key(tensor)] = labels

    def get(self, tensor: Tensor) -> Labels:
        """Labels of a tensor; one never seen before is a constant whose order matters."""
        key = _key(tensor)
        if key not in self._labels:
            if tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self._foreign:
                raise ChannelError(
                    "the forward pass of a copy uses tensors of the original model",
                    hint="a lambda, hook or closure refers to the model; use methods instead",
                )
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
        names = (argument.name for argument in func._schema.arguments)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        labelled = {name: self._label(value) for name, value in given.items() if value is not None}
        for used in labels_in(labelled):
            used.is_used = True
        self.step += 1
        out = _call(func, args, kwargs)
        if func is aten._local_scalar_dense.default:
            return self._decide(out)
        tensors = tensors_in(out)
        name, is_pointwise, is_random = describe(func)
        operation = Operation(
            name=name,
            args=labelled,
            shapes=[list(tensor.shape) for tensor in tensors],
            module=self.stack[-1] if self.stack else "",
            is_training=self.is_training,
            is_pointwise=is_pointwise,
            is_random=is_random,
            roles=self.observation.roles,
            attributes=self.observation.attributes,
            flows=self.observation.flows,
            flow_of=self.observation.flow_of,
        )
        results = apply(operation, custom=self._custom_function())
        for tensor, result in zip(tensors, results, strict=True):
            self.put(tensor, result)
        return out

    def _label(self, value: Any) -> Any:
        """An argument with labels in the place of its tensors."""
        if isinstance(value, Tensor):
            return self.get(value)
        return [self._label(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _custom_function(self) -> str:
        """Name of the user's autograd function that is running, if one is."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code is not _run.__code__:
            if frame.f_code not in self._functions:
                self._functions[frame.f_code] = _function_of(frame.f_code)
            if name := self._functions[frame.f_code]:
                return name
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def _decide(self, value: Any) -> Any:
        """A number that Python reads, and may branch on; one of them can be turned around."""
        self.decisions += 1
        if self.decisions - 1 != self.flipped:
            return value
        return not value if isinstance(value, bool) else -value


def _call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation; on the meta device common ones are spared a slow way to a known shape."""
    if function in KEEP_SHAPE and args[0].is_meta and args[0].is_floating_point():
        x = args[0]
        if function is aten.native_batch_norm.default:
            return torch.empty_like(x), x.new_empty(0), x.new_empty(0)
        return torch.empty_like(x)
    return function(*args, **kwargs)


def _key(tensor: Tensor) -> object:
    """What makes two tensor objects the same stretch of memory."""
    if tensor.layout != torch.strided:
        return id(tensor)
    storage = tensor.untyped_storage()._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _function_of(code: CodeType) -> str:
    """Name of the user's autograd function whose forward pass this code is, if it is one."""
    kinds: list[type] = list(torch.autograd.Function.__subclasses__())
    for kind in kinds:
        kinds += kind.__subclasses__()
        forward: Any = kind.forward  # type: ignore[attr-defined]
        while forward is not None and not kind.__module__.startswith("torch."):
            if getattr(forward, "__code__", None) is code:
                return kind.__name__
            forward = getattr(forward, "__wrapped__", None)
    return ""


def observe(model: nn.Module, subject: Subject, modes: Sequence[Mode] = ()) -> Observation:
    """Label the state dict of a model by running it.

    Args:
        model: a copy of the subject's template, perhaps of another size; running may change it.
        subject: what to call it with, and where.
        modes: in which modes to run it; all of the subject's if none is named.
    """
    state = state_of(model)
    labels: dict[int, Labels] = {}
    for name, tensor in state.items():
        axes = [fresh(size) for size in tensor.shape]
        origins: list[Origin | None] = [(name, axis) for axis in range(tensor.dim())]
        labels.setdefault(id(tensor), Labels(axes, origins))
    named = [labels[id(tensor)] for tensor in state.values()]
    observation = Observation({n: lab.axes for n, lab in zip(state, named, strict=True)})
    recorder = Recorder(model, observation, named, subject.foreign)
    shown: object = None
    for mode in modes or subject.modes:
        _run(recorder, model, subject, mode)
        # Numbers that Python reads may choose a path; the other paths tie channels too.
        for decision in range(min(recorder.decisions, MAX_DECISIONS)):
            with contextlib.suppress(Unrunnable):
                _run(recorder, model, subject, mode, flipped=decision)
        shown = shown or _layout(named)
    observation.first_mode_shows_all = shown == _layout(named)
    for name, label in zip(state, named, strict=True):
        if not label.is_used:
            observation.unused.append(name)
            for axis in label.axes:
                freeze(axis, Reason("never used in the forward pass"))
    return observation


def _layout(labels: Iterable[Labels]) -> object:
    """What is known of some tensors: it changes with every new fact. Scalars have no axes."""
    return [
        (label.is_used, [[[(id(a), a.reason) for a in p] for p in resolve(x)] for x in label.axes])
        for label in labels
        if label.axes
    ]


def _run(
    recorder: Recorder,
    model: nn.Module,
    subject: Subject,
    mode: Mode,
    flipped: int | None = None,
) -> None:
    model.train(mode is not Mode.EVALUATION)
    if mode is Mode.TRAINING_FIXED_NORMS:
        for module in model.modules():
            if isinstance(module, _NormBase):
                module.eval()
    recorder.is_training = mode is not Mode.EVALUATION
    recorder.step, recorder.stack, recorder.decisions, recorder.flipped = 0, [], 0, flipped
    place = torch.device("meta") if subject.device == "meta" else _without_mkldnn()
    args, kwargs = arguments(moved(subject.example, subject.device))
    for tensor in tensors_in((args, kwargs)):
        reason = Reason("input")
        recorder.put(tensor, Labels([fresh(size, reason) for size in tensor.shape]))
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # It hides attention in one operation.
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            place,
            recorder.watching_modules(),
            recorder,
        ):
            out = tensors_in(model(*args, **kwargs))
    except ChannelError:
        raise
    except Exception as cause:
        raise Unrunnable(mode, recorder.step, recorder.stack, cause) from cause
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    if not out:
        raise ChannelError(
            f"{type(model).__name__} returns no tensor that can be seen",
            hint="return tensors, or lists, dicts or dataclasses of them",
        )
    for tensor in out:
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


def on_meta(model: nn.Module) -> nn.Module:
    """Copy a model without its numbers."""
    state = {name: tensor.to("meta") for name, tensor in state_of(model).items()}
    return copied(model, state, lambda loose: loose.detach().to("meta"))


def storages(model: nn.Module) -> frozenset[int]:
    """What tells the memory of a model's tensors from any other."""
    tensors = [*model.parameters(), *model.buffers()]
    return frozenset(t.untyped_storage()._cdata for t in tensors if t.layout == torch.strided)
