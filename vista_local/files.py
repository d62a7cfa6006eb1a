"""Files that are there whole or not at all, and files that grow by whole pieces."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from vista_local.errors import VistaError


def check_writable(path: Path) -> None:
    """Whether `whole_file` can write `path`: asked before the work whose result it is to hold.

    Raises:
        VistaError: it can't.
    """
    if os.path.isdir(path):
        raise VistaError(f"{path}: is a folder; give a file name")
    try:
        with suppress(FileNotFoundError):
            os.stat(path)  # knows names that are too long
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            probe.write(b"x")
    except OSError as error:
        raise VistaError(f"{path}: cannot be written: {error.strerror or error}") from error


@contextmanager
def whole_file(path: Path) -> Iterator[IO[str]]:
    """A UTF-8 text file to write, which takes its name when it is whole; after an error nothing has changed.

    Raises:
        VistaError: it can't be written.
    """
    if path.is_dir():
        raise VistaError(f"{path}: is a folder; give a file name")
    part = path.with_name(f".{path.name[:40]}.{os.getpid()}.part")  # a long name has no room for an ending
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(part, path)
    except OSError as error:
        raise VistaError(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # the folder may not be one
            part.unlink(missing_ok=True)


def append_synced(descriptor: int, data: bytes, end: int) -> None:
    """Write `data` at `end` of a file and wait until it is on disk; after an error the file ends at `end` again.

    Past any buffer of a stream, which would keep what a full disk refused and write it later.

    Raises:
        OSError: the disk is full (see `full`) or fails.
    """
    written = 0
    try:
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], end + written)
        os.fsync(descriptor)
    except OSError:
        with suppress(OSError):
            os.ftruncate(descriptor, end)
        raise


def full(error: OSError) -> bool:
    """Whether writing failed for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
