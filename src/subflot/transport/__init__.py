from subflot.transport.align import Alignment, align
from subflot.transport.distance import distances
from subflot.transport.plan import Plan, average, identity
from subflot.transport.solve import solve

__all__ = ["Alignment", "Plan", "align", "average", "distances", "identity", "solve"]
