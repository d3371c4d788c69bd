"""The public names; `subflot` has them all, and imports them when the first is asked for."""

from subflot.algorithms import ALGORITHMS, Algorithm, make
from subflot.channels import ChannelMap, Channels, Segment, build, put, take, trace
from subflot.data.federated import FederatedData, federate
from subflot.data.own import from_arrays, from_torch
from subflot.data.own_images import from_folder, from_table
from subflot.data.sets import load as load_data
from subflot.errors import ChannelError, SubflotError
from subflot.experiments import RunConfig, run
from subflot.experiments.export import load
from subflot.simulation import Round, simulate
from subflot.simulation.roster import drawn
from subflot.task import LocalTraining, Task

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "ChannelError",
    "ChannelMap",
    "Channels",
    "FederatedData",
    "LocalTraining",
    "Round",
    "RunConfig",
    "Segment",
    "SubflotError",
    "Task",
    "build",
    "drawn",
    "federate",
    "from_arrays",
    "from_folder",
    "from_table",
    "from_torch",
    "load",
    "load_data",
    "make",
    "put",
    "run",
    "simulate",
    "take",
    "trace",
]
