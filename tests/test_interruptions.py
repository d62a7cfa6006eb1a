"""Runs that are killed, stopped, starved of disk or damaged: resumed, each gives the uninterrupted run's bytes."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from scripted import BatchSensitive, command, talks, without_models, write_talks
from typer.testing import CliRunner, Result

from vista_local.cli import app
from vista_local.config import ScoreConfig
from vista_local.evaluator import Evaluator
from vista_local.pipeline import Pipeline
from vista_local.runner import OutputFile, score_to_file, shards

TALKS, SHARD = 60, 8
#: A slowed run takes about TALKS / SHARD shards * 4 batches * BATCH plus its writes: over 3 seconds.
BATCH, WRITE = 0.05, 0.001


@pytest.fixture(scope="module")
def children() -> Any:
    """Processes forked from a server that has the command imported already, and torch not."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vista_local.cli", "vista_local.evaluator", "vista_local.runner", "rich.progress"])
    return context


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_talks(tmp_path / "in.jsonl", TALKS)


@pytest.fixture
def score(monkeypatch: pytest.MonkeyPatch, source: Path) -> Callable[..., Result]:
    """The command in this process, unslowed."""
    monkeypatch.setattr(Evaluator, "from_pretrained", without_models(BatchSensitive))

    def call(out: Path, *options: str) -> Result:
        return CliRunner().invoke(app, ["score", str(source), "-o", str(out), "--shard-size", str(SHARD), *options])

    return call


@pytest.fixture
def whole(score: Callable[..., Result], tmp_path: Path) -> bytes:
    """The bytes of an uninterrupted run."""
    result = score(tmp_path / "whole.jsonl")
    assert result.exit_code == 0, result.output
    return (tmp_path / "whole.jsonl").read_bytes()


@pytest.fixture
def start(children: Any, source: Path, tmp_path: Path) -> Any:
    """Starts the slowed command in a process of its own; returns it once its output file is there."""
    started: list[BaseProcess] = []

    def call(out: Path, *options: str) -> BaseProcess:
        arguments = ["score", str(source), "-o", str(out), "--shard-size", str(SHARD), *options]
        child = children.Process(target=command, args=(arguments, str(tmp_path / "log.txt"), BATCH, WRITE))
        child.start()
        started.append(child)
        while child.is_alive() and not out.exists():
            time.sleep(0.005)
        return child

    yield call
    for child in started:
        child.kill()
        child.join()


def boundaries(whole: bytes) -> list[bytes]:
    """What a file may hold after some shards."""
    lines = whole.splitlines(keepends=True)
    ends = [0]
    for shard in shards(talks(TALKS), SHARD):
        ends.append(ends[-1] + len(shard))
    return [b"".join(lines[:end]) for end in ends]


