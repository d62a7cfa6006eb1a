"""Collecting traces: what a line holds, going on after any interruption, and what training makes of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_endpoint import FakeEndpoint, stage_of, usual_answer
from test_teacher import parsed, talk
from typer import Typer
from typer.testing import CliRunner, Result

from training.collect import main, prompt_digests
from training.data import load_teacher_turns
from training.trace_form import check_trace
from vista_local.errors import InputError
from vista_local.fewshot import FEWSHOT_VERSION
from vista_local.labels import Label
from vista_local.pipeline import Pipeline
from vista_local.prompts import PROMPT_VERSION, StoreLine
from vista_local.readers import open_conversations

app = Typer()
app.command()(main)
V, S, L = Label.VERIFIED, Label.OUT_OF_SCOPE, Label.LACKING_EVIDENCE


@pytest.fixture
def files(server: FakeEndpoint, tmp_path: Path) -> Any:
    """Writes input and teacher files; returns the command's arguments and the output path."""

    def make(talks: list[dict[str, Any]], **settings: Any) -> tuple[list[str], Path]:
        source, teacher, out = tmp_path / "in.jsonl", tmp_path / "teacher.yaml", tmp_path / "traces.jsonl"
        source.write_text("".join(json.dumps(t) + "\n" for t in talks), encoding="utf-8")
        teacher.write_text(yaml.safe_dump({"base_url": server.url, "model": "scripted"} | settings), encoding="utf-8")
        return [str(source), "-o", str(out), "--teacher", str(teacher)], out

    return make


def run(arguments: list[str], *options: str) -> Result:
    return CliRunner().invoke(app, [*arguments, *options])


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    text = " ".join(result.stderr.split())
    for word in words:
        assert word in text, text
    assert "Traceback" not in text


def test_a_trace_holds_prompts_answers_claims_labels_and_memory(server: FakeEndpoint, files: Any) -> None:
    settings = {"contradiction": True, "prices": {"input": 1, "output": 2}}
    arguments, out = files([talk("a") | {"background": ["Mill a stands in Ulm."]}], **settings)
    result = run(arguments)
    assert result.exit_code == 0, result.output
    (record,) = records(out)
    assert [t["role"] for t in record["turns"]] == ["user", "assistant"] * 2
    last = record["turns"][3]
    assert [c["label"] for c in last["claims"]] == ["VERIFIED", "VERIFIED", "VERIFIED", "LACKING_EVIDENCE"]
    assert last["trace"]["memory"] == [
        {"claim": "Mill a stands in Ulm.", "kind": "fact", "turn": -1, "number": 0},
        {"claim": "The mill a has 0 doors.", "kind": "fact", "turn": 1, "number": 0},
        {"claim": "I like mill a.", "kind": "stated", "turn": 1, "number": 1},
    ]
    calls = last["trace"]["calls"]
    assert [c["stage"] for c in calls] == ["decompose", *["verify"] * 4, "categorise", "contradiction"]
    assert last["trace"]["contradiction"] == {"contradicts": False, "where": []}
    # Each call is the one that was sent: its user message closes the messages of a request.
    sent = {(stage_of(b), b["messages"][-1]["content"]) for b in server.bodies}
    traced = {(c["stage"], c["user"]) for t in record["turns"] if "trace" in t for c in t["trace"]["calls"]}
    assert traced == sent
    assert calls[1]["answers"] == [{"text": "VERIFIED", "finish": "stop"}]
    assert record["trace"]["fewshot_version"] == FEWSHOT_VERSION
    assert record["trace"]["prompt_version"] == PROMPT_VERSION
    assert record["trace"]["prompts"] == prompt_digests("few") != prompt_digests("zero")
    assert record["trace"]["models"] == ["scripted-0"]
    assert record["trace"]["run"]["teacher"]["model"] == "scripted"
    assert record["usage"]["calls"] == server.calls
    assert record["usage"]["cost"] == pytest.approx(server.calls * 120e-6)


def test_training_reads_traces_beside_written_conversations(files: Any) -> None:
    arguments, out = files([talk("a"), talk("b", turns=3)])
    assert run(arguments).exit_code == 0
    turns = load_teacher_turns(out)
    assert [(t.id, t.turn) for t in turns] == [("a", 1), ("a", 3), ("b", 1), ("b", 3), ("b", 5)]
    assert [label for _, label in turns[1].claims] == [V, V, V, L]
    assert turns[1].store == (StoreLine("The mill a has 0 doors."), StoreLine("I like mill a.", stated=True))
    assert turns[1].reference == ("The mill a has 1 doors. It is old.",)
    # And they are an input like any other.
    assert [c.id for c in open_conversations(str(out))] == ["a", "b"]


