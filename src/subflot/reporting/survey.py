"""What the models of runs tell beside their records, as the report page takes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Space:
    """Channels that are cut together."""

    name: str
    channels: int
    kept: tuple[int, ...]
    """Channels left at each rate of the map."""
    num_tensors: int
    frozen: str
    """Why it must stay as it is; empty if it may be cut."""


@dataclass(frozen=True)
class ModelMap:
    """The channel map of a model, as a table."""

    model: str
    data: str
    rates: tuple[float, ...]
    spaces: tuple[Space, ...]
    tensors: tuple[tuple[str, str, str], ...]
    """Name, shape, and what each axis holds."""


@dataclass(frozen=True)
class Picture:
    """A plan as a grid of shades, source channels down, target channels across."""

    layer: str
    shape: tuple[int, int]
    grid: tuple[int, int]
    cells: str
    """Row by row, a character of SHADES each: the share of its column's mass."""
    moved: float
    """Share of the mass that goes to a channel of another number."""


@dataclass(frozen=True)
class ClientPlans:
    """How the global model would be carried onto one client's."""

    client: int
    pruning_rate: float
    round: int
    """The last round that the models have seen."""
    num_layers: int
    layers: tuple[Picture, ...]


@dataclass(frozen=True)
class Survey:
    """What the models of some runs told."""

    models: tuple[ModelMap, ...] = ()
    model_of: Mapping[Path, int] = field(default_factory=dict)
    """Folder of a run -> its place in `models`."""
    plans: Mapping[Path, tuple[ClientPlans, ...]] = field(default_factory=dict)
    ignore_budgets: frozenset[str] = frozenset()
    """Methods whose clients all train the full model."""
    remarks: tuple[tuple[Path, str], ...] = ()
    """Runs of which something could not be drawn, and why."""
