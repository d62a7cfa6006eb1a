"""The errors that end a command: a sentence for the user, never a trace."""

from __future__ import annotations


class VistaError(Exception):
    """Something the user can mend. The message says what was found, where, and what is accepted."""


class InputError(VistaError):
    """Bad input. `where` names file, line and field as far as known."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class MissingExtraError(VistaError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is needed for this; install it with: pip install 'vista-local[{extra}]'")


def first_line(error: BaseException) -> str:
    """An error's first line, for a message; libraries write paragraphs."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
