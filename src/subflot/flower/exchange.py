"""Messages out, replies in, until a deadline."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from subflot.flower.decode import Refused

SHORTEST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two looks for replies; the wait grows while none come."""
K = TypeVar("K")


def exchange(
    grid: Grid, messages: Iterable[tuple[K, Message]], timeout: float
) -> Iterator[tuple[K, Message | Refused]]:
    """Send messages, and yield replies as they come, each with the key of its message.

    Who does not answer in time is not mentioned. The clock starts when all are sent.

    Args:
        grid: of Flower.
        messages: with keys; each is sent before the next is asked for.
        timeout: in seconds.
    """
    waiting: dict[str, K] = {}
    for key, message in messages:
        # The reply may carry another sender: what it answers is what counts.
        sent = [one for one in grid.push_messages([message]) if one]
        if sent:
            waiting[sent[0]] = key
        else:
            yield key, Refused("its node could not be reached")
    end, wait = time.monotonic() + timeout, SHORTEST_WAIT
    while waiting:
        came = [one for one in _pulled(grid, list(waiting)) if one[0] in waiting]
        for number, reply in came:
            yield waiting.pop(number), reply
        if not waiting or time.monotonic() >= end:
            return
        wait = SHORTEST_WAIT if came else min(LONGEST_WAIT, 1.5 * wait)
        time.sleep(min(wait, max(0.0, end - time.monotonic())))


def _pulled(grid: Grid, numbers: Sequence[str]) -> list[tuple[str, Message | Refused]]:
    """Ask for replies; one that cannot be read must not hide the others."""
    try:
        found = list(grid.pull_messages(numbers))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        if len(numbers) == 1:
            return [(numbers[0], Refused(f"its message cannot be read: {error}"))]
        return [one for number in numbers for one in _pulled(grid, [number])]
    return [(reply.metadata.reply_to_message_id, reply) for reply in found]
