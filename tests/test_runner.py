"""Runs over a file: shards, resuming byte for byte, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import BatchSensitive, talks

from vista_local import output as result_output
from vista_local.cli import _say_stopping
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.output import parse_result_line, run_record
from vista_local.pipeline import Pipeline
from vista_local.runner import (
    OutputFile,
    _Stopped,
    score_to_file,
    shard_sizes,
    shards,
    stop_between_shards,
    whole_shards,
)
from vista_local.schema import Conversation

UNHURRIED = settings(max_examples=50, deadline=None)
RUN = {"id": "run-1", "backend": "scripted"}
OTHER_RUN = {"id": "run-2", "backend": "scripted"}


def run(path: Path, conversations: Iterable[Conversation], size: int, resume: bool = False, **options: Any) -> bool:
    pipeline = Pipeline(options.pop("backend", None) or BatchSensitive(), ScoreConfig(shard_size=size))
    record = options.pop("record", RUN)
    with OutputFile(path, record, size, resume) as output:
        return score_to_file(pipeline, conversations, output, record, **options)


# --- shards


def test_shards_grow_to_the_configured_size() -> None:
    assert list(islice(shard_sizes(32), 6)) == [1, 4, 16, 32, 32, 32]
    assert list(islice(shard_sizes(10), 4)) == [1, 4, 10, 10]
    assert list(islice(shard_sizes(3), 3)) == [1, 3, 3]
    assert list(islice(shard_sizes(1), 3)) == [1, 1, 1]


@given(st.integers(0, 60), st.integers(1, 20))
@UNHURRIED
def test_shards_keep_every_conversation_in_order(number: int, size: int) -> None:
    conversations = talks(number)
    found = list(shards(conversations, size))
    assert [c for shard in found for c in shard] == conversations
    assert [len(s) for s in found[:-1]] == list(islice(shard_sizes(size), max(0, len(found) - 1)))
    assert all(found)


@given(st.integers(0, 100), st.integers(1, 20))
@UNHURRIED
def test_whole_shards_are_the_last_boundary_not_past_the_lines(lines: int, size: int) -> None:
    ends = [0]
    for n in islice(shard_sizes(size), 101):
        ends.append(ends[-1] + n)
    assert whole_shards(lines, size) == max(e for e in ends if e <= lines)


def test_batches_never_cross_shards(tmp_path: Path) -> None:
    backend = BatchSensitive()
    assert run(tmp_path / "out.jsonl", talks(12), 4, backend=backend)
    assert [sorted({int(claim.split()[1]) for claim in batch}) for batch in backend.batches] == [
        [0],
        [1, 2, 3, 4], [1, 2, 4], [2],
        [5, 6, 7, 8], [5, 7, 8], [5, 8],
        [9, 10, 11], [10, 11], [11],
    ]  # fmt: skip


def test_a_run_writes_a_line_a_conversation(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert run(path, talks(7), 2)
    lines = path.read_text(encoding="utf-8").split("\n")
    assert lines.pop() == ""
    results = [parse_result_line(line) for line in lines]
    assert [r.id for r in results] == [c.id for c in talks(7)]
    assert all(json.loads(line)["run"] == RUN for line in lines)


def test_results_are_on_disk_and_synced_shard_by_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    synced: list[int] = []
    handed: list[int] = []

    def fsync(descriptor: int) -> None:
        assert os.fstat(descriptor).st_ino == path.stat().st_ino
        synced.append(path.read_bytes().count(b"\n"))

    monkeypatch.setattr(os, "fsync", fsync)
    run(path, talks(5), 2, on_results=lambda results: handed.append(len(results)))
    assert synced == [1, 3, 5]
    assert handed == [1, 2, 2]


# --- resuming


@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_run_killed_after_any_shard_resumes_to_the_same_bytes(tmp_path: Path, size: int) -> None:
    whole = tmp_path / "whole.jsonl"
    run(whole, talks(15), size)
    for stop_after in range(1, len(list(shards(talks(15), size))) + 1):
        path = tmp_path / f"{stop_after}.jsonl"
        left = [stop_after]

        def die(_: object, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(path, talks(15), size, on_results=die)
        assert whole.read_bytes().startswith(path.read_bytes())
        assert run(path, talks(15), size, resume=True)
        assert path.read_bytes() == whole.read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[int, bytes]:
    """The bytes of uninterrupted runs by shard size."""
    found = {}
    for size in (2, 4, 8):
        path = tmp_path_factory.mktemp("whole") / "out.jsonl"
        run(path, talks(15), size)
        found[size] = path.read_bytes()
    return found


@given(st.sampled_from([2, 4, 8]), st.floats(0, 1))
@UNHURRIED
def test_a_file_cut_at_any_byte_resumes_to_the_same_bytes(
    finished: dict[int, bytes], tmp_path_factory: pytest.TempPathFactory, size: int, place: float
) -> None:
    content = finished[size]
    path = tmp_path_factory.mktemp("cut") / "out.jsonl"
    path.write_bytes(content[: round(place * len(content))])
    assert run(path, talks(15), size, resume=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("away", [-2, -1, 0, 1, 2])
def test_a_file_cut_around_a_line_end_resumes_to_the_same_bytes(
    finished: dict[int, bytes], tmp_path: Path, away: int
) -> None:
    content = finished[4]
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for number, end in enumerate(ends):
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(content[: end + away] if away <= 0 or number < len(ends) - 1 else content)
        run(path, talks(15), 4, resume=True)
        assert path.read_bytes() == content


def test_resuming_scores_only_what_is_missing(finished: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"".join(finished[4].splitlines(keepends=True)[:8]))
    backend = BatchSensitive()
    run(path, talks(15), 4, resume=True, backend=backend)
    assert min(int(claim.split()[1]) for batch in backend.batches for claim in batch) == 5


@pytest.mark.parametrize("number", [8, 9, 10])
def test_resuming_a_finished_run_scores_nothing(tmp_path: Path, number: int) -> None:
    path = tmp_path / "out.jsonl"
    run(path, talks(number), 4)
    content = path.read_bytes()
    for tail in (b"", b'{"schema": "vi'):
        path.write_bytes(content + tail)
        backend = BatchSensitive()
        assert run(path, talks(number), 4, resume=True, backend=backend)
        assert backend.calls == []
        assert path.read_bytes() == content


def test_nothing_finished_is_dropped_before_its_shard_is_written_again(
    finished: dict[int, bytes], tmp_path: Path
) -> None:
    """Three lines of a shard of four were there: whoever stops the resumed run in that shard finds them still."""
    path = tmp_path / "out.jsonl"
    kept = b"".join(finished[4].splitlines(keepends=True)[:8])
    path.write_bytes(kept)

    class Stopped(BatchSensitive):
        def classify(self, *arguments: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, talks(15), 4, resume=True, backend=Stopped())
    assert path.read_bytes() == kept
    assert run(path, talks(15), 4, resume=True)
    assert path.read_bytes() == finished[4]


def test_resume_without_a_file_starts_one(finished: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert run(path, talks(15), 4, resume=True)
    assert path.read_bytes() == finished[4]


def test_an_empty_file_is_taken_without_resume(finished: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.touch()
    assert run(path, talks(15), 4)
    assert path.read_bytes() == finished[4]


# --- refusals


def test_an_existing_file_is_refused_without_resume(finished: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(finished[4])
    with pytest.raises(VistaError, match="exists; add --resume"):
        run(path, talks(15), 4)
    assert path.read_bytes() == finished[4]


def test_the_file_of_another_run_is_refused_and_left_alone(finished: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(finished[4][:-10])
    with pytest.raises(VistaError, match=r"line 1: written by run run-1, this is run run-2"):
        run(path, talks(15), 4, resume=True, record=OTHER_RUN)
    assert path.read_bytes() == finished[4][:-10]


@pytest.mark.parametrize(
    "line",
    [b"notes\n", b"[" * 100_000 + b"\n", b"[1]\n", b'{"id": "c0"}\n', b'{"id": "c0", "run": "x"}\n', b"\xff\n", b"\n"],
)
def test_a_file_that_holds_something_else_is_refused_and_left_alone(
    finished: dict[int, bytes], tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "out.jsonl"
    content = finished[4].splitlines(keepends=True)[0] + line + b"rest"
    path.write_bytes(content)
    with pytest.raises(VistaError, match="line 2: not a result line; nothing was changed"):
        run(path, talks(15), 4, resume=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"notes", b'{"id": "c0"}', b'{"schema": "vista-local/2", "id": "c0"', b"\xff"])
def test_a_file_without_line_end_is_no_torn_result_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(VistaError, match="line 1: not a result line; nothing was changed"):
        run(path, talks(3), 4, resume=True)
    assert path.read_bytes() == content


def test_a_file_of_another_shard_layout_is_of_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_record(ScoreConfig(), {})
    monkeypatch.setattr(result_output, "SHARD_GROWTH", 2)
    assert run_record(ScoreConfig(), {})["id"] != before["id"]


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with OutputFile(path, RUN, 4, resume=False) as first:
        first.append(["x"])
        for resume in (False, True):
            with pytest.raises(VistaError, match="another run is writing to this file"):
                OutputFile(path, RUN, 4, resume)
        assert path.read_bytes() == b"x\n"
    with pytest.raises(VistaError, match="exists"):
        OutputFile(path, RUN, 4, resume=False)


def test_a_refused_file_is_not_kept_locked(finished: dict[int, bytes], tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(finished[4])
    with pytest.raises(VistaError, match="exists") as refusal:  # keeps the failed object alive by its traceback
        OutputFile(path, RUN, 4, resume=False)
    with OutputFile(path, RUN, 4, resume=True) as output:
        assert (len(output.kept), len(output.rest)) == (13, 2)
    assert refusal.value


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(VistaError, match="cannot be written: No such file or directory"):
        OutputFile(tmp_path / "missing" / "out.jsonl", RUN, 4, resume=False)
    with pytest.raises(VistaError, match="cannot be written: Is a directory"):
        OutputFile(tmp_path, RUN, 4, resume=False)


@pytest.mark.parametrize(
    ("conversations", "found"),
    [
        (talks(15, start=1), "conversation 1, the input 'c1'"),
        ([*talks(3), *talks(12, start=20)], "conversation 4, the input 'c20'"),
        (talks(5), "conversation 6, the input 'ends'"),
    ],
)
def test_resume_needs_the_same_input(
    finished: dict[int, bytes], tmp_path: Path, conversations: list[Conversation], found: str
) -> None:
    path = tmp_path / "out.jsonl"
    kept = b"".join(finished[4].splitlines(keepends=True)[:8])
    path.write_bytes(kept)
    with pytest.raises(InputError) as error:
        run(path, conversations, 4, resume=True)
    assert found in str(error.value)
    assert path.read_bytes() == kept


def test_resume_knows_its_input_by_more_than_ids(tmp_path: Path) -> None:
    """Conversations without ids are numbered, so two files have the same ids."""
    path = tmp_path / "out.jsonl"
    run(path, talks(4), 4)
    other = [replace(c, turns=(replace(c.turns[0], text="something else"), *c.turns[1:])) for c in talks(8)]
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"conversation 1 \('c0é'\) was scored with other turns"):
        run(path, other, 4, resume=True)
    assert path.read_bytes() == before
    assert len(before.splitlines()) == 4
    stripped = [{k: v for k, v in json.loads(line).items() if k != "input_sha256"} for line in before.splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in stripped), encoding="utf-8")
    assert run(path, talks(8), 4, resume=True), "files of versions without a digest are known by their ids"


def test_a_failing_disk_is_reported_with_the_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(VistaError, match="No space left on device; finished shards are kept, go on with --resume"):
        run(tmp_path / "out.jsonl", talks(3), 4)


# --- stopping


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_run_after_its_shard(
    finished: dict[int, bytes], tmp_path: Path, sign: signal.Signals
) -> None:
    path = tmp_path / "out.jsonl"
    read: list[Conversation] = []

    def reading() -> Iterable[Conversation]:
        for conversation in talks(15):
            read.append(conversation)
            yield conversation

    assert run(path, reading(), 4, on_results=lambda _: signal.raise_signal(sign)) is False
    assert path.read_bytes() == finished[4].splitlines(keepends=True)[0]
    assert len(read) == 1, "what comes next may be a pipe that nothing comes from"
    assert run(path, talks(15), 4, resume=True) is True
    assert path.read_bytes() == finished[4]


def test_a_signal_in_the_last_shard_ends_a_finished_run(tmp_path: Path) -> None:
    def stop(results: Any) -> None:
        if len(results) == 3:
            signal.raise_signal(signal.SIGTERM)

    assert run(tmp_path / "out.jsonl", talks(4), 4, on_results=stop) is True


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_that_waits_for_input(
    finished: dict[int, bytes], tmp_path: Path, sign: signal.Signals
) -> None:
    path = tmp_path / "out.jsonl"
    waiting, writing = os.pipe()
    done = threading.Event()

    def interrupt() -> None:
        done.wait(0.3)
        signal.pthread_kill(threading.main_thread().ident, sign)  # type: ignore[arg-type]
        done.wait(30)
        os.close(writing)  # the reader that wasn't interrupted reads on

    def piped() -> Iterable[Conversation]:
        yield from talks(3)
        thread.start()
        os.read(waiting, 1)
        raise AssertionError("read on")

    thread = threading.Thread(target=interrupt)
    try:
        assert run(path, piped(), 4) is False
    finally:
        done.set()
        thread.join()
        os.close(waiting)
    assert path.read_bytes() == finished[4].splitlines(keepends=True)[0]


def test_a_run_stopped_while_it_reads_leaves_whole_lines_and_all_of_them(
    finished: dict[int, bytes], tmp_path: Path
) -> None:
    """The summary of a stopped run is made from the file."""
    path = tmp_path / "out.jsonl"
    whole = b"".join(finished[4].splitlines(keepends=True)[:8])
    path.write_bytes(whole + finished[4].splitlines()[8][:-30])

    def piped() -> Iterable[Conversation]:
        yield from talks(7)
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("read on")

    assert run(path, piped(), 4, resume=True) is False
    assert path.read_bytes() == whole
    assert run(path, talks(15), 4, resume=True)
    assert path.read_bytes() == finished[4]


def test_after_a_stop_nothing_is_read() -> None:
    with stop_between_shards() as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(_Stopped):
            stop.read(iter(talks(3)), 1)


@pytest.mark.parametrize("gone", ["none", "closed", "broken"])
def test_a_stop_is_no_models_fault_where_standard_error_is_gone(
    finished: dict[int, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    class Signalled(BatchSensitive):
        def classify(self, *arguments: Any) -> Any:
            signal.raise_signal(signal.SIGTERM)
            return super().classify(*arguments)

    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    if gone != "broken":
        stream.close()
    path = tmp_path / "out.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", None if gone == "none" else stream)
        assert run(path, talks(15), 4, backend=Signalled(), on_stop=_say_stopping) is False
    stream.close()
    assert path.read_bytes() == finished[4].splitlines(keepends=True)[0]


def test_a_message_that_cannot_be_written_does_not_undo_the_stop() -> None:
    def broken() -> None:
        raise BrokenPipeError

    with stop_between_shards(broken) as asked:
        with pytest.raises(BrokenPipeError):
            signal.raise_signal(signal.SIGTERM)
        assert asked()


def test_a_second_interrupt_stops_at_once() -> None:
    with stop_between_shards() as asked:
        assert not asked()
        signal.raise_signal(signal.SIGINT)
        assert asked()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_signal_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_between_shards():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_other_threads_run_without_signal_handlers(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    finished: list[bool] = []
    thread = threading.Thread(target=lambda: finished.append(run(path, talks(3), 4)))
    thread.start()
    thread.join()
    assert finished == [True]
    assert path.read_bytes().count(b"\n") == 3
