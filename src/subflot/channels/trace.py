"""Find the channel map of any torch model by watching it run."""

import copy

from torch import nn

from subflot.channels.certify import wrong_spaces
from subflot.channels.draft import Draft
from subflot.channels.record import Example, Unrunnable, observe, on_meta
from subflot.channels.space import ChannelMap
from subflot.channels.trial import Trial
from subflot.errors import ChannelError


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
    template, device, draft = _observed(model, example)
    trial = Trial(template, example, device, draft)
    channels = trial.settle()
    while channels.prunable:
        wrong = wrong_spaces(model, example, channels)
        if not wrong:
            return channels
        trial.rejected |= wrong
        channels = trial.settle()
    reasons = "\n".join(f"  {space}: {reason}" for space, reason in channels.frozen.items())
    raise ChannelError(
        f"nothing in {type(model).__name__} can be cut; every channel space is frozen\n{reasons}",
        hint="a layer between two others, with only known operations around it, can be cut",
    )


def _observed(model: nn.Module, example: Example) -> tuple[nn.Module, str | None, Draft]:
    """Observe a model on the meta device, or on its own if it does not run without numbers."""
    try:
        template = on_meta(model)
        return template, "meta", Draft(template, observe(template, example, "meta"))
    except Unrunnable:
        pass
    template = copy.deepcopy(model)
    try:
        seen = observe(copy.deepcopy(template), example, None)
    except Unrunnable as error:
        raise ChannelError(
            f"{type(model).__name__} does not run on the example: {error.cause}",
            hint="the example is what the model is called with, batch included",
        ) from error.cause
    return template, None, Draft(template, seen)
