"""Standard error as every command uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from vista_local.errors import VistaError

console = Console(stderr=True)


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn errors that the user can mend into one line on standard error and exit code 2."""
    try:
        yield
    except VistaError as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
