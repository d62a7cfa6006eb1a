"""The real default model with its real adapters, on small inputs."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vista_local.config import ScoreConfig
from vista_local.evaluator import Evaluator, adapters_dir
from vista_local.labels import LABELS, Label
from vista_local.output import parse_result_line
from vista_local.schema import TurnStatus

pytestmark = pytest.mark.model

EXAMPLES = Path(__file__).parent.parent / "vista_local" / "examples" / "conversations.jsonl"
SCORE = [sys.executable, "-c", "from vista_local.cli import run; run()", "score"]


@pytest.fixture(scope="module")
def evaluator(default_base: Path) -> Evaluator:
    return Evaluator.from_pretrained(base=str(default_base))


@pytest.fixture(scope="module")
def scored(
    default_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The shipped examples through the command line, two conversations a shard."""
    out = tmp_path_factory.mktemp("scored") / "out.jsonl"
    done = subprocess.run(
        [*SCORE, "example", "-o", str(out), "--base", str(default_base), "--shard-size", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    return out, done


def test_command_scores_every_example(scored: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = scored
    assert done.returncode == 0, done.stderr
    given = [json.loads(line) for line in EXAMPLES.read_text(encoding="utf-8").splitlines()]
    lines = out.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [c["id"] for c in given]
    for conversation, line in zip(given, lines, strict=True):
        result = parse_result_line(line)
        assistant = [i for i, t in enumerate(conversation["turns"]) if t["role"] == "assistant"]
        assert [t.index for t in result.turns] == assistant
        for turn in result.turns:
            assert (turn.status is TurnStatus.SCORED) == ("reference" in conversation["turns"][turn.index])
            for claim in turn.claims:
                assert claim.label in LABELS
                assert math.isclose(sum(claim.probs.values()), 1, abs_tol=1e-4)
    claims = sum(len(t.claims) for line in lines for t in parse_result_line(line).turns)
    assert claims >= 10, "the examples hold over twenty claims; decompose must find most of them"
    assert "VISTA score" in done.stderr and "coverage" in done.stderr
    assert "Warning" not in done.stderr


def test_result_names_everything_it_depends_on(scored: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    run = json.loads(scored[0].read_text(encoding="utf-8").splitlines()[0])["run"]
    manifest = json.loads((adapters_dir() / "verify" / "manifest.json").read_text(encoding="utf-8"))
    assert run["base_sha256"] == manifest["base_sha256"]
    assert run["adapters"]["verify"] == manifest["adapter_sha256"]
    assert run["config"]["context"] == "recent"
    assert {"torch", "transformers", "peft"} <= set(run["software"])


def test_interrupted_file_resumes_to_the_same_bytes(
    scored: tuple[Path, subprocess.CompletedProcess[str]], default_base: Path, tmp_path: Path
) -> None:
    whole = scored[0].read_bytes()
    out = tmp_path / "out.jsonl"
    first, second, third, _ = whole.splitlines(keepends=True)
    out.write_bytes(first + second + third[:40])
    command = [*SCORE, "example", "-o", str(out), "--base", str(default_base), "--shard-size", "2"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "--resume" in refused.stderr
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == whole


@pytest.mark.netns
def test_scores_in_a_network_namespace_without_a_route(
    scored: tuple[Path, subprocess.CompletedProcess[str]], default_base: Path, tmp_path: Path
) -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-n", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to create a network namespace here")
    out = tmp_path / "out.jsonl"
    probe = "import socket; s = socket.socket(); s.settimeout(2); s.connect(('192.0.2.1', 80))"
    unreachable = subprocess.run([unshare, "-n", sys.executable, "-c", probe], capture_output=True, check=False)
    assert unreachable.returncode != 0, "the namespace has a route after all"
    command = [unshare, "-n", *SCORE, "example", "-o", str(out), "--base", str(default_base), "--shard-size", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == scored[0].read_bytes()


def test_without_a_base_the_command_to_run_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"VISTA_LOCAL_CACHE": str(tmp_path / "empty")}
    done = subprocess.run(
        [*SCORE, "example", "-o", str(tmp_path / "o.jsonl")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 2
    assert "vista-local fetch" in done.stderr
    assert "Traceback" not in done.stderr


def test_given_claims_are_labelled_in_order_and_tell_true_from_false(evaluator: Evaluator) -> None:
    given = Evaluator(evaluator.backend, ScoreConfig(given_claims=True, full_probs=True))
    claims = [
        "The Larch Hall library is open until 8 pm.",
        "The assistant loves the smell of old books.",
        "The assistant does not know if the café is open.",
    ]
    turns = [
        {"role": "user", "text": "When does the Larch Hall library close?"},
        {
            "role": "assistant",
            "text": "It's open until 8 pm. I love the smell of old books. I don't know if the café is open.",
            "reference": ["The Larch Hall library is open from 9 am until 8 pm.", "It lends books and records."],
            "claims": claims,
        },
    ]
    (result,) = given.score([{"id": "library", "turns": turns}])
    found = result.turns[0].claims
    assert [c.text for c in found] == claims
    assert [c.label for c in found] == [Label.VERIFIED, Label.OUT_OF_SCOPE, Label.ABSTENTION]
    assert all(set(c.probs) == {label.value for label in LABELS} for c in found)


def test_memory_of_an_earlier_turn_supports_a_later_claim(evaluator: Evaluator) -> None:
    given = Evaluator(evaluator.backend, ScoreConfig(given_claims=True))
    claim = "The ferry to Hollin Island leaves at 7.15 in the morning."
    turns = [
        {"role": "user", "text": "When does the ferry leave?"},
        {"role": "assistant", "text": "At 7.15 in the morning.", "reference": [claim], "claims": [claim]},
        {"role": "user", "text": "Sorry, when was that again?"},
        {"role": "assistant", "text": "7.15 in the morning.", "reference": None, "claims": [claim]},
    ]
    (with_memory,) = given.score([{"id": "ferry", "turns": turns}])
    (without,) = given.score([{"id": "ferry", "turns": turns[2:]}])
    assert [t.claims[0].label for t in with_memory.turns] == [Label.VERIFIED, Label.VERIFIED]
    assert with_memory.turns[1].memory == ((1, 0),)
    assert without.turns[0].claims[0].probs["VERIFIED"] < with_memory.turns[1].claims[0].probs["VERIFIED"]
    assert without.turns[0].claims[0].label is not Label.VERIFIED


def test_packing_changes_nothing_on_the_real_model(evaluator: Evaluator) -> None:
    from vista_local.stages import classify_request

    backend = evaluator.backend
    claims = ("Ice melts at 0 degrees.", "Ice melts at 12 degrees.", "I am fond of ice.")
    words = backend.label_words("verify")
    together = backend.classify(
        "verify", [classify_request("verify", words, [], [], "Ice melts at 0 degrees.", claims)]
    )
    for number, claim in enumerate(claims):
        alone = backend.classify(
            "verify", [classify_request("verify", words, [], [], "Ice melts at 0 degrees.", [claim])]
        )
        for packed, single in zip(together[0][number], alone[0][0], strict=True):
            assert math.exp(packed) == pytest.approx(math.exp(single), abs=1e-4 if "32" in str(backend.dtype) else 0.05)


def test_doctor_reports_a_healthy_installation(default_base: Path) -> None:
    command = [sys.executable, "-c", "from vista_local.cli import run; run()", "doctor", "--base", str(default_base)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "self-test" in done.stdout and "base_sha256" in done.stdout
    assert "claims of the turn: none" not in done.stdout
