"""The command line: parses, calls, prints. Data goes to stdout, messages to stderr."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> None:
    """Run the command line; a mistake of the user is one message, never a traceback."""
    with ctrl_c_ends():
        from subflot.cli.app import app
        from subflot.errors import SubflotError
    try:
        app()
    except SubflotError as error:
        message, _, hint = str(error).partition("\n  hint: ")
        _fail(message, hint)
    except Exception as error:
        if os.environ.get("SUBFLOT_DEBUG"):
            raise
        _fail(
            f"{type(error).__name__}: {error}",
            "this should not happen; SUBFLOT_DEBUG=1 shows where, for a report",
        )


@contextmanager
def ctrl_c_ends() -> Iterator[None]:
    """Let Ctrl-C end the process at once, while something is imported.

    A library that is met halfway through its import may swallow it, or raise an error of its own.
    """
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_usual:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    yield
    if is_usual:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _fail(message: str, hint: str) -> None:
    sys.stderr.write(f"error: {message}\n" + (f"hint: {hint}\n" if hint else ""))
    sys.exit(2)
