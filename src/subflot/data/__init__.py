"""Data sets: fetched, checked, cached, and divided among clients."""

from subflot.data.dataset import Dataset
from subflot.data.sets import SETS, find, load

__all__ = ["SETS", "Dataset", "find", "load"]
