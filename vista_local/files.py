"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from vista_local.errors import VistaError


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file to write, which takes its name when it is whole; after an error nothing has changed.

    Raises:
        VistaError: it can't be written.
    """
    if path.is_dir():
        raise VistaError(f"{path}: is a folder; give a file name")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except OSError as error:
        raise VistaError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
