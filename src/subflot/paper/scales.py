"""On which terms a table is made: how large its runs are, and how they are trained."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from subflot.data.sets import find as find_set
from subflot.data.settings import fill
from subflot.data.source import Source
from subflot.errors import SubflotError, UnknownName
from subflot.paper.grids import Column, Grid, Row

PAPER = {"rounds": 200, "epochs": 5, "evaluate_every": 10}
"""What the paper does wherever it does not say otherwise."""
SCALES: Mapping[str, Mapping[str, Any]] = {
    "smoke": {"rounds": 2, "epochs": 1, "evaluate_every": 2, "per_round": 2},
    "reduced": {},
    "paper": {},
}
"""What a scale changes in all tasks alike; `printed/tasks.toml` has what it changes in each.

`smoke` proves in minutes that everything runs. `reduced` takes the paper's networks at a quarter of
their width (HAR's and the news' are small as they are), up to 10,000 examples, and as many rounds
as two cores can do for all of Table 1 in about a day, with three seeds and searched settings.
`paper` is for a GPU.
"""
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "printed": {"learning_rate": 0.001, "batch_size": 256},
    "searched": {"batch_size": 32},
}
"""`printed` trains as the paper says. `searched` takes smaller batches and, for each method and
task, the learning rate and settings that do best on validation examples, after as many trials for
all."""


@dataclass(frozen=True)
class Terms:
    """On which terms runs are made.

    Attributes:
        scale: one of `SCALES`.
        protocol: one of `PROTOCOLS`.
        seeds: every cell has a run for each.
        settings: of all runs, whatever the scale and the column say.
        rows, columns: which cells are to be run; empty for all that the scale fills.
    """

    scale: str = "smoke"
    protocol: str = "printed"
    seeds: tuple[int, ...] = (0,)
    settings: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UnknownName("scale", self.scale, SCALES, "subflot table --help")
        if self.protocol not in PROTOCOLS:
            raise UnknownName("protocol", self.protocol, PROTOCOLS, "subflot table --help")
        if not self.seeds:
            raise SubflotError("there is no seed", hint="write them as 0,1,2")
        for setting in ("seed", "algorithm"):
            if setting in self.settings:
                raise SubflotError(
                    f"{setting} cannot be set for a whole table", hint="use --seeds or --rows"
                )

    @property
    def is_searched(self) -> bool:
        """Whether settings have to be chosen."""
        return self.protocol == "searched" and "learning_rate" not in self.settings

    def check(self, grid: Grid) -> None:
        """Refuse names of rows and columns that a grid does not have."""
        for kind, names, known in (
            ("row", self.rows, [row.name for row in grid.rows]),
            ("column", self.columns, [column.name for column in grid.columns]),
        ):
            for name in names:
                if name not in known:
                    raise UnknownName(f"{kind} of {grid.name}", name, known, "subflot table --help")

    def ask_for(self, row: Row, column: Column, grid: Grid) -> bool:
        """Whether a cell is to be run. `smoke` fills one column and one row where none is named."""
        if self.rows and row.name not in self.rows:
            return False
        if self.columns and column.name not in self.columns:
            return False
        if self.scale != "smoke" or self.rows or self.columns:
            return True
        names = [one.name for one in grid.rows]
        across = "subflot" if "subflot" in names else names[0]
        return column.name == grid.anchor or row.name == across

    def of(self, column: Column) -> dict[str, Any]:
        """Return the settings of the runs of a column, but for what its rows set."""
        task = column.task
        return {
            **PAPER,
            **task.settings,
            **column.settings,
            **SCALES[self.scale],
            **task.scales.get(self.scale, {}),
            **column.scales.get(self.scale, {}),
            **PROTOCOLS[self.protocol],
            **self.settings,
        }


@dataclass(frozen=True)
class DataAtHand:
    """What this machine has of the data of a column."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the run must be told, such as the domains there are."""
    domains: tuple[str, ...] = ()
    missing: str = ""
    """Why the column cannot be run; nothing if it can."""


def at_hand(column: Column, settings: Mapping[str, Any]) -> DataAtHand:
    """Look for the data of a column; of a set with domains, those that are there will do."""
    source = find_set(settings["data"])
    options = {option.name for option in fields(source.settings)}
    chosen = {key: value for key, value in settings.items() if key in options}
    domains = column.task.domains
    told: dict[str, Any] = {}
    if "domains" in options:
        wanted = chosen.pop("domains", domains)
        domains = tuple(
            domain
            for domain in domains
            if domain in wanted and source.find(_filled(source, chosen, domain)) is not None
        )
        told = {"domains": domains} if domains else {}
    needed = fill(source.settings, {**chosen, **told}, source.name)
    if source.find(needed) is None:
        # Without a path: it goes to files that are read elsewhere.
        where = "`subflot data list` says where it belongs"
        return DataAtHand(missing=f"data set `{source.name}` is not here; {where}")
    if column.domain and column.domain not in domains:
        return DataAtHand(missing=f"domain `{column.domain}` of `{source.name}` is not here")
    return DataAtHand(told, domains)


def _filled(source: Source[Any], chosen: Mapping[str, Any], domain: str) -> Any:
    return fill(source.settings, {**chosen, "domains": (domain,)}, source.name)
