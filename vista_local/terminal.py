"""What commands have in common: standard error, and options that several of them take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import typer
from rich.console import Console

from vista_local.errors import VistaError

console = Console(stderr=True)


def role_mapping(options: Sequence[str]) -> dict[str, str]:
    """Role names as `--role NAME=ROLE` options map them.

    Raises:
        VistaError: an option is of another form.
    """
    mapping = {}
    for option in options:
        name, separator, role = option.partition("=")
        if not separator or role not in ("user", "assistant", "system", "tool"):
            raise VistaError(f"--role {option!r}: expected NAME=user, NAME=assistant, NAME=system or NAME=tool")
        mapping[name.strip()] = role
    return mapping


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that the user can mend into one line on standard error and exit code 2."""
    try:
        yield
    except VistaError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
