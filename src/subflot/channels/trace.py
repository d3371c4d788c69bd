"""Find the channel map of any torch model by watching it run."""

from dataclasses import replace

import torch
from torch import nn

from subflot.channels.certify import Certificate
from subflot.channels.draft import Draft
from subflot.channels.example import Example
from subflot.channels.invariance import Invariance
from subflot.channels.record import (
    Mode,
    Subject,
    Unrunnable,
    observe,
    on_meta,
    storages,
)
from subflot.channels.resize import copied, state_of
from subflot.channels.space import ChannelMap
from subflot.channels.trial import Trial
from subflot.errors import ChannelError
from subflot.threads import one_thread

EVALUATION = (Mode.EVALUATION,)
WITH_TRAINING = (
    (Mode.EVALUATION, Mode.TRAINING),
    (Mode.EVALUATION, Mode.TRAINING_FIXED_NORMS),
)


@one_thread()
def trace(model: nn.Module, example: Example) -> ChannelMap:
    """Find which axes of which tensors of a model share channels.

    The model runs once without arithmetic, and each operation says which axes are the same; an
    operation without a rule freezes what it touches. The map is then tried out at other sizes
    and certified on the real weights. The model itself is not changed.

    Args:
        model: any module; it is traced in evaluation and in training mode.
        example: what to call it with, batch included: a tensor, positional or named arguments.

    Raises:
        ChannelError: the model does not run, or nothing in it can be cut.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise ChannelError(
            "a scripted module cannot be resized", hint="trace and build first, script afterwards"
        )
    trial = Trial(*_observed(model, example))
    channels = trial.settle()
    while channels.prunable:
        certificate = Certificate(model, example, channels)
        wrong = certificate.wrong_spaces()
        if not wrong:
            found = trial.draft.with_shares(trial.with_least(certificate.lonely_spaces()))
            return replace(found, scaled=Invariance(certificate).scaled_inputs(found))
        trial.rejected |= wrong
        channels = trial.settle()
    reasons = "\n".join(f"  {space}: {reason}" for space, reason in channels.frozen.items())
    raise ChannelError(
        f"nothing in {type(model).__name__} can be cut; every channel space is frozen\n{reasons}",
        hint="a layer between two others, with only known operations around it, can be cut",
    )


def _observed(model: nn.Module, example: Example) -> tuple[Subject, Draft]:
    """Observe a model without arithmetic if that shows all, else where it lies.

    Parts that only training uses tie channels too. A model that cannot be run in training is
    taken as it is in evaluation, if that uses all of it.
    """
    seen = None
    for device in ("meta", None):
        template = on_meta(model) if device == "meta" else _copy(model)
        for modes in (*WITH_TRAINING, EVALUATION):
            subject = Subject(template, example, device, modes, storages(model))
            try:
                observation = observe(_copy(template), subject)
            except Unrunnable as error:
                failure = error
                if error.mode is Mode.EVALUATION:
                    break
                continue
            seen = (subject, Draft(template, observation))
            if modes is not EVALUATION:
                return seen
    if seen is None:
        raise ChannelError(
            f"{type(model).__name__} does not run on the example: {failure.cause}",
            hint="the example is what the model is called with, batch included",
        ) from failure.cause
    unused = seen[1].observation.unused
    if unused:
        raise ChannelError(
            f"`{unused[0]}` is not used in evaluation, and {type(model).__name__} does not run on "
            f"the example in training: {failure.cause}",
            hint="give an example that also works in training",
        ) from failure.cause
    return seen


def _copy(model: nn.Module) -> nn.Module:
    tensors = {name: tensor.detach().clone() for name, tensor in state_of(model).items()}
    return copied(model, tensors, lambda loose: loose.detach().clone())
