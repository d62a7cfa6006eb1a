"""Settings of a teacher, the prompted pipeline, and `score --teacher`."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_endpoint import FakeEndpoint, Handler, stage_of, usual_answer
from typer.testing import CliRunner, Result

from vista_local.cli import app
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.labels import Label
from vista_local.offline import OfflineError, offline
from vista_local.output import read_results, result_line
from vista_local.prompted import TeacherEvaluator
from vista_local.readers import parse_conversation
from vista_local.schema import Conversation, TurnStatus
from vista_local.scoring import score_conversation
from vista_local.teacher import TeacherConfig, load_teacher

CONFIGS = Path(__file__).parent.parent / "configs" / "teacher"


def talk(name: str, *, turns: int = 2) -> dict[str, Any]:
    """A conversation of `turns` assistant turns; each builds on the one before."""
    result: list[dict[str, Any]] = []
    for n in range(turns):
        earlier = f" The mill {name} has {n - 1} doors." if n else ""
        reference = f"The mill {name} has {n} doors. It is old."
        text = f"The mill {name} has {n} doors.{earlier} I like mill {name}. It burned in {1900 + n}."
        result += [{"role": "user", "text": "Go on."}, {"role": "assistant", "text": text, "reference": reference}]
    return {"id": name, "turns": result}


def parsed(data: dict[str, Any]) -> Conversation:
    return parse_conversation(data, "here", number=1)


# ---- settings ----


def written(tmp_path: Path, **settings: Any) -> Path:
    path = tmp_path / "teacher.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["openai", "deepseek", "local"])
def test_shipped_settings_are_valid_and_hold_no_key(name: str) -> None:
    teacher = load_teacher(CONFIGS / f"{name}.yaml")
    assert teacher.is_local is (name == "local")
    assert (teacher.api_key_env is None) is (name == "local")
    assert teacher.prices is None  # a price in a file that nobody keeps up would mislead


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shotz": "few"}, "unknown setting 'shotz'; did you mean 'shots'?"),
        ({"prices": {"input": 1, "output": 1, "ouput": 2}}, "did you mean 'prices.output'?"),
        ({"prices": {"input": 1}}, "'prices.output' is missing"),
        ({"prices": {"input": float("inf"), "output": 1}}, "setting 'prices.input'"),
        ({"shots": "many"}, "setting 'shots'"),
        ({"context": "some"}, "setting 'context'"),
        ({"base_url": "localhost:8000"}, "https://host/v1"),
        ({"base_url": "https://me:pw@host/v1"}, "api_key_env"),
        ({"concurrency": 0}, "setting 'concurrency'"),
        ({"extra_body": {"stream": True}}, "stream can't be set here"),
        ({"model": None}, "setting 'model'"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_teacher(written(tmp_path, **({"base_url": "http://localhost/v1", "model": "m"} | settings)))
    assert words in str(caught.value) and "teacher.yaml" in str(caught.value)


@pytest.mark.parametrize("settings", [{"api_key": "sk-secret1234"}, {"api_key_env": "sk-secret1234"}])
def test_a_key_in_the_file_is_refused_and_not_repeated(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(InputError, match="api_key_env") as caught:
        load_teacher(written(tmp_path, base_url="http://localhost/v1", model="m", **settings))
    assert "secret1234" not in str(caught.value)


def test_missing_settings_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'base_url' is missing"):
        load_teacher(written(tmp_path, model="m"))
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        load_teacher(tmp_path / "nowhere.yaml")


def test_what_answers_depend_on_is_recorded_and_the_rest_is_not() -> None:
    one = TeacherConfig(base_url="http://localhost/v1", model="m", api_key_env="SECRET", concurrency=2, timeout=5)
    two = TeacherConfig(base_url="http://localhost/v1", model="m", requests_per_minute=9, max_retries=1)
    assert one.record() == two.record()
    assert "SECRET" not in json.dumps(one.record())
    for change in ({"seed": 1}, {"shots": "zero"}, {"model": "n"}, {"extra_body": {"a": 1}}, {"contradiction": True}):
        assert one.model_copy(update=change).record() != one.record()


# ---- pipeline ----


@pytest.fixture
def evaluator(server: FakeEndpoint) -> Iterator[Any]:
    """Makes an evaluator on the server; `config` takes score settings."""
    made: list[TeacherEvaluator] = []

    def make(config: ScoreConfig | None = None, **settings: Any) -> TeacherEvaluator:
        teacher = TeacherConfig(**({"base_url": server.url, "model": "scripted"} | settings))
        made.append(TeacherEvaluator(teacher, config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def labels(result: Any) -> list[list[Label | None]]:
    return [[c.label for c in t.claims] for t in result.turns]


V, S, L = Label.VERIFIED, Label.OUT_OF_SCOPE, Label.LACKING_EVIDENCE  # S: stated


def test_a_conversation_is_scored_with_memory_and_without_probabilities(evaluator: Any) -> None:
    (result,) = evaluator().score([talk("a")])
    # Turn 2's second claim is supported by the store alone.
    assert labels(result) == [[V, S, L], [V, V, V, L]]
    assert result.turns[1].memory == ((1, 0), (1, 1))
    assert all(c.probs == {} and c.unscored is None for t in result.turns for c in t.claims)
    assert score_conversation(result).vista_score == 5 / 7


def test_side_by_side_or_one_by_one_the_results_are_the_same(evaluator: Any) -> None:
    talks = [talk(str(n), turns=1 + n % 3) for n in range(7)]
    runs = [list(evaluator(concurrency=n, seed=n).score(talks)) for n in (1, 8)]
    assert runs[0] == runs[1]
    assert [r.id for r in runs[0]] == [t["id"] for t in talks]


def test_the_teacher_sees_the_whole_talk_when_it_decomposes(server: FakeEndpoint, evaluator: Any) -> None:
    list(evaluator().score([talk("a", turns=6)]))
    last = max((b["messages"][-1]["content"] for b in server.bodies if stage_of(b) == "decompose"), key=len)
    assert last.count("User: Go on.") == 6 and "burned in 1900" in last


@pytest.mark.parametrize(("context", "shown"), [("none", 0), ("recent", 1), ("full", 3)])
def test_context_governs_what_verify_is_shown(server: FakeEndpoint, evaluator: Any, context: Any, shown: int) -> None:
    list(evaluator(context=context).score([talk("a", turns=3)]))
    users = [b["messages"][-1]["content"] for b in server.bodies if stage_of(b) == "verify"]
    assert max(u.count("User: Go on.") for u in users) == shown


@pytest.mark.parametrize(("shots", "messages"), [("few", 14), ("zero", 2)])
def test_shots_decide_whether_examples_are_sent(
    server: FakeEndpoint, evaluator: Any, shots: Any, messages: int
) -> None:
    list(evaluator(shots=shots).score([talk("a", turns=1)]))
    assert {len(b["messages"]) for b in server.bodies if stage_of(b) in ("decompose", "verify")} == {messages}


def test_an_unreadable_label_is_unscored_and_stays_in_the_denominator(server: FakeEndpoint, evaluator: Any) -> None:
    def answer(body: dict[str, Any]) -> str:
        claim = body["messages"][-1]["content"].rpartition("Claim:")[2]
        asked_again = "cannot be used" in body["messages"][-1]["content"]
        hard = stage_of(body) == "verify" and (asked_again or "has 0 doors" in claim)
        return "who knows" if hard else usual_answer(body)

    server.answer = answer
    (result,) = evaluator().score([talk("a")])
    assert labels(result)[0] == [None, S, L]
    reason = result.turns[0].claims[0].unscored
    assert reason is not None and reason.startswith("verify: asked twice")
    # What has no label doesn't enter the store, so nothing rests on it.
    assert result.turns[1].memory == ((1, 1),)
    assert labels(result)[1][1] is None
    score = score_conversation(result)
    assert (score.totals.claims, score.totals.unscored_claims, score.totals.coverage) == (7, 2, 5 / 7)
    assert score.turns[0].strict is False
    line = json.loads(result_line(result, {"id": "x"}))
    assert line["turns"][0]["claims"][0] == {
        "text": "The mill a has 0 doors.",
        "label": None,
        "probs": {},
        "evidence": [],
        "unscored": reason,
    }


def test_an_unreadable_claim_list_leaves_the_turn_unscored(server: FakeEndpoint, evaluator: Any) -> None:
    def answer(body: dict[str, Any]) -> str:
        user = body["messages"][-1]["content"]
        first_turn = stage_of(body) == "decompose" and user.startswith("Conversation:\nUser: Go on.\n\nReply:")
        return "I won't." if first_turn or "cannot be used" in user else usual_answer(body)

    server.answer = answer
    (result,) = evaluator().score([talk("a")])
    assert result.turns[0].unscored is not None and result.turns[0].unscored.startswith("decompose: asked twice")
    assert result.turns[0].claims == () and result.turns[1].unscored is None
    assert score_conversation(result).totals.unscored_turns == 1


def test_once_a_model_is_seen_to_ignore_the_format_no_conversation_goes_on(
    server: FakeEndpoint, evaluator: Any
) -> None:
    def script(number: int, body: dict[str, Any], handler: Handler) -> bool:
        if stage_of(body) == "decompose" and "The mill 0 " in body["messages"][-1]["content"]:
            time.sleep(1)  # results come in order: the first conversation keeps the others' errors waiting
        return False

    server.script = script
    server.answer = lambda body: "Sure!" if stage_of(body) == "verify" else usual_answer(body)
    teacher = evaluator(concurrency=4)
    with pytest.raises(VistaError, match="none of its first 20 answers to verify could be read"):
        list(teacher.prompted.score_traced([parsed(talk(str(n))) for n in range(60)]))
    teacher.close()
    stages = server.stages()
    # Seven claims a conversation: of the sixty, four hold twenty, and a few more were under way.
    assert stages["verify"] <= 2 * 20 + 2 * 3 and stages["decompose"] <= 2 * 10


def test_one_supporting_window_is_enough_beside_an_unreadable_one(server: FakeEndpoint, evaluator: Any) -> None:
    reference = "The tower is high. " + "Nothing else is known of it at all. " * 20
    turn = {"role": "assistant", "text": "The tower is high. It is red.", "reference": reference}

    def answer(body: dict[str, Any]) -> str:
        first_window = any("The tower is high. N" in m["content"].replace("\n", " ") for m in body["messages"])
        return usual_answer(body) if first_window or stage_of(body) != "verify" else "?"

    server.answer = answer
    (result,) = evaluator(max_reference_tokens=100).score([{"id": "a", "turns": [turn]}])
    assert result.turns[0].windows > 1
    assert result.turns[0].claims[0].label is V
    assert result.turns[0].claims[1].label is None and result.turns[0].claims[1].unscored is not None


def test_the_contradiction_pass_is_noted(server: FakeEndpoint, evaluator: Any) -> None:
    def answer(body: dict[str, Any]) -> str:
        if stage_of(body) != "contradiction":
            return usual_answer(body)
        reply = body["messages"][-1]["content"]
        return 'YES\n- "has 1 doors" <> "has 0 doors"' if "has 1 doors. The" in reply else "NO"

    server.answer = answer
    (result,) = evaluator(contradiction=True).score([talk("a")])
    assert [t.notes[-1] for t in result.turns] == [
        "contradiction: no",
        "contradiction: yes: 'has 1 doors' <> 'has 0 doors'",
    ]
    assert server.stages()["contradiction"] == 2


def test_unreferenced_turns_are_kept_as_for_a_student(evaluator: Any) -> None:
    turns = [
        {"role": "assistant", "text": "The mill is new."},
        {"role": "assistant", "text": "The mill is new.", "reference": None},
    ]
    config = ScoreConfig.model_validate({"memory": {"unreferenced": "trust"}})
    (result,) = evaluator(config).score([{"id": "a", "turns": turns}])
    assert [t.status for t in result.turns] == [TurnStatus.UNREFERENCED, TurnStatus.SCORED]
    assert labels(result)[1] == [V]


def test_settings_that_need_probabilities_are_refused(evaluator: Any) -> None:
    with pytest.raises(VistaError, match="evidence"):
        evaluator(ScoreConfig(evidence=True))
    with pytest.raises(VistaError, match="logprobs"):
        evaluator(ScoreConfig(full_probs=True))


# ---- leaving the machine ----


def test_another_machine_needs_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "x")
    teacher = TeacherConfig(base_url="https://api.example.com/v1", model="m", api_key_env="TEACHER_KEY")
    with pytest.raises(VistaError, match="every conversation would be sent there; add --allow-remote"):
        TeacherEvaluator(teacher)
    allowed = TeacherEvaluator(teacher, allow_remote=True)
    assert allowed.notice() == "conversations are sent to api.example.com; connections to other hosts are refused"
    allowed.close()


def test_the_guard_lets_the_endpoint_through_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.7", port))]

    def connect_to(address: str) -> None:
        with socket.socket() as sock:
            sock.settimeout(0.05)
            sock.connect((address, 9))

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with offline(["API.example.com"]):
        with pytest.raises(OfflineError, match=r"only api\.example\.com is allowed"):
            connect_to("192.0.2.7")  # nobody has looked it up yet
        socket.getaddrinfo("api.example.com", 443)
        with pytest.raises(OSError) as caught:
            connect_to("192.0.2.7")
        assert not isinstance(caught.value, OfflineError)
        with pytest.raises(OfflineError):
            connect_to("192.0.2.8")
        with offline(), pytest.raises(OfflineError):  # the strictest of open guards counts
            connect_to("192.0.2.7")
    with offline(), pytest.raises(OfflineError, match="only this machine"):
        connect_to("192.0.2.7")
    assert socket.getaddrinfo is resolve


def test_a_name_that_was_not_allowed_is_not_looked_up() -> None:
    with offline(["api.example.com"]), pytest.raises(OfflineError, match="name lookup"):
        socket.getaddrinfo("evil.example.com", 443)


def test_a_redirect_to_another_machine_is_refused(server: FakeEndpoint, evaluator: Any) -> None:
    def script(number: int, body: dict[str, Any], handler: Handler) -> bool:
        handler.send(307, {}, {"location": "http://192.0.2.1:9/v1/chat/completions"})
        return True

    server.script = script
    with pytest.raises(VistaError, match=r"192\.0\.2\.1.*refused"):
        list(evaluator(timeout=2, max_retries=0).score([talk("a")]))


# ---- the command ----


@pytest.fixture
def score(server: FakeEndpoint, tmp_path: Path) -> Any:
    """Runs `score --teacher` on some conversations; returns result and output path."""

    def call(talks: list[dict[str, Any]], *options: str, settings: dict[str, Any] | None = None) -> tuple[Result, Path]:
        source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_text("".join(json.dumps(t) + "\n" for t in talks), encoding="utf-8")
        teacher = written(tmp_path, **({"base_url": server.url, "model": "scripted"} | (settings or {})))
        arguments = ["score", str(source), "-o", str(out), "--teacher", str(teacher), *options]
        return CliRunner().invoke(app, arguments), out

    return call


#: Audit events of everything that begins to leave a process.
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")


def refused(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    text = " ".join(result.stderr.split())
    for word in words:
        assert word in text, text
    assert "Traceback" not in text


def test_score_with_a_teacher(server: FakeEndpoint, score: Any) -> None:
    result, out = score([talk("a"), talk("b")])
    assert result.exit_code == 0, result.output
    assert [labels(r) for r in read_results(out)] == [[[V, S, L], [V, V, V, L]]] * 2
    run = json.loads(out.read_text(encoding="utf-8").splitlines()[0])["run"]
    assert run["teacher"]["model"] == "scripted" and run["fewshot_version"] and run["prompt_version"]
    assert f"{server.calls} calls" in result.stderr
    assert "are sent to" not in result.stderr


def test_a_profile_or_file_of_settings_counts_more_than_the_teachers_file(score: Any, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("context: none\n", encoding="utf-8")
    for options, context in ((), "full"), (("--profile", "paper"), "none"), (("--config", str(settings)), "none"):
        outcome, out = score([talk("a")], *options, settings={"context": "full"})
        assert outcome.exit_code == 0, outcome.output
        assert json.loads(out.read_text(encoding="utf-8").splitlines()[0])["run"]["config"]["context"] == context
        out.unlink()


def test_score_stops_before_the_cost_is_passed_and_goes_on_from_the_cache(server: FakeEndpoint, score: Any) -> None:
    talks = [talk(str(n)) for n in range(6)]
    settings = {"prices": {"input": 100, "output": 100}, "shots": "zero", "label_max_tokens": 16, "max_tokens": 64}
    result, out = score(talks, "--max-cost", "0.95", settings=settings)
    refused(result, "--max-cost 0.95 could be passed", "kept", "--resume and a larger --max-cost")
    first = server.calls
    assert 0.5 < 0.011 * first <= 0.95
    assert len(list(read_results(out))) == 1 + 4  # the first two shards
    result, out = score(talks, "--max-cost", "9", "--resume", settings=settings)
    assert result.exit_code == 0, result.output
    assert len(list(read_results(out))) == 6
    assert server.calls == 12 + 42 + 18  # decompose, verify, categorise: each call was made once


def test_half_a_surrogate_pair_in_answers_stops_neither_the_run_nor_a_resumed_one(
    server: FakeEndpoint, score: Any
) -> None:
    server.answer = lambda body: "- The sky is blue \ud83d" if stage_of(body) == "decompose" else "OUT_OF_SCOPE \udc00"
    result, out = score([talk("a", turns=1)])
    assert result.exit_code == 0, result.output
    (scored,) = read_results(out)
    assert [c.text for c in scored.turns[0].claims] == ["The sky is blue ?"]
    calls = server.calls
    out.unlink()
    assert score([talk("a", turns=1)])[0].exit_code == 0 and server.calls == calls  # all of it from the cache


def test_dry_run_opens_no_connection_and_needs_no_key(
    server: FakeEndpoint, score: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)

    seen: list[str] = []
    sys.addaudithook(lambda event, _: seen.append(event) if watching and event in NETWORK else None)
    watching = [True]
    settings = {
        "base_url": "https://api.example.com/v1",
        "api_key_env": "TEACHER_KEY",
        "prices": {"input": 1, "output": 1},
    }
    result, out = score([talk("a"), talk("b")], "--dry-run", settings=settings)
    watching.clear()
    assert seen == []
    assert result.exit_code == 0, result.output
    assert "4 decompose" in result.stdout and "cost        about 0.0" in result.stdout
    assert not out.exists() and server.calls == 0


def test_a_dry_run_knows_what_is_cached(server: FakeEndpoint, score: Any) -> None:
    score([talk("a")])
    calls = server.calls
    result, _ = score([talk("a")], "--dry-run")
    assert f"calls       0 (none); {calls} more are in the cache" in result.stdout
    assert server.calls == calls


def test_given_claims_are_labelled_without_decomposing(server: FakeEndpoint, score: Any) -> None:
    data = talk("a", turns=1)
    data["turns"][1]["claims"] = ["It is old.", "It is new."]
    result, out = score([data], "--given-claims")
    assert result.exit_code == 0, result.output
    assert labels(next(read_results(out))) == [[V, L]]
    assert server.stages()["decompose"] == 0


def test_wrong_use_is_one_sentence(server: FakeEndpoint, score: Any, tmp_path: Path) -> None:
    refused(score([talk("a")], settings={"model": "gpt-9"})[0], "no model 'gpt-9' here")
    refused(score([talk("a")], settings={"base_url": "https://api.example.com/v1"})[0], "--allow-remote")
    refused(score([talk("a")], "--evidence")[0], "evidence")
    refused(score([talk("a")], "--max-cost", "1")[0], "prices.input")
    priced = {"prices": {"input": 1, "output": 1}}
    refused(score([talk("a")], "--max-cost", "inf", settings=priced)[0], "--max-cost inf: a number from 0 up")
    refused(score([talk("a")], "--max-cost", "nan", settings=priced)[0], "--max-cost")
    refused(score([talk("a")], "--base", "x")[0], "--teacher takes its place")
    refused(score([talk("a")], settings={"api_key_env": "NO_SUCH_VARIABLE"})[0], "NO_SUCH_VARIABLE is not set")
    refused(score([talk("a")], settings={"modle": "x"})[0], "did you mean 'model'?")
    source = tmp_path / "in.jsonl"
    outcome = CliRunner().invoke(app, ["score", str(source), "-o", str(tmp_path / "o"), "--dry-run"])
    refused(outcome, "belong to --teacher")
