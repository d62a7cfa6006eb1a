"""The command line on a tiny random model: every way to get it wrong ends in one sentence and exit code 2."""

from __future__ import annotations

import gzip
import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from vista_local.cli import _counted, app

NATIVE = {
    "id": "c1",
    "turns": [
        {"role": "user", "text": "When was it built?"},
        {
            "role": "assistant",
            "text": "In 1931.",
            "reference": "It was built in 1931.",
            "claims": ["It was built in 1931."],
        },
    ],
}


@pytest.fixture
def score(tiny_base: Path, tiny_adapters: Path, tmp_path: Path) -> Any:
    """Runs `score` with given claims on a file of the given content; returns the result and the output path."""

    def call(content: bytes | str | None, *options: str, name: str = "in.jsonl") -> tuple[Result, Path]:
        source, out = tmp_path / name, tmp_path / "out.jsonl"
        if content is not None:
            source.write_bytes(content.encode() if isinstance(content, str) else content)
        models = ["--base", str(tiny_base), "--adapters", str(tiny_adapters)]
        arguments = ["score", str(source), "-o", str(out), "--given-claims", *models, *options]
        return CliRunner().invoke(app, arguments), out

    return call


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    text = " ".join(result.stderr.split())
    for word in words:
        assert word in text, text
    assert "Traceback" not in text


def test_scores_a_file_and_prints_a_summary(score: Any) -> None:
    result, out = score(json.dumps(NATIVE))
    assert result.exit_code == 0, result.output
    (line,) = lines(out)
    assert line["id"] == "c1"
    assert [c["text"] for c in line["turns"][0]["claims"]] == ["It was built in 1931."]
    for word in ("VISTA score", "coverage", "strict", "not measured"):
        assert word in result.stderr


def test_gzip_and_standard_input_give_the_same_line(
    score: Any, tiny_base: Path, tiny_adapters: Path, tmp_path: Path
) -> None:
    _, out = score(gzip.compress(json.dumps(NATIVE).encode()), name="in.gz")
    other = tmp_path / "stdin.jsonl"
    options = ["--given-claims", "--base", str(tiny_base), "--adapters", str(tiny_adapters)]
    result = CliRunner().invoke(app, ["score", "-", "-o", str(other), *options], input=json.dumps(NATIVE))
    assert result.exit_code == 0, result.output
    assert other.read_bytes() == out.read_bytes()


def test_the_vista_form_trusts_unreferenced_turns_unless_told_otherwise(score: Any) -> None:
    talk = [
        {
            "role": "wizard",
            "utterance": "Tea is a plant.",
            "retrieved_document": "N/A",
            "human_claims": ["Tea is a plant."],
        },
        {"role": "apprentice", "utterance": "Is it?"},
        {
            "role": "wizard",
            "utterance": "Yes.",
            "retrieved_document": "Tea is a plant.",
            "human_claims": ["Tea is a plant."],
        },
    ]
    result, out = score(json.dumps([talk]))
    assert result.exit_code == 0, result.output
    (line,) = lines(out)
    assert line["run"]["config"]["memory"]["unreferenced"] == "trust"
    assert line["turns"][1]["memory"] == [[0, 0]]
    out.unlink()
    settings = out.parent / "settings.yaml"
    settings.write_text("memory: {unreferenced: verify}\n", encoding="utf-8")
    _, out = score(json.dumps([talk]), "--config", str(settings))
    assert lines(out)[0]["run"]["config"]["memory"]["unreferenced"] == "verify"
    out.unlink()
    _, out = score(json.dumps([talk]), "--unreferenced", "skip")
    assert lines(out)[0]["turns"][1]["memory"] == []


def test_turns_that_given_claims_leave_alone_are_counted(score: Any) -> None:
    talk = {"id": "c", "turns": [*NATIVE["turns"], {"role": "assistant", "text": "It is old.", "reference": []}] * 2}
    result, out = score(json.dumps(talk))
    assert result.exit_code == 0 and len(lines(out)[0]["turns"]) == 2
    assert "left alone for want of 'claims' (--given-claims): 2 assistant turns" in " ".join(result.stderr.split())


