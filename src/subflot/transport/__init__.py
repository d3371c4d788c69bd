from subflot.transport.align import Alignment, align
from subflot.transport.batch import align_all
from subflot.transport.diagnose import Diagnosis, diagnose, draw
from subflot.transport.distance import distances
from subflot.transport.merge import RunningMean, fuse
from subflot.transport.plan import Plan, average, identity
from subflot.transport.solve import solve

__all__ = [
    "Alignment",
    "Diagnosis",
    "Plan",
    "RunningMean",
    "align",
    "align_all",
    "average",
    "diagnose",
    "distances",
    "draw",
    "fuse",
    "identity",
    "solve",
]
