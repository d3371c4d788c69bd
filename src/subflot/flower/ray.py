"""A simulation on Ray in this process: Flower starts it, and it is gone when the run is over."""

import logging
import threading
from collections.abc import Callable, Iterable
from importlib.util import find_spec

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from subflot.errors import SubflotError


def on_ray(
    main: Callable[[Grid], None], app: ClientApp, num_clients: int, num_workers: int
) -> None:
    """Call a function with the grid of a simulation; an error of its comes out here.

    Args:
        main: the server's side.
        app: the clients' side; a copy of it goes to every worker with every message.
        num_clients: nodes of the grid.
        num_workers: processes that do their work, one core each.
    """
    if find_spec("ray") is None:
        raise SubflotError("Ray is not installed", hint="pip install 'subflot[flower-sim]'")
    failed: list[Exception] = []
    is_over = threading.Event()
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        try:
            main(_until(is_over, grid))
        except Exception as error:
            failed.append(error)  # Flower would wrap it in an error of its own.

    logging.getLogger("flwr").setLevel(logging.ERROR)
    try:
        run_simulation(
            server,
            app,
            num_clients,
            backend_config={
                "init_args": {
                    "num_cpus": num_workers,
                    "logging_level": "ERROR",
                    "log_to_driver": False,
                },
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    except RuntimeError as error:
        raise SubflotError(
            f"the simulation on Ray broke off: {error.__cause__ or error}",
            hint="the same command goes on after the last round that was saved",
        ) from error
    finally:
        is_over.set()
    if failed:
        raise failed[0]


def _until(is_over: threading.Event, grid: Grid) -> Grid:
    """Make a grid fail once its nodes are gone, or the server would wait for them for long."""
    pull = grid.pull_messages

    def pull_messages(message_ids: Iterable[str]) -> Iterable[Message]:
        if is_over.is_set():
            raise SubflotError("the simulation on Ray is over")
        return pull(message_ids)

    vars(grid)["pull_messages"] = pull_messages
    return grid