def test_what_is_unscored_is_recorded_and_is_no_example(server: FakeEndpoint, files: Any) -> None:
    def answer(body: dict[str, Any]) -> str:
        hard = any("burned in 1900" in m["content"].rpartition("Claim:")[2] for m in body["messages"])
        return "hm" if stage_of(body) == "verify" and hard else usual_answer(body)

    server.answer = answer
    arguments, out = files([talk("a")])
    result = run(arguments)
    assert result.exit_code == 0, result.output
    assert "1 claims or turns unscored" in result.stderr
    (record,) = records(out)
    claim = record["turns"][1]["claims"][2]
    assert claim["label"] is None and claim["unscored"].startswith("verify: asked twice")
    assert len(record["turns"][1]["trace"]["calls"][3]["answers"]) == 2
    assert [t.turn for t in load_teacher_turns(out)] == [3]


def test_unreferenced_turns_have_no_labels_to_train_on(files: Any) -> None:
    data = talk("a")
    del data["turns"][1]["reference"]
    arguments, out = files([data])
    assert run(arguments, "--unreferenced", "trust").exit_code == 0
    (record,) = records(out)
    assert "claims" not in record["turns"][1]
    assert record["turns"][1]["trace"]["claims"][0] == "The mill a has 0 doors."
    (turn,) = load_teacher_turns(out)
    assert turn.store[0] == StoreLine("The mill a has 0 doors.")


def test_claims_of_the_input_give_way_to_the_teachers(files: Any) -> None:
    data = talk("a", turns=1)
    data["turns"][1]["claims"] = [{"claim": "It is new.", "label": "VERIFIED"}]
    arguments, out = files([data])
    assert run(arguments).exit_code == 0
    assert len(records(out)[0]["turns"][1]["claims"]) == 3
    out.unlink()
    assert run(arguments, "--given-claims").exit_code == 0
    assert records(out)[0]["turns"][1]["claims"] == [{"claim": "It is new.", "label": "LACKING_EVIDENCE"}]


# ---- interruptions ----


def test_running_again_goes_on_and_an_interrupted_write_is_dropped(server: FakeEndpoint, files: Any) -> None:
    talks = [talk(str(n)) for n in range(5)]
    arguments, out = files(talks)
    assert run(arguments).exit_code == 0
    whole, calls = out.read_bytes(), server.calls
    result = run(arguments)
    assert result.exit_code == 0 and out.read_bytes() == whole
    assert "5 from earlier runs" in result.stderr
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 10]
    out.write_bytes(whole[: ends[2] + 300])  # two conversations and a part are lost
    assert run(arguments).exit_code == 0
    assert out.read_bytes() == whole
    assert server.calls == calls  # the lost ones came from the cache


