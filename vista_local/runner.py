"""A run over a file: shards in, lines out, resumable.

The output is appended shard by shard and synced to disk after each. A run can be stopped at any
moment; `resume` keeps the shards that are whole, drops what follows them, and goes on, so that the
file equals an uninterrupted run's.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from vista_local.errors import InputError, VistaError
from vista_local.files import append_synced, full
from vista_local.output import conversation_digest, result_line
from vista_local.pipeline import Pipeline
from vista_local.schema import Conversation, ConversationResult

#: How much larger a shard is than the one before it, from one conversation up to the configured size:
#: a run's first result comes as soon as it can, and few shards are small.
GROWTH = 4


def shard_sizes(largest: int) -> Iterator[int]:
    """Sizes of consecutive shards: 1, 4, 16, ... up to `largest`, then `largest` for ever."""
    size = 1
    while True:
        yield size
        size = min(GROWTH * size, largest)


def shards(conversations: Iterable[Conversation], largest: int) -> Iterator[list[Conversation]]:
    """Consecutive conversations in shards; the last one may be shorter."""
    iterator = iter(conversations)
    for size in shard_sizes(largest):
        shard = list(islice(iterator, size))
        if not shard:
            return
        yield shard


def whole_shards(lines: int, largest: int) -> int:
    """How many of `lines` finished conversations belong to whole shards."""
    done = 0
    for size in shard_sizes(largest):
        if done + size > lines:
            return done
        done += size
    raise AssertionError("shard_sizes never ends")


def refuse_existing(path: Path) -> None:
    """A result file that has content already is not written over.

    Raises:
        VistaError: `path` is such a file.
    """
    # os.path's functions say no where pathlib's raise, such as for a name that is too long.
    if os.path.isfile(path) and os.path.getsize(path):
        raise VistaError(f"{path}: exists; add --resume to go on with it, or choose another file")


class OutputFile:
    """The result file of one run: locked, appended to, synced.

    Args:
        path: the file.
        run: the run record; on resume the lines that are there must carry the same one.
        largest_shard: configured shard size.
        resume: keep whole shards that are there; otherwise a file with content is refused.

    Raises:
        VistaError: the file can't be written, is in use by another run, has content without
            `resume`, or comes from another run.
    """

    def __init__(self, path: Path, run: dict[str, Any], largest_shard: int, resume: bool) -> None:
        self.path = path
        #: Id and digest (None in files of older versions) of every conversation in whole shards.
        self.kept: list[tuple[str, str | None]] = []
        self._end = 0  # where the last whole shard ends
        self._made = not os.path.exists(path)
        if not (self._made or os.path.isfile(path) or os.path.isdir(path)):
            raise VistaError(f"{path}: is no regular file; results are resumed from what is in it")
        try:
            # "x", not "w": a file that another run has just made must not be emptied before the lock is asked for.
            self._stream: BinaryIO = open(path, "x+b" if self._made else "r+b")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise VistaError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            self._lock()
            if not resume:
                refuse_existing(path)
            self._keep(run, largest_shard)
        except BaseException:
            self._stream.close()  # and nothing else: the file may be another run's
            raise

    def _lock(self) -> None:
        import fcntl

        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise VistaError(f"{self.path}: another run is writing to this file") from error

    def _keep(self, run: dict[str, Any], largest_shard: int) -> None:
        ends: list[int] = []
        position = 0
        for number, line in enumerate(self._stream, start=1):
            position += len(line)
            if not line.endswith(b"\n"):
                break  # the tail of an interrupted write
            try:
                data = json.loads(line)
                conversation_id, run_id = data["id"], data["run"]["id"]
            except (ValueError, KeyError, TypeError) as error:
                raise VistaError(f"{self.path}, line {number}: not a result line; nothing was changed") from error
            if run_id != run["id"]:
                raise VistaError(
                    f"{self.path}, line {number}: written by run {run_id}, this is run {run['id']} "
                    "(other models, settings or versions); choose another output file"
                )
            ends.append(position)
            self.kept.append((conversation_id, data.get("input_sha256")))
        kept = whole_shards(len(ends), largest_shard)
        del self.kept[kept:]
        self._end = ends[kept - 1] if kept else 0
        self._stream.truncate(self._end)

    def append(self, lines: Iterable[str]) -> None:
        """Write a shard's lines and wait until they are on disk.

        Raises:
            VistaError: the disk is full or fails; whole shards stay as they are.
        """
        data = "".join(line + "\n" for line in lines).encode("utf-8")
        try:
            append_synced(self._stream.fileno(), data, self._end)
        except OSError as error:
            room = " once there is room" if full(error) else ""
            raise VistaError(
                f"{self.path}: {error.strerror}; finished shards are kept, go on with --resume{room}"
            ) from error
        self._end += len(data)

    def close(self) -> None:
        """Release the file; one that this run made and wrote nothing to is taken away again."""
        if self._made and not self._end:
            self.path.unlink(missing_ok=True)
        self._stream.close()

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def stop_between_shards(on_stop: Callable[[], None] | None = None) -> Iterator[Callable[[], bool]]:
    """Ctrl-C or SIGTERM ends the run after the current shard; a second Ctrl-C at once.

    Yields a function that says whether a stop was asked for. Outside the main thread, where Python
    allows no signal handlers, it always says no. `on_stop` is called once, in the signal handler,
    when a stop is asked for.
    """
    asked = False

    def handler(number: int, frame: object) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        if on_stop and not asked:
            on_stop()
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = {s: signal.signal(s, handler) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


def score_to_file(
    pipeline: Pipeline,
    conversations: Iterable[Conversation],
    output: OutputFile,
    run: dict[str, Any],
    on_results: Callable[[list[ConversationResult]], None] | None = None,
    on_stop: Callable[[], None] | None = None,
) -> bool:
    """Score everything that `output` doesn't hold yet.

    Args:
        on_results: called with each shard's results, once they are on disk.
        on_stop: called in the signal handler when a stop is asked for; the shard is still finished.

    Returns:
        True if the input was finished, False if a stop was asked for.

    Raises:
        InputError: on resume, the input doesn't begin with the conversations that are in the output.
    """
    iterator = iter(conversations)
    for number, (kept, digest) in enumerate(output.kept, start=1):
        found = next(iterator, None)
        if found is not None and found.id == kept and digest not in (None, conversation_digest(found)):
            raise InputError(
                f"conversation {number} ({kept!r}) was scored with other turns, references or roles than the input "
                "has now; resume needs the same input",
                str(output.path),
            )
        if found is None or found.id != kept:
            raise InputError(
                f"holds {kept!r} as conversation {number}, the input {found.id if found else 'ends'!r}; "
                "resume needs the same input",
                str(output.path),
            )
    with stop_between_shards(on_stop) as stop_asked:
        # Shard sizes continue where the kept ones end, so that batches equal an uninterrupted run's.
        done = 0
        for size in shard_sizes(pipeline.config.shard_size):
            if done < len(output.kept):
                done += size
                continue
            shard = list(islice(iterator, size))
            if not shard:
                return True
            results = pipeline.score_shard(shard)
            output.append(result_line(r, run, c) for r, c in zip(results, shard, strict=True))
            if on_results:
                on_results(results)
            if stop_asked():
                return next(iterator, None) is None
    return True
