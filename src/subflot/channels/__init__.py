from subflot.channels.resize import build, put, take
from subflot.channels.space import ChannelMap, Channels, Segment
from subflot.channels.trace import trace

__all__ = ["ChannelMap", "Channels", "Segment", "build", "put", "take", "trace"]
