"""Federated learning in which every client trains a model of its own size."""

from subflot.channels import ChannelMap, Channels, Segment, build, put, take, trace
from subflot.errors import ChannelError, SubflotError

__all__ = [
    "ChannelError",
    "ChannelMap",
    "Channels",
    "Segment",
    "SubflotError",
    "build",
    "put",
    "take",
    "trace",
]