def test_an_existing_result_file_is_refused_before_a_model_is_looked_for(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("kept\n", encoding="utf-8")
    arguments = ["score", "example", "-o", str(out), "--base", str(tmp_path / "no-such-base")]
    refused(CliRunner().invoke(app, arguments), "out.jsonl: exists; add --resume")
    assert out.read_text(encoding="utf-8") == "kept\n"


def test_settings_reach_the_result(score: Any, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("context: none\nshard_size: 7\n", encoding="utf-8")
    result, out = score(json.dumps(NATIVE), "--config", str(settings), "--context", "full", "--full-probs")
    assert result.exit_code == 0, result.output
    config = lines(out)[0]["run"]["config"]
    assert (config["context"], config["shard_size"], config["full_probs"]) == ("full", 7, True)
    assert len(lines(out)[0]["turns"][0]["claims"][0]["probs"]) == 5


def test_broken_records_are_skipped_and_counted_on_demand(score: Any) -> None:
    content = json.dumps(NATIVE) + "\nnot json\n" + json.dumps(NATIVE | {"id": "c2"})
    result, out = score(content)
    refused(result, "line 2")
    out.unlink(missing_ok=True)
    result, out = score(content, "--skip-bad-records")
    assert result.exit_code == 0, result.output
    assert [line["id"] for line in lines(out)] == ["c1", "c2"]
    assert "1 broken record" in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, (), ("in.jsonl",)),
        ("", (), ("in.jsonl",)),
        ("{", (), ("in.jsonl",)),
        (json.dumps({"id": "x", "turns": [{"role": "robot", "text": "hi"}]}), (), ("robot", "turn 1")),
        (json.dumps(NATIVE), ("--context", "some"), ("context", "none")),
        (json.dumps(NATIVE), ("--unreferenced", "maybe"), ("unreferenced",)),
        (json.dumps(NATIVE), ("--profile", "papers"), ("papers", "paper")),
        (json.dumps(NATIVE), ("--role", "robot"), ("--role", "NAME=user")),
        (json.dumps(NATIVE), ("--config", "no/such.yaml"), ("no/such.yaml",)),
        (json.dumps(NATIVE), ("--oracle-memory",), ("label",)),
        (json.dumps(NATIVE), ("--adapters", "no/such"), ("no/such",)),
        (json.dumps(NATIVE), ("--base", "no/such"), ("no/such",)),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    score: Any, content: str | None, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result, _ = score(content, *options)
    refused(result, *words)


def test_a_misspelt_setting_is_answered_with_the_nearest(score: Any, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("contxt: none\n", encoding="utf-8")
    result, _ = score(json.dumps(NATIVE), "--config", str(settings))
    refused(result, "contxt", "context")


def test_an_existing_result_is_not_overwritten(score: Any) -> None:
    _, out = score(json.dumps(NATIVE))
    before = out.read_bytes()
    result, _ = score(json.dumps(NATIVE))
    refused(result, "--resume")
    assert out.read_bytes() == before


def test_output_must_be_a_file(tiny_base: Path, tiny_adapters: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(NATIVE), encoding="utf-8")
    options = ["--base", str(tiny_base), "--adapters", str(tiny_adapters)]
    refused(CliRunner().invoke(app, ["score", str(source), "-o", str(tmp_path), *options]), "folder")
    missing = tmp_path / "no" / "out.jsonl"
    refused(CliRunner().invoke(app, ["score", str(source), "-o", str(missing), *options]), "cannot be written")


def test_version_and_help_need_no_model() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.startswith("vista-local ")
    assert "INPUT" in CliRunner().invoke(app, ["score", "--help"]).output


def test_nothing_is_taken_from_a_pipe_to_count_its_conversations(tmp_path: Path) -> None:
    pipe, content = tmp_path / "pipe", b'{"id": "a"}\n{"id": "b"}\n'
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # both ends: neither opening nor reading waits
    try:
        os.write(end, content)
        assert _counted(pipe) is None
        assert os.read(end, 100) == content
    finally:
        os.close(end)
    (tmp_path / "file").write_bytes(content + b"\n")
    assert _counted(tmp_path / "file") == 2
    (tmp_path / "file").write_bytes(b'{\n"id": "a"\n}\n')
    assert _counted(tmp_path / "file") is None


@pytest.mark.parametrize(
    "command", [["score", "x", "-o", "y"], ["evaluate", "--benchmark", "vista", "--data", "x", "-o", "y"]]
)
def test_no_threads_are_refused_before_anything_is_opened(command: list[str]) -> None:
    refused(CliRunner().invoke(app, [*command, "--threads", "0"]), "--threads", "greater than or equal to 1")


@pytest.mark.parametrize("module", ["training.evaluate", "training.chunk_sizes"])
def test_no_threads_are_refused_when_measuring_too(module: str) -> None:
    measure = typer.Typer()
    measure.command()(importlib.import_module(module).main)
    refused(CliRunner().invoke(measure, ["--threads", "0"]), "--threads", "greater than or equal to 1")


def test_fetch_says_which_commands_open_a_connection() -> None:
    text = " ".join(CliRunner().invoke(app, ["fetch", "--help"]).output.split())
    assert "only command that opens a connection" not in text
    for words in ("evaluate --data hub:", "--teacher", "--allow-remote"):
        assert words in text
