"""The prompted pipeline against a real OpenAI-compatible server: `transformers serve` with the default base."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from test_collect import records, run

from training.data import load_teacher_turns
from vista_local.fewshot import answer_problem

TALK = {
    "id": "mill",
    "turns": [
        {"role": "user", "text": "When was the mill built?"},
        {"role": "assistant", "text": "It was built in 1912.", "reference": "The mill was built in 1912."},
    ],
}


@pytest.fixture(scope="module")
def served(default_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Address and model name of a running server."""
    pytest.importorskip("fastapi", reason="needs: pip install 'transformers[serving]'")
    pytest.importorskip("uvicorn", reason="needs: pip install 'transformers[serving]'")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = ["serve", str(default_base), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", *command],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        deadline = time.monotonic() + 1200  # a busy machine loads slowly
        while True:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1", str(default_base)
    finally:
        process.terminate()
        process.wait()


@pytest.mark.model
@pytest.mark.slow
def test_traces_from_a_real_server(served: tuple[str, str], tmp_path: Path) -> None:
    url, model = served
    source, teacher, out = tmp_path / "in.jsonl", tmp_path / "teacher.yaml", tmp_path / "traces.jsonl"
    source.write_text(json.dumps(TALK) + "\n", encoding="utf-8")
    settings = {"shots": "few", "seed": 17, "max_tokens": 48, "label_max_tokens": 8, "concurrency": 1, "timeout": 400}
    teacher.write_text(
        yaml.safe_dump({"base_url": url, "model": model, "cache": str(tmp_path / "c.sqlite")} | settings),
        encoding="utf-8",
    )
    arguments = [str(source), "-o", str(out), "--teacher", str(teacher)]
    result = run(arguments)
    assert result.exit_code == 0, result.output
    (record,) = records(out)
    turn = record["turns"][1]
    # A model of 135 million parameters may answer anything; whatever it is, it is told as it was.
    calls = turn["trace"]["calls"]
    assert calls[0]["stage"] == "decompose" and calls[0]["answers"][0]["text"]
    assert record["usage"]["input_tokens"] > 500 * len(calls)  # counted by the server
    for call in calls:
        problems = [answer_problem(call["stage"], a["text"], cut=a["finish"] == "length") for a in call["answers"]]
        assert ("unscored" in call) == (problems[-1] is not None)
        assert len(call["answers"]) == (1 if problems[0] is None else 2)
    for claim in turn["claims"]:
        assert (claim["label"] is None) == ("unscored" in claim)
    assert len(load_teacher_turns(out)) <= 1
    whole = out.read_bytes()
    out.unlink()
    again = run(arguments)
    assert again.exit_code == 0 and out.read_bytes() == whole
    assert "0 calls" in again.stderr
