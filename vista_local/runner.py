"""A run over a file: shards in, lines out, resumable.

The output is appended shard by shard and synced to disk after each. A run can be stopped at any
moment; `resume` keeps the shards that are whole, replaces what follows them, and goes on, so that the
file equals an uninterrupted run's. Nothing is dropped before there is something to put in its place.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, BinaryIO

from vista_local.errors import InputError, VistaError
from vista_local.files import append_synced, full
from vista_local.output import SHARD_GROWTH, conversation_digest, result_line
from vista_local.pipeline import Pipeline
from vista_local.schema import SCHEMA, Conversation, ConversationResult

#: How every line begins that `result_line` writes.
_BEGINNING = f'{{"schema": "{SCHEMA}", "id": '.encode()

#: Id and input digest of a finished conversation; no digest in files of older versions.
Finished = tuple[str, str | None]


def shard_sizes(largest: int) -> Iterator[int]:
    """Sizes of consecutive shards: 1, 4, 16, ... up to `largest`, then `largest` for ever."""
    size = 1
    while True:
        yield size
        size = min(SHARD_GROWTH * size, largest)


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
        #: The conversations in whole shards, and those behind them, in a shard that may be the input's last.
        self.kept: list[Finished] = []
        self.rest: list[Finished] = []
        self._end = self._rest_end = 0  # where the one and the other end
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
            if not line.endswith(b"\n") and (line.startswith(_BEGINNING) or _BEGINNING.startswith(line)):
                break  # the tail of an interrupted write
            try:
                data = json.loads(line)
                conversation_id, run_id = data["id"], data["run"]["id"]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise VistaError(f"{self.path}, line {number}: not a result line; nothing was changed") from error
            if run_id != run["id"]:
                raise VistaError(
                    f"{self.path}, line {number}: written by run {run_id}, this is run {run['id']} "
                    "(other models, settings or versions); choose another output file"
                )
            ends.append(position)
            self.kept.append((conversation_id, data.get("input_sha256")))
        kept = whole_shards(len(ends), largest_shard)
        self.rest = self.kept[kept:]
        del self.kept[kept:]
        self._end = ends[kept - 1] if kept else 0
        self._rest_end = ends[-1] if ends else 0

    def keep_rest(self) -> None:
        """Nothing more is to be written: whole lines behind the whole shards stay, a torn tail goes."""
        self.kept += self.rest
        self.rest = []
        self._end = self._rest_end
        os.ftruncate(self._stream.fileno(), self._end)

    def append(self, lines: Iterable[str]) -> None:
        """Write a shard's lines and wait until they are on disk.

        Raises:
            VistaError: the disk is full or fails; whole shards stay as they are.
        """
        data = "".join(line + "\n" for line in lines).encode("utf-8")
        try:
            os.ftruncate(self._stream.fileno(), self._end)
            append_synced(self._stream.fileno(), data, self._end)
        except OSError as error:
            room = " once there is room" if full(error) else ""
            raise VistaError(
                f"{self.path}: {error.strerror}; finished shards are kept, go on with --resume{room}"
            ) from error
        self._end = self._rest_end = self._end + len(data)
        self.rest = []

    def close(self) -> None:
        """Release the file; one that this run made and wrote nothing to is taken away again."""
        if self._made and not self._end:
            self.path.unlink(missing_ok=True)
        self._stream.close()

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Stopped(BaseException):
    """A stop was asked for while the input was read. No fault: what catches faults must let it pass."""


class StopSwitch:
    """Whether a stop was asked for; `on_stop` is called once, in the signal handler."""

    def __init__(self, on_stop: Callable[[], None] | None = None) -> None:
        self._on_stop = on_stop
        self._asked = self._reading = False

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked

    def read(self, conversations: Iterator[Conversation], number: int) -> list[Conversation]:
        """The next conversations, at most `number`.

        Raises:
            _Stopped: a stop was asked for, before or meanwhile. Input from a pipe may keep a reader waiting
                for ever, and Python goes on waiting after a signal whose handler raises nothing.
        """
        self._reading = True
        try:
            if self._asked:
                raise _Stopped
            return list(islice(conversations, number))
        finally:
            self._reading = False

    def handle(self, number: int, frame: object) -> None:
        """The signal handler."""
        if self._asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        first, self._asked = not self._asked, True  # first of all: what follows may fail
        if first and self._on_stop:
            self._on_stop()
        if self._reading:
            raise _Stopped


@contextmanager
def stop_between_shards(on_stop: Callable[[], None] | None = None) -> Iterator[StopSwitch]:
    """Ctrl-C or SIGTERM ends the run after the current shard, or while input is read; a second Ctrl-C at once.

    Outside the main thread, where Python allows no signal handlers, no stop is ever asked for.
    """
    switch = StopSwitch(on_stop)
    if threading.current_thread() is not threading.main_thread():
        yield switch
        return
    previous = {s: signal.signal(s, switch.handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield switch
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
        True if the input was finished, False if a stop was asked for and it isn't known to be.

    Raises:
        InputError: on resume, the input doesn't begin with the conversations that are in the output.
    """
    with stop_between_shards(on_stop) as stop:
        try:
            return _score_rest(pipeline, iter(conversations), output, run, on_results, stop)
        except _Stopped:
            output.keep_rest()
            return False


def _score_rest(
    pipeline: Pipeline,
    conversations: Iterator[Conversation],
    output: OutputFile,
    run: dict[str, Any],
    on_results: Callable[[list[ConversationResult]], None] | None,
    stop: StopSwitch,
) -> bool:
    for number, kept in enumerate(output.kept, start=1):
        found = stop.read(conversations, 1)
        _same(output, number, kept, found[0] if found else None)
    # Shard sizes continue where the kept ones end, so that batches equal an uninterrupted run's.
    done, kept_before = 0, len(output.kept)
    for size in shard_sizes(pipeline.config.shard_size):
        if done < kept_before:
            done += size
            continue
        shard = stop.read(conversations, size)
        beginning = zip_longest(output.rest, shard[: len(output.rest)])
        for number, (kept, conversation) in enumerate(beginning, start=kept_before + 1):
            _same(output, number, kept, conversation)
        if len(shard) == len(output.rest):  # fewer than a whole shard holds: the input has ended
            output.keep_rest()
            return True
        results = pipeline.score_shard(shard)
        output.append(result_line(r, run, c) for r, c in zip(results, shard, strict=True))
        if on_results:
            on_results(results)
        if len(shard) < size:
            return True
    raise AssertionError("shard_sizes never ends")


def _same(output: OutputFile, number: int, kept: Finished, found: Conversation | None) -> None:
    """Refuse an input whose conversation `number` isn't the one that the output holds there.

    Raises:
        InputError: it isn't.
    """
    name, digest = kept
    if found is None or found.id != name:
        raise InputError(
            f"holds {name!r} as conversation {number}, the input {found.id if found else 'ends'!r}; "
            "resume needs the same input",
            str(output.path),
        )
    if digest not in (None, conversation_digest(found)):
        raise InputError(
            f"conversation {number} ({name!r}) was scored with other turns, references or roles than the input "
            "has now; resume needs the same input",
            str(output.path),
        )
