"""What a prompted teacher's answers become: labels, claims, probabilities, or unscored with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, Handler, completion, stage_of

from vista_local.backends.base import Said, Unanswered
from vista_local.backends.openai_backend import UNREADABLE_AT_FIRST, OpenAIBackend, label_log_probs
from vista_local.endpoint import Reply
from vista_local.errors import VistaError
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest

REQUEST = ClassifyRequest(
    Prompt("", "Reference:\nThe mill is old.\n\nClaim:"), ("The mill is old.", "The mill burned.")
)


@pytest.fixture
def backend(server: FakeEndpoint, connect: Any) -> Iterator[Any]:
    """Makes a backend on the server."""
    made: list[OpenAIBackend] = []

    def make(**settings: Any) -> OpenAIBackend:
        endpoint = connect(**settings)
        made.append(OpenAIBackend(endpoint, endpoint.config))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_labels_come_without_made_up_probabilities(backend: Any) -> None:
    assert backend().classify("verify", [REQUEST, REQUEST]) == [[Said(0), Said(1)]] * 2
    assert backend().classify("categorise", [REQUEST]) == [[Said(1), Said(1)]]
    assert backend().classify("verify", []) == []


def test_an_unreadable_answer_is_asked_for_once_more_with_the_reason(server: FakeEndpoint, backend: Any) -> None:
    server.answer = lambda body: "VERIFIED" if len(body["messages"]) % 2 == 0 and len(body["messages"]) > 14 else "Hmm?"
    assert backend().classify("verify", [ClassifyRequest(REQUEST.prefix, ("The mill is old.",))]) == [[Said(0)]]
    first, second = server.bodies
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-2] == {"role": "assistant", "content": "Hmm?"}
    assert "cannot be used: it does not say which of VERIFIED" in second["messages"][-1]["content"]


@pytest.mark.parametrize("text", ["", "maybe", "VERIFIED or UNVERIFIABLE", "ignore all that"])
def test_an_answer_that_stays_unreadable_is_unscored(server: FakeEndpoint, backend: Any, text: str) -> None:
    server.answer = lambda body: text
    teacher = backend()
    ((row, _),) = teacher.classify("verify", [REQUEST])
    assert isinstance(row, Unanswered) and "asked twice" in row.reason
    assert server.calls == 4
    (generation,) = teacher.generate("decompose", [Prompt("", "Reply:\nIt is old.")])
    assert generation.unscored is not None and "asked twice" in generation.unscored


def test_a_model_that_ignores_the_format_ends_the_run_early(server: FakeEndpoint, backend: Any) -> None:
    server.answer = lambda body: "Sure! What a lovely claim." if stage_of(body) == "verify" else "- It is old."
    teacher = backend()
    many = ClassifyRequest(REQUEST.prefix, tuple(f"claim {n}" for n in range(UNREADABLE_AT_FIRST - 1)))
    teacher.classify("verify", [many])  # too few to judge by
    assert teacher.generate("decompose", [Prompt("", "Reply:\nIt is old.")])[0].unscored is None
    with pytest.raises(VistaError, match=r"none of its first 20 answers to verify could be read .*'Sure! What a love"):
        teacher.classify("verify", [REQUEST])


def test_a_model_that_ignores_the_format_is_not_asked_to_a_batchs_end(server: FakeEndpoint, backend: Any) -> None:
    server.answer = lambda body: "Sure!"
    many = ClassifyRequest(REQUEST.prefix, tuple(f"claim {n}" for n in range(200)))
    teacher = backend(concurrency=4)
    with pytest.raises(VistaError, match="none of its first 20 answers to verify"):
        teacher.classify("verify", [many])
    teacher.close()
    # Each is asked twice; when the twentieth was read, three more were under way.
    assert 2 * UNREADABLE_AT_FIRST <= server.calls <= 2 * UNREADABLE_AT_FIRST + 2 * 3


def test_a_model_that_has_answered_once_may_fail_later(server: FakeEndpoint, backend: Any) -> None:
    teacher = backend()
    teacher.classify("verify", [REQUEST])
    server.answer = lambda body: "Hmm."
    many = ClassifyRequest(REQUEST.prefix, tuple(f"claim {n}" for n in range(UNREADABLE_AT_FIRST + 5)))
    (rows,) = teacher.classify("verify", [many])
    assert all(isinstance(row, Unanswered) for row in rows)


def test_a_refusal_in_prose_is_no_claim(server: FakeEndpoint, backend: Any) -> None:
    server.answer = lambda body: "I'm sorry, I can't help with that."
    (generation,) = backend().generate("decompose", [Prompt("", "Reply:\nIt is old.")])
    assert "neither a list nor the word None" in generation.unscored
    server.answer = lambda body: "None"
    (generation,) = backend(seed=1).generate("decompose", [Prompt("", "Reply:\nHi!")])
    assert generation.unscored is None


def test_a_request_that_is_too_long_or_filtered_is_unscored_and_the_run_goes_on(
    server: FakeEndpoint, backend: Any
) -> None:
    def script(number: int, body: dict[str, Any], handler: Handler) -> bool:
        claim = body["messages"][-1]["content"]
        if "old" in claim.rpartition("Claim:")[2]:
            said = "This model's maximum context length is 4096 tokens. However, you requested 9000."
            handler.send(400, {"error": {"message": said, "code": "context_length_exceeded"}})
            return True
        handler.send(200, completion("", finish_reason="content_filter"))
        return True

    server.script = script
    ((long, filtered),) = backend().classify("verify", [REQUEST])
    assert isinstance(long, Unanswered) and "maximum context length is 4096" in long.reason
    assert isinstance(filtered, Unanswered) and "content filter" in filtered.reason
    assert server.calls == 2


def test_reasoning_in_the_answer_is_not_read(server: FakeEndpoint, backend: Any) -> None:
    server.answer = lambda body: (
        "<think>VERIFIED? no.\n- x</think>\n" + ("- It is old." if stage_of(body) == "decompose" else "UNVERIFIABLE")
    )
    teacher = backend()
    assert teacher.classify("verify", [REQUEST]) == [[Said(1), Said(1)]]
    assert teacher.generate("decompose", [Prompt("", "Reply:\nIt is old.")])[0].text.strip() == "- It is old."


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ("<think>\nThe claim would be VERIFIED if the reference said", ""),
        ("  <think>\n- a bullet of the reasoning", ""),
        ("<think>a</think>\n<think>b", ""),
        ("<think>\nVERIFIED?</think>UNVERIFIABLE", "UNVERIFIABLE"),
        ("It says so.\n- x</think>VERIFIED", "VERIFIED"),  # the template has put <think> into the prompt
        ("- The assistant explains the tag <think>.", "- The assistant explains the tag <think>."),
        ("VERIFIED", "VERIFIED"),
    ],
)
def test_what_is_seen_of_an_answer_is_never_reasoning(text: str, visible: str) -> None:
    assert Reply(text).visible == visible


def test_reasoning_that_was_cut_off_is_no_answer(server: FakeEndpoint, backend: Any) -> None:
    text = "<think>\n- It would be VERIFIED, not OUT_OF_SCOPE, if the reference said"
    server.script = lambda n, b, h: h.send(200, completion(text, finish_reason="length")) or True
    teacher = backend()
    for stage in ("verify", "categorise"):
        ((row, _),) = teacher.classify(stage, [REQUEST])
        assert isinstance(row, Unanswered)
        assert row.reason == "asked twice, the answer can't be read: it holds reasoning alone (cut at 10 tokens)"
    (generation,) = teacher.generate("decompose", [Prompt("", "Reply:\nIt is old.")])
    assert generation.text == "" and "reasoning alone" in generation.unscored
    assert "reasoning" in server.bodies[-1]["messages"][-1]["content"] and server.calls == 10


@pytest.mark.parametrize(
    ("stage", "text", "read"),
    [
        ("verify", "VERIFIED", True),
        ("verify", "**UNVERIFIABLE**", True),
        ("verify", "The reference would make it VERIFIED if", False),
        ("categorise", '"lacking evidence"', True),
        ("categorise", "One could say CONTRADICTED, but", False),
        ("contradiction", "NO.", True),
        ("contradiction", 'YES\n- "it is old" <> "it is', False),
    ],
)
def test_a_label_in_an_answer_that_was_cut_off_counts_only_if_it_is_all_of_it(
    server: FakeEndpoint, backend: Any, stage: Any, text: str, read: bool
) -> None:
    server.script = lambda n, b, h: h.send(200, completion(text, finish_reason="length")) or True
    (exchange,) = backend().ask(stage, ["Claim: It is old."])
    assert (exchange.unscored is None, len(exchange.replies)) == (read, 1 if read else 2)
    if not read:
        assert "ends in the middle (cut at 10 tokens)" in exchange.unscored
    server.script = lambda n, b, h: h.send(200, completion(text)) or True
    (whole,) = backend(seed=1).ask(stage, ["Claim: It is old."])
    assert whole.unscored is None, "the same words are an answer if the model ended there"


def test_an_answer_cut_at_the_limit_says_so(server: FakeEndpoint, backend: Any) -> None:
    server.script = lambda n, b, h: h.send(200, completion("- One.\n- Tw", finish_reason="length")) or True
    (generation,) = backend().generate("decompose", [Prompt("", "Reply:\nOne. Two.")])
    assert (generation.cut, generation.unscored) == ("length", None)
    server.script = lambda n, b, h: h.send(200, completion("Well, I", finish_reason="length")) or True
    ((row, _),) = backend().classify("verify", [REQUEST])
    assert isinstance(row, Unanswered) and "cut at 10 tokens" in row.reason


def alternatives(*pairs: tuple[str, float], text: str = "VERIFIED") -> Reply:
    return Reply(text, logprobs=(tuple((t, math.log(p)) for t, p in pairs),))


def test_probabilities_are_read_from_the_first_token() -> None:
    labels = ("VERIFIED", "UNVERIFIABLE")
    rows = label_log_probs(alternatives(("VER", 0.6), ("UN", 0.2), (" ver", 0.1), ("The", 0.05)), labels, 0)
    assert rows is not None
    assert [math.exp(r) for r in rows] == pytest.approx([0.7 / 0.9, 0.2 / 0.9])
    # A label that isn't listed can't be likelier than the least listed token.
    rows = label_log_probs(alternatives(("VER", 0.9), ("Hm", 0.01)), labels, 0)
    assert rows is not None and math.exp(rows[1]) == pytest.approx(0.01 / 0.91)
    four = ("CONTRADICTED", "LACKING_EVIDENCE", "OUT_OF_SCOPE", "ABSTENTION")
    rows = label_log_probs(alternatives(("L", 0.5), ("CON", 0.3), ("OUT", 0.1), ("ABS", 0.1), text="L"), four, 1)
    assert rows is not None and [round(math.exp(r), 6) for r in rows] == [0.3, 0.5, 0.1, 0.1]


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        (Reply("VERIFIED"), 0),
        (alternatives(("The", 0.9), ("VER", 0.05)), 0),  # the answer doesn't begin with a label
        (alternatives(("UN", 0.6), ("VER", 0.4)), 0),  # the likeliest is not what was said
        (alternatives(("VER", 0.9), text="<think>VER</think>VERIFIED"), 0),
        (Reply("VERIFIED", logprobs=((),)), 0),
    ],
)
def test_without_trustworthy_alternatives_there_are_no_probabilities(reply: Reply, chosen: int) -> None:
    assert label_log_probs(reply, ("VERIFIED", "UNVERIFIABLE"), chosen) is None
