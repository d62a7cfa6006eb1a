"""Long references and long turns in pieces, and guards on what decompose makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_script import (
    CERTAIN,
    UNHURRIED,
    C,
    L,
    Recorder,
    S,
    V,
    conversation,
    labels,
    part,
    score,
    turns_of,
)

from vista_local.labels import Label
from vista_local.prompts import Prompt
from vista_local.schema import TurnResult


# --- windows and chunks
def by_reference(verify: dict[str, float], categorise: dict[str, list[float]]) -> Any:
    """Probabilities by the word that a window holds."""

    def classify(stage: str, prompt: Prompt, claim: str) -> Sequence[float]:
        window = part(prompt, "Reference:")
        if stage == "verify":
            p = max((p for word, p in verify.items() if word in window), default=0.1)
            return [p, 1 - p]
        return next((q for word, q in categorise.items() if word in window), CERTAIN[L])

    return classify


LONG = [
    "alpha stands here now. filler fills some room. beta stands here now. filler takes more room. gamma ends it all."
]


def windowed(verify: dict[str, float], categorise: dict[str, list[float]]) -> TurnResult:
    backend = Recorder(classify=by_reference(verify, categorise), max_reference_tokens=5)
    (turn,) = turns_of(conversation(("Paris is big", LONG)), backend)
    assert turn.windows == 5
    return turn


@pytest.mark.parametrize("word", ["alpha", "beta", "gamma"])
def test_support_in_one_window_suffices(word: str) -> None:
    turn = windowed({word: 0.7}, {})
    assert labels(turn) == [V]
    assert turn.claims[0].probs == {"VERIFIED": 0.7, "UNVERIFIABLE": 0.3}


@pytest.mark.parametrize(
    ("categorise", "label"),
    [
        ({"beta": [0.61, 0.39, 0, 0]}, C),
        ({"beta": [0.59, 0.41, 0, 0]}, L),
        ({word: [0.59, 0, 0.41, 0] for word in ("alpha", "beta", "gamma", "filler")}, S),
    ],
)
def test_contradiction_needs_one_clear_window(categorise: dict[str, list[float]], label: Label) -> None:
    turn = windowed({}, categorise)
    assert labels(turn) == [label]
    assert (turn.claims[0].probs[C] > 0) == (label is C)


def test_instructions_store_and_history_repeat_in_every_window() -> None:
    backend = Recorder(max_reference_tokens=5)
    turns_of(conversation(("Lyon is old", "Lyon is old"), "And?", ("Paris is big", LONG)), backend)
    prompts = backend.asked("verify", "Paris is big")
    assert len(prompts) == 5
    assert {(p.system, part(p, "Known facts:"), part(p, "Earlier talk").splitlines()[-1]) for p in prompts} == {
        (prompts[0].system, "- Lyon is old", "User: And?")
    }


def test_windows_of_several_turns_are_not_mixed_up() -> None:
    backend = Recorder(max_reference_tokens=5)
    a = conversation(("Paris is big | Metz is far", ["Nice is warm today. Paris is big. Brest is wet often."]), id="a")
    b = conversation(("Lyon is old | Paris is big", ["Nice is warm today. Brest is wet often. Lyon is old."]), id="b")
    first, second = score(a, b, backend=backend)
    assert labels(first.turns[0]) == [V, L]
    assert labels(second.turns[0]) == [V, L]


def test_a_long_turn_is_decomposed_in_chunks_with_the_earlier_ones_as_history() -> None:
    backend = Recorder(chunk_tokens=5)
    reply = "Paris is big. Lyon is old. Nice is warm. Paris is big."
    (turn,) = turns_of(conversation("Tell me", (reply, "Paris is big.")), backend)
    assert [part(p, "Reply:") for p in backend.replies] == [
        "Paris is big.", "Lyon is old.", "Nice is warm.", "Paris is big.",
    ]  # fmt: skip
    assert part(backend.replies[0], "Conversation:") == "User: Tell me"
    assert part(backend.replies[2], "Conversation:").splitlines() == [
        "User: Tell me",
        "Assistant: Paris is big.",
        "Assistant: Lyon is old.",
    ]
    assert turn.chunks == 4
    assert [c.text for c in turn.claims] == ["Paris is big.", "Lyon is old.", "Nice is warm."]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(4, 20), st.integers(4, 20))
@UNHURRIED
def test_every_word_of_turn_and_reference_reaches_the_model(lengths: list[int], chunk: int, window: int) -> None:
    sentences = [" ".join(f"w{s}x{i}" for i in range(n)) + "." for s, n in enumerate(lengths)]
    text = " ".join(sentences)
    backend = Recorder(decompose=lambda p: "- a claim", chunk_tokens=chunk, max_reference_tokens=window)
    (turn,) = turns_of(conversation((text, text)), backend)
    replies = [part(p, "Reply:") for p in backend.replies]
    references = [part(p, "Reference:") for p in backend.asked("verify", "a claim")]
    assert [w for r in replies for w in r.split()] == text.split()
    assert set(" ".join(references).split()) == set(text.split())
    assert max(len(r.split()) for r in replies) <= chunk
    assert max(len(r.split()) for r in references) <= window
    assert (turn.chunks, turn.windows) == (len(replies), len(references))


# --- guards on decomposition
def test_details_made_up_by_decompose_are_kept_apart() -> None:
    answer = "- Paris is big.\n- Paris has 900 gates.\n- The mayor is Anna Berg.\n- Paris lies in France."
    backend = Recorder(decompose=lambda prompt: answer)
    c = conversation("Is it in France?", ("Yes. Paris is big.", answer), "And?", ("Paris.", None))
    first, second = turns_of(c, backend)
    assert [k.text for k in first.claims] == ["Paris is big.", "Paris lies in France."]
    assert first.unsupported_extraction == ("Paris has 900 gates.", "The mayor is Anna Berg.")
    assert backend.asked("verify", "Paris has 900 gates.") == []
    assert second.memory == ((1, 0), (1, 1))


def test_a_repeated_claim_and_an_unfinished_last_line_are_reported() -> None:
    backend = Recorder(decompose=lambda prompt: {"Loop": "- it is\n- it was\n- it is\n", "Long": "- it is\n- it w"}.get(
        part(prompt, "Reply:"), "- it is\n"
    ))  # fmt: skip
    backend.cuts = {"Loop": "repeat", "Long": "length", "Just": "length"}
    loop, long, just, fine = turns_of(
        conversation(("Loop", None), ("Long", None), ("Just", None), ("Fine", None)), backend
    )
    assert [c.text for c in loop.claims] == ["it is", "it was"]
    assert loop.notes == ("decompose: stopped at a repeated claim",)
    assert [c.text for c in long.claims] == ["it is"]
    assert long.notes == ("decompose: cut at the length limit; unfinished claim: it w",)
    assert [c.text for c in just.claims] == ["it is"]
    assert just.notes == ("decompose: cut at the length limit",)
    assert fine.notes == ()
