"""What each ATen operation does to the axes of its inputs; importing this registers the rules."""

from subflot.channels.rules import along, elementwise, layers, positions, shapes

__all__ = ["along", "elementwise", "layers", "positions", "shapes"]
