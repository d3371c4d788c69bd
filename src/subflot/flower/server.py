"""The server's side of a run on Flower: the one loop over rounds, on a grid of nodes."""

from collections.abc import Callable, Iterator
from pathlib import Path

from flwr.serverapp import Grid

from subflot.algorithms.base import Algorithm
from subflot.flower.devices import Devices
from subflot.flower.members import Members
from subflot.flower.settings import FlowerSettings
from subflot.simulation.roster import Roster
from subflot.simulation.server import Server
from subflot.simulation.simulate import Round, run_rounds
from subflot.task import Task


def serve(
    grid: Grid,
    algorithm: Algorithm,
    task: Task,
    folder: Path,
    *,
    rounds: int,
    per_round: int | None = None,
    seed: int = 0,
    evaluate_every: int = 1,
    merging: str = "mean",
    settings: FlowerSettings | None = None,
    roster: Roster | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Round]:
    """Run the rounds that are left on a grid, and yield each one when it is saved.

    Started again on the same folder it goes on after the last round that was saved.

    Args:
        grid: of Flower.
        algorithm: the method.
        task: the model and how it is trained; the server needs no examples.
        folder: where the run is kept.
        rounds: T.
        per_round: clients that take part in a round; None: all.
        seed: fixes everything that is drawn.
        evaluate_every: models are measured in every round that this divides, and in the last.
        merging: `mean`, or what holds against hostile clients: `clipped`, `median`, `trimmed`.
        settings: deadlines, how many must answer, privacy.
        roster: in a simulation, who there is; None: the nodes themselves say how much they hold.
        say: told what happens beside the rounds.
    """
    chosen = settings or FlowerSettings()
    folder.mkdir(parents=True, exist_ok=True)
    server = Server(algorithm, algorithm.prepare(task), folder, merging)
    members = Members(grid, server.task, folder, chosen, roster, say)
    yield from run_rounds(
        server,
        members,
        lambda: Devices(server, grid, members, chosen),
        rounds=rounds,
        per_round=per_round,
        seed=seed,
        evaluate_every=evaluate_every,
        min_uploads=chosen.min_uploads,
    )
