"""Rounds on one machine."""

from subflot.simulation.simulate import Round, simulate

__all__ = ["Round", "simulate"]
