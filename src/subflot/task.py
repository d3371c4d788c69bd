"""What is learned: a model of which every client trains a part, its loss, and how it is trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral, Real

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from subflot.channels import ChannelMap, build, trace
from subflot.channels.cost import Cost, cost_of
from subflot.channels.keep import prefix
from subflot.channels.resize import state_of, take
from subflot.data.federated import Examples
from subflot.errors import SubflotError
from subflot.weights import Weights

Loss = Callable[[Tensor, Tensor], Tensor]
Shapes = tuple[tuple[str, tuple[int, ...]], ...]

MOST_IDLE = 8
"""Widths of which modules are kept for the next client."""


@dataclass(frozen=True)
class LocalTraining:
    """How every client trains, whatever the method: stochastic gradient descent.

    Attributes:
        epochs: E, passes over the client's examples in a round.
        batch_size: B.
        learning_rate: eta.
        momentum: of the gradients of one round; every round starts without.
        weight_decay: pull of the weights to zero.
        max_norm: gradients longer than this are shortened to it; 0 leaves them.
    """

    epochs: int = 5
    batch_size: int = 32
    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    max_norm: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 0), ("batch_size", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise SubflotError(f"{name} is {value!r}", hint=f"a whole number, at least {least}")
        for name in ("learning_rate", "momentum", "weight_decay", "max_norm"):
            value = getattr(self, name)
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not 0 <= value < float("inf"):
                raise SubflotError(f"{name} is {value!r}", hint="zero or a positive number")


@dataclass(frozen=True, eq=False)
class Task:
    """A model that was traced, and how it is trained and judged.

    The weights are the architecture: a module of any width the map allows is made from them.
    """

    template: nn.Module
    """The full model; its weights are those of the start."""
    channels: ChannelMap
    example: Tensor
    """A batch of one input, for counting what a model costs."""
    local: LocalTraining = field(default_factory=LocalTraining)
    loss: Loss = F.cross_entropy
    """Of logits and labels, the mean over a batch."""
    device: str = "cpu"
    proxy: Examples | None = None
    """Examples that the server holds, for methods that need some."""
    _idle: dict[Shapes, list[nn.Module]] = field(default_factory=dict, repr=False)
    _costs: dict[Shapes, Cost] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example: Tensor,
        local: LocalTraining | None = None,
        *,
        loss: Loss = F.cross_entropy,
        device: str = "cpu",
    ) -> "Task":
        """Trace a model; `example` is a batch of its inputs."""
        check_device(device)
        channels = trace(model, example)
        return cls(model, channels, example[:1], local or LocalTraining(), loss, device)

    @cached_property
    def initial(self) -> Weights:
        """The weights before any training, on the CPU."""
        return {name: t.detach().cpu().clone() for name, t in state_of(self.template).items()}

    @cached_property
    def parameters(self) -> frozenset[str]:
        """The tensors that training changes; the others are statistics and counters."""
        return frozenset(n for n, p in self.template.named_parameters() if p.requires_grad)

    def narrow(self, weights: Weights, pruning_rate: float) -> Weights:
        """Cut the first channels of every space out of full weights."""
        return take(weights, self.channels, prefix(self.channels, pruning_rate))

    def build(self, weights: Weights) -> nn.Module:
        """Make a module of the width of its weights, on the task's device."""
        return build(self.template, self.channels, weights).to(self.device)

    @contextmanager
    def lend(self, weights: Weights) -> Iterator[nn.Module]:
        """Lend a module that holds these weights; it is used again when it comes back.

        Whoever borrows it copies out what shall last.
        """
        key = shapes(weights)
        idle = self._idle.setdefault(key, [])
        if idle:
            model = idle.pop()
            with torch.no_grad():
                for name, tensor in state_of(model).items():
                    tensor.copy_(weights[name])
        else:
            model = self.build(weights)
        yield model
        # Not after an error: nobody knows in which state it left the module.
        model.zero_grad(set_to_none=True)
        idle.append(model)
        self._idle[key] = self._idle.pop(key, idle)
        while len(self._idle) > MOST_IDLE:  # The widths that were not used for longest.
            del self._idle[next(iter(self._idle))]

    def cost(self, weights: Weights) -> Cost:
        """Count what the model of these weights costs; each width is counted once."""
        key = shapes(weights)
        if key not in self._costs:
            with self.lend(weights) as model:
                self._costs[key] = cost_of(model, self.example)
        return self._costs[key]

    def __getstate__(self) -> dict[str, object]:
        # Another process fills its own pool.
        return {**self.__dict__, "_idle": {}}


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise SubflotError(
            f"device is {device!r}: {reason}", hint="`cpu`, or `cuda` where torch finds a GPU"
        ) from None


def shapes(weights: Weights) -> Shapes:
    """What tells models of different widths apart."""
    return tuple((name, tuple(tensor.shape)) for name, tensor in weights.items())


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Copy a module's weights out, to the CPU."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in state_of(model).items()}
