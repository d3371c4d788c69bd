"""Where the channels that reach a tensor come from, as shares of the layers that make them.

A residual sum has channels from several layers. Whoever aligns those layers one by one needs to
know, for each tensor behind the sum, how much of each it sees: the paper averages over the branches
of every sum, so a branch counts half, and one that went through two sums a quarter.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from subflot.channels.axes import Axis

Origin = tuple[str, int]
"""Name and axis of a tensor in the state dict."""
Shares = Mapping[Origin, float]
"""Layers that make channels -> their shares, which add up to one."""


@dataclass(eq=False)
class Flow:
    """What an operation passes on: channels that its own weights make, or those that entered."""

    parts: tuple["Flow", ...] = ()
    """The flows that enter, each counted alike."""
    makers: list[Origin] = field(default_factory=list)
    entering: list[Axis] = field(default_factory=list)
    """Axes of what enters: a space among them passes through and is not made anew."""


def merged(flows: Iterable[Flow | None]) -> Flow | None:
    """The flow of a result to which several tensors contribute."""
    parts = tuple(dict.fromkeys(flow for flow in flows if flow is not None))
    return parts[0] if len(parts) == 1 else Flow(parts) if parts else None


def trace_shares(
    flows: Iterable[Flow], made: Mapping[Origin, Iterable[str]], spaces_of: Mapping[int, set[str]]
) -> dict[Flow, dict[str, dict[Origin, float]]]:
    """Find, for every flow and space, the shares of the layers behind it.

    Args:
        flows: in the order in which they arose.
        made: the spaces on the axis that faces outwards, of every layer.
        spaces_of: by the id of a flow, the spaces that enter it.
    """
    shares: dict[Flow, dict[str, dict[Origin, float]]] = {}
    for flow in flows:
        own: dict[str, dict[Origin, float]] = {}
        for space in dict.fromkeys(s for part in flow.parts for s in shares[part]):
            own[space] = _mean(
                [shares[part][space] for part in flow.parts if space in shares[part]]
            )
        for maker in flow.makers:
            for space in made.get(maker, ()):
                if space not in spaces_of[id(flow)]:
                    own[space] = {maker: 1.0}
        shares[flow] = own
    return shares


def _mean(branches: list[dict[Origin, float]]) -> dict[Origin, float]:
    if len(branches) == 1:
        return branches[0]
    total: dict[Origin, float] = {}
    for branch in branches:
        for maker, share in branch.items():
            total[maker] = total.get(maker, 0.0) + share / len(branches)
    return total