def test_kill_9_loses_nothing_that_was_paid_for(
    server: FakeEndpoint, files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.delay = 0.03
    arguments, out = files([talk(str(n), turns=3) for n in range(8)], concurrency=2)
    process = subprocess.Popen(
        [sys.executable, "-m", "training.collect", *arguments], cwd=Path(__file__).parent.parent, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not (out.exists() and out.read_bytes().count(b"\n") >= 2):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr.read().decode()[-2000:]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    kept = [line for line in out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert 2 <= len(kept) < 8
    sent = server.calls
    server.delay = 0.0
    assert run(arguments).exit_code == 0
    assert out.read_bytes().startswith(b"".join(kept))
    assert [r["id"] for r in records(out)] == [str(n) for n in range(8)]
    needed = sum(r["usage"]["calls"] for r in records(out))
    # Asked twice are at most the calls that were in flight when it was killed.
    assert needed <= server.calls <= needed + 2
    assert server.calls > sent


def test_a_cost_stop_keeps_finished_conversations_and_goes_on(server: FakeEndpoint, files: Any) -> None:
    settings = {"prices": {"input": 100, "output": 100}, "shots": "zero", "label_max_tokens": 16, "max_tokens": 64}
    arguments, out = files([talk(str(n)) for n in range(6)], **settings, concurrency=2)
    refused(run(arguments, "--max-cost", "0.7"), "--max-cost 0.7 could be passed", "the same command and a larger")
    assert 0.2 < 0.011 * server.calls <= 0.7
    kept = out.read_bytes()
    assert 1 <= kept.count(b"\n") < 6
    assert run(arguments, "--max-cost", "0.7").exit_code == 0  # a new run, with money of its own
    assert out.read_bytes().startswith(kept) and len(records(out)) == 6
    assert server.calls == sum(r["usage"]["calls"] for r in records(out))


def test_an_endpoint_that_fails_keeps_what_was_collected(server: FakeEndpoint, files: Any) -> None:
    arguments, out = files([talk(str(n)) for n in range(4)], max_retries=1, concurrency=1)
    server.script = lambda n, b, h: n >= 30 and (h.send(500, {"error": {"message": "down"}}) or True)
    refused(run(arguments), "the server failed (500)", "are kept", "go on with the same command")
    assert 1 <= out.read_bytes().count(b"\n") < 4
    server.script = None
    assert run(arguments).exit_code == 0
    assert len(records(out)) == 4


def test_a_failed_conversation_is_told_of_until_it_is_collected_again(
    server: FakeEndpoint, files: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, out = files([talk(name) for name in "abc"])
    score = Pipeline._score_together

    def failing(self: Pipeline, shard: Any) -> Any:
        if shard[0].id == "b":
            raise RuntimeError("a fault of the code")
        return score(self, shard)

    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "_score_together", failing)
        result = run(arguments)
    kept = out.read_bytes()
    assert [r.get("error") for r in records(out)] == [None, "RuntimeError: a fault of the code", None]
    assert [t.id for t in load_teacher_turns(out)] == ["a", "a", "c", "c"]  # a failed one is no example
    for each in (result, run(arguments)):
        said = " ".join(each.stderr.split())
        assert each.exit_code == 3, each.output
        assert f"1 conversation failed: an 'error' in {out}, the first in line 2" in said
        assert "delete that line and all after it and run the same command" in said
    assert out.read_bytes() == kept
    calls = server.calls
    out.write_bytes(kept.splitlines(keepends=True)[0])
    assert run(arguments).exit_code == 0
    assert [r["id"] for r in records(out)] == ["a", "b", "c"] and not any("error" in r for r in records(out))
    assert server.calls - calls == records(out)[1]["usage"]["calls"]  # the others came from the cache


def test_a_dry_run_writes_and_sends_nothing(server: FakeEndpoint, files: Any) -> None:
    arguments, out = files([talk("a")])
    result = run(arguments, "--dry-run")
    assert result.exit_code == 0 and "2 decompose" in result.stdout
    assert server.calls == 0 and not out.exists()


def test_a_full_disk_is_one_sentence_and_whole_lines_stay(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, out = files([talk(str(n)) for n in range(3)])
    pwrite, calls = os.pwrite, 0

    def filling_up(descriptor: int, data: bytes, offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:  # the first line is written whole, of the second one a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data[:100] if calls == 2 else data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", filling_up)
        result = run(arguments)
    refused(result, "traces.jsonl: No space left on device; finished conversations are kept, run again once there is")
    assert result.stderr.count("error:") == 1 and calls == 3
    assert [r["id"] for r in records(out)] == ["0"]
    assert run(arguments).exit_code == 0
    assert [r["id"] for r in records(out)] == ["0", "1", "2"]


def test_a_disk_that_is_really_full(files: Any, tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    small, kept = tmp_path / "small", tmp_path / "kept.jsonl"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=40k none "$0"'
    if not unshare or subprocess.run([unshare, "-m", "sh", "-c", mount, str(small)], capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs in a mount namespace here (root on Linux)")
    arguments, out = files([talk(str(n), turns=3) for n in range(8)])
    there = [str(small / "out.jsonl") if a == str(out) else a for a in arguments]
    command = f'{mount} && "$@"; code=$?; cp "$0/out.jsonl" {kept}; exit $code'
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", command, str(small), sys.executable, "-m", "training.collect", *there],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "No space left on device; finished conversations are kept" in done.stderr
    names = [r["id"] for r in records(kept)]
    assert names and names == [str(n) for n in range(len(names))] and len(names) < 8
    assert kept.read_bytes().endswith(b"\n")


# ---- settings of the input ----


def config_of(out: Path) -> dict[str, Any]:
    return dict(records(out)[0]["trace"]["run"]["config"])


def test_the_vista_form_trusts_unreferenced_turns_unless_told_otherwise(files: Any) -> None:
    turns = [
        {"role": "wizard", "utterance": "The mill a has 0 doors.", "retrieved_document": "N/A"},
        {"role": "apprentice", "utterance": "Go on."},
        {"role": "wizard", "utterance": "It is old.", "retrieved_document": "The mill a has 0 doors. It is old."},
    ]
    arguments, out = files([{"id": "a", "turns": turns}])
    assert run(arguments).exit_code == 0
    assert config_of(out)["memory"]["unreferenced"] == "trust"
    assert [m["claim"] for m in records(out)[0]["turns"][2]["trace"]["memory"]] == ["The mill a has 0 doors."]
    out.unlink()
    assert run(arguments, "--unreferenced", "skip").exit_code == 0
    assert records(out)[0]["turns"][2]["trace"]["memory"] == []
    out.unlink()
    arguments, out = files([talk("a")])
    assert run(arguments).exit_code == 0
    assert config_of(out)["memory"]["unreferenced"] == "skip"


def test_a_profile_counts_more_than_the_teachers_file_and_less_than_an_option(files: Any) -> None:
    arguments, out = files([talk("a")], context="full")
    for options, context, unreferenced in (
        ((), "full", "skip"),
        (("--profile", "paper"), "none", "trust"),
        (("--profile", "paper", "--context", "recent"), "recent", "trust"),
    ):
        assert run(arguments, *options).exit_code == 0
        assert (config_of(out)["context"], config_of(out)["memory"]["unreferenced"]) == (context, unreferenced)
        out.unlink()
    refused(run(arguments, "--profile", "papers"), "unknown profile 'papers'")


def test_other_roles_are_mapped_and_broken_records_skipped_on_demand(files: Any) -> None:
    strange = talk("a")
    strange["turns"][0]["role"] = "speaker1"
    arguments, out = files([strange, {"id": "broken", "turns": "none"}, talk("b")])
    refused(run(arguments, "--skip-bad-records", "--role", "speaker1"), "--role 'speaker1'", "NAME=user")
    refused(run(arguments, "--role", "speaker1=user"), "line 2", "a list of turns is expected")
    result = run(arguments, "--role", "speaker1=user", "--skip-bad-records")
    assert result.exit_code == 0, result.output
    assert [r["id"] for r in records(out)] == ["a", "b"]
    assert "skipped 1 broken record; the first: " in " ".join(result.stderr.split())


# ---- what is refused ----


def test_a_file_of_another_run_is_refused_unchanged(files: Any) -> None:
    arguments, out = files([talk("a")])
    run(arguments)
    before = out.read_bytes()
    changed, _ = files([talk("a")], seed=5)
    refused(run(changed), "traces.jsonl, line 1", "collected by run")
    changed, _ = files([talk("b")])
    refused(run(changed), "'a' as conversation 1", "'b'")
    out.write_text('{"id": "a"}\n', encoding="utf-8")
    refused(run(arguments), "line 1", "no trace; nothing was changed")
    assert out.read_text(encoding="utf-8") == '{"id": "a"}\n'
    out.write_bytes(before)
    assert run(files([talk("a")])[0]).exit_code == 0


def test_training_refuses_cut_traces(files: Any) -> None:
    arguments, out = files([talk("a"), talk("b")])
    run(arguments)
    whole = out.read_bytes()
    out.write_bytes(whole[:-40])
    with pytest.raises(InputError, match=r"line 2: the line is cut off.*run training.collect again"):
        load_teacher_turns(out)
    out.write_bytes(whole.replace(b'{"id": "a"', b'"id": "a"'))
    with pytest.raises(InputError, match="line 1: no JSON"):
        load_teacher_turns(out)


@pytest.mark.parametrize("name", ["fewshot_version", "prompt_version"])
def test_traces_of_other_prompts_are_refused_everywhere(files: Any, name: str) -> None:
    arguments, out = files([talk("a")])
    run(arguments)
    (record,) = records(out)
    record["trace"][name] = "0"
    out.write_text(json.dumps(record) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"line 1: a trace of {name} '0'.*collect again"):
        load_teacher_turns(out)
    refused(run(arguments), f"a trace of {name} '0'")


def test_a_conversation_without_trace_passes_and_another_form_does_not() -> None:
    check_trace({"id": "a", "turns": []}, "here")
    with pytest.raises(InputError, match="here: trace form 'x/2'; accepted"):
        check_trace({"trace": {"form": "x/2"}}, "here")


def test_odd_text_survives(files: Any) -> None:
    data = talk("a", turns=1)
    data["turns"][1]["text"] = "Ein \ud800 Halbes. \u2028 Zwei\tTeile. Drei \U0001f600."
    arguments, out = files([data])
    result = run(arguments)
    assert result.exit_code == 0, result.output
    (turn,) = load_teacher_turns(out)
    assert turn.text == parsed(data).turns[1].text
