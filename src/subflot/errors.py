"""What goes wrong in a way the user can mend: each error says what happened and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class SubflotError(Exception):
    """A mistake in what was asked for. `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # The children take other arguments; what crosses to another process is the outcome.
        return _again, (type(self), self.args, vars(self))

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  hint: {self.hint}" if self.hint else message


def _again(
    kind: type[SubflotError], args: tuple[object, ...], state: dict[str, object]
) -> Exception:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class ChannelError(SubflotError):
    """A model cannot be cut as asked, or a set of kept channels does not fit its map."""


class UnknownName(SubflotError):  # noqa: N818 - it is raised as what it says
    """A name that is not registered; the nearest known one is offered."""

    def __init__(self, kind: str, name: str, known: Iterable[str], command: str) -> None:
        names = sorted(known)
        close = get_close_matches(name, names, n=1)
        nearest = f"did you mean `{close[0]}`? " if close else ""
        super().__init__(
            f"unknown {kind} `{name}`",
            hint=f"{nearest}known: {', '.join(names)} (see `{command}`)",
        )
