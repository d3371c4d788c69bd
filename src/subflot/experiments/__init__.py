"""Runs by their settings: what is run, where its record lies, and what is chosen by trials."""

from subflot.experiments.config import RunConfig
from subflot.experiments.runner import run

__all__ = ["RunConfig", "run"]
