from subflot.transport.distance import distances
from subflot.transport.plan import Plan, average, identity
from subflot.transport.solve import solve

__all__ = ["Plan", "average", "distances", "identity", "solve"]