def test_kill_9_at_20_random_moments(start: Any, score: Callable[..., Result], whole: bytes, tmp_path: Path) -> None:
    moments = random.Random(17)
    halves = 0
    for number in range(20):
        out = tmp_path / f"{number}.jsonl"
        child = start(out)
        time.sleep(moments.uniform(0, 0.5))
        child.kill()
        child.join()
        assert child.exitcode == -signal.SIGKILL  # it was not done before
        left = out.read_bytes()
        assert whole.startswith(left)
        halves += left not in boundaries(whole)
        assert score(out, "--resume").exit_code == 0
        assert out.read_bytes() == whole
    assert halves, "no kill hit a half-written shard: the writes are not slow enough for this test to test that"


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_shard_and_says_how_to_go_on(
    start: Any, score: Callable[..., Result], whole: bytes, tmp_path: Path, sign: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    child = start(out)
    while not out.stat().st_size:
        time.sleep(0.005)
    os.kill(child.pid, sign)
    child.join()
    said = (tmp_path / "log.txt").read_text(encoding="utf-8")
    assert child.exitcode == 130, said
    assert "finishing this shard" in said and "--resume" in said and "Traceback" not in said
    assert out.read_bytes() in boundaries(whole)[1:-1]
    assert score(out, "--resume").exit_code == 0
    assert out.read_bytes() == whole


def test_a_second_ctrl_c_stops_at_once(start: Any, score: Callable[..., Result], whole: bytes, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    child = start(out)
    while not out.stat().st_size:
        time.sleep(0.005)
    for _ in range(2):
        os.kill(child.pid, signal.SIGINT)
        time.sleep(0.02)
    child.join()
    assert child.exitcode not in (0, None)
    assert "Traceback" not in (tmp_path / "log.txt").read_text(encoding="utf-8")
    left = out.read_bytes() if out.exists() else b""  # where no shard was whole, the file is taken away
    assert whole.startswith(left)
    assert score(out, "--resume").exit_code == 0
    assert out.read_bytes() == whole


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_waits_for_its_piped_input(
    score: Callable[..., Result], source: Path, whole: bytes, tmp_path: Path, sign: signal.Signals
) -> None:
    out = tmp_path / "out.jsonl"
    program = [sys.executable, str(Path(__file__).with_name("scripted.py")), "score", "-", "-o", str(out)]
    with subprocess.Popen(
        [*program, "--shard-size", str(SHARD)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin and child.stderr
        try:
            child.stdin.write(b"".join(source.read_bytes().splitlines(keepends=True)[:3]))
            child.stdin.flush()
            while child.poll() is None and not (out.exists() and out.stat().st_size):
                time.sleep(0.005)
            child.send_signal(sign)
            assert child.wait(60) == 130
            said = child.stderr.read().decode()
        finally:
            child.kill()
    assert "--resume" in said and "Traceback" not in said
    assert out.read_bytes() == boundaries(whole)[1]
    assert score(out, "--resume").exit_code == 0
    assert out.read_bytes() == whole


def test_of_two_runs_on_one_output_the_second_refuses(
    start: Any, score: Callable[..., Result], whole: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    child = start(out)
    for options in ((), ("--resume",)):
        refused = score(out, *options)
        assert refused.exit_code == 2
        assert "another run is writing to this file" in refused.stderr
    child.join()
    assert child.exitcode == 0
    assert out.read_bytes() == whole


def test_a_full_disk_ends_the_run_with_whole_shards(
    score: Callable[..., Result], whole: bytes, source: Path, tmp_path: Path
) -> None:
    unshare = shutil.which("unshare")
    small, kept = tmp_path / "small", tmp_path / "kept.jsonl"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=16k none "$0"'
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", mount, str(small)], capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs in a mount namespace here (root on Linux)")
    assert len(whole) > 32_768
    score_there = f'{mount} && "$@"; code=$?; cp "$0/out.jsonl" {kept}; exit $code'
    program = [sys.executable, str(Path(__file__).with_name("scripted.py")), "score", str(source)]
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", score_there, str(small), *program, "-o", f"{small}/out.jsonl", "--shard-size", "8"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "No space left on device; finished shards are kept, go on with --resume once there is room" in done.stderr
    assert kept.read_bytes() in boundaries(whole)[1:-1]
    assert score(kept, "--resume").exit_code == 0
    assert kept.read_bytes() == whole


def test_a_file_cut_at_every_byte_of_its_last_lines_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # over a thousand short runs

    def run(path: Path, resume: bool) -> None:
        with OutputFile(path, {"id": "r"}, 4, resume) as output:
            config = ScoreConfig(shard_size=4, keep_input=False)
            assert score_to_file(Pipeline(BatchSensitive(), config), talks(5), output, {"id": "r"})

    path = tmp_path / "out.jsonl"
    run(path, resume=False)
    content = path.read_bytes()
    last = content.splitlines(keepends=True)[-2:]
    for cut in range(sum(map(len, last)) + 1):
        path.write_bytes(content[: len(content) - cut])
        run(path, resume=True)
        assert path.read_bytes() == content
