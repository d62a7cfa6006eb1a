"""The loop with a scripted backend that reads its prompts: what is judged by what, in which order."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading_script import (
    UNHURRIED,
    A,
    C,
    L,
    Recorder,
    S,
    V,
    assistant,
    conversation,
    labels,
    part,
    score,
    settings_of,
    turns_of,
)

from vista_local.pipeline import Pipeline
from vista_local.schema import TurnStatus


# --- one turn
def test_a_turn_gets_its_claims_labels_and_probabilities() -> None:
    reply = "Paris is big | Lyon is old | people love Nice | the assistant is unsure | Metz is far"
    (turn,) = turns_of(conversation("Hi", (reply, "Paris is big. not Lyon is old.")))
    assert (turn.index, turn.status, turn.windows, turn.chunks) == (1, TurnStatus.SCORED, 1, 1)
    assert [c.text for c in turn.claims] == reply.split(" | ")
    assert labels(turn) == [V, C, S, A, L]
    assert turn.claims[0].probs == {"VERIFIED": 0.9, "UNVERIFIABLE": 0.1}
    assert turn.claims[1].probs == pytest.approx({V: 0.2, C: 0.776, L: 0.008, S: 0.008, A: 0.008})


def test_categorise_sees_unverifiable_claims_only() -> None:
    backend = Recorder()
    turns_of(conversation(("Paris is big | Lyon is old", "Paris is big."), ("Paris is big", "Paris is big.")), backend)
    assert [r.branches for stage, rs in backend.batches if stage == "categorise" for r in rs] == [("Lyon is old",)]


def test_full_probs_categorises_every_claim_and_changes_no_label() -> None:
    c = conversation(("Paris is big | people love Nice", "Paris is big."))
    backend = Recorder()
    (full,) = turns_of(c, backend, settings_of(full_probs=True))
    assert labels(full) == labels(turns_of(c)[0]) == [V, S]
    assert [r.branches for s, rs in backend.batches if s == "categorise" for r in rs] == [
        ("Paris is big", "people love Nice")
    ]
    assert full.claims[0].probs == pytest.approx({V: 0.9, C: 0.001, L: 0.097, S: 0.001, A: 0.001})
    assert all(math.isclose(sum(claim.probs.values()), 1, abs_tol=1e-5) for claim in full.claims)


@pytest.mark.parametrize("text", ["", " \n", "|"])
def test_a_turn_without_claims_is_scored(text: str) -> None:
    backend = Recorder(decompose=lambda prompt: "None")
    (turn,) = turns_of(conversation("Hi", (text, "Paris is big.")), backend)
    assert (turn.status, turn.claims, turn.windows) == (TurnStatus.SCORED, (), 0)
    assert turn.chunks == bool(text.strip())
    assert [r for _, requests in backend.batches for r in requests] == []


def test_no_turns_of_the_assistant() -> None:
    assert turns_of(conversation("Hi", "Anybody?")) == ()
    assert Pipeline(Recorder()).score_shard([]) == []


# --- history
TALK = ("one", ("two", None), "three", ("four", None), "five", ("six", None))


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ("none", []),
        ("recent", ["Assistant: four", "User: five"]),
        ("full", ["User: one", "Assistant: two", "User: three", "Assistant: four", "User: five"]),
    ],
)
def test_history_of_verify_and_categorise(context: str, shown: list[str]) -> None:
    backend = Recorder()
    turns_of(conversation(*TALK), backend, settings_of(context=context))
    for stage in ("verify", "categorise"):
        (prompt,) = backend.asked(stage, "six")
        assert part(prompt, "Earlier talk (no evidence):").splitlines() == shown


def test_recent_history_is_the_default_and_has_at_most_a_hundred_tokens() -> None:
    backend = Recorder()
    long = " ".join(f"w{i}" for i in range(150))
    turns_of(conversation("one", ("two", None), long, ("four", None)), backend)
    (prompt,) = backend.asked("verify", "four")
    assert part(prompt, "Earlier talk (no evidence):") == "User: " + " ".join(f"w{i}" for i in range(50, 150))


def test_full_history_is_not_cut() -> None:
    backend = Recorder()
    long = " ".join(f"w{i}" for i in range(150))
    turns_of(conversation(long, ("four", None)), backend, settings_of(context="full"))
    assert part(backend.asked("verify", "four")[0], "Earlier talk") == f"User: {long}"


@pytest.mark.parametrize("context", ["none", "recent", "full"])
def test_decompose_sees_history_under_every_context(context: str) -> None:
    backend = Recorder()
    turns_of(conversation(*TALK), backend, settings_of(context=context))
    shown = {part(p, "Reply:"): part(p, "Conversation:") for p in backend.replies}
    assert shown["six"].splitlines()[-2:] == ["Assistant: four", "User: five"]
    assert shown["two"] == "User: one"


# --- references
JUDGED = [{"reference": None}, {"reference": []}, {"reference": ""}]
UNREFERENCED: list[dict[str, Any]] = [{}, {"reference": "N/A"}, {"reference": " n/a "}]


@pytest.mark.parametrize("mode", ["skip", "trust", "verify"])
@pytest.mark.parametrize("reference", JUDGED)
def test_an_empty_reference_means_judged_by_the_store_alone(reference: dict[str, Any], mode: str) -> None:
    backend = Recorder()
    c = conversation(("Paris is big", "Paris is big."), "And?", assistant("Paris is big | Lyon is old", **reference))
    _, second = turns_of(c, backend, settings_of(mode))
    assert second.status is TurnStatus.SCORED
    assert labels(second) == [V, L]
    assert second.memory == ((0, 0),)
    assert part(backend.asked("verify", "Lyon is old")[0], "Reference:") == "(none)"


@pytest.mark.parametrize("reference", UNREFERENCED)
def test_unreferenced_turns_are_skipped(reference: dict[str, Any]) -> None:
    backend = Recorder()
    c = conversation(assistant("Lyon is old", **reference), "So?", ("Lyon is old", None))
    first, second = turns_of(c, backend)
    assert (first.status, first.claims, first.windows, first.chunks) == (TurnStatus.UNREFERENCED, (), 0, 0)
    assert [part(p, "Reply:") for p in backend.replies] == ["Lyon is old"]
    assert "User: So?" in backend.replies[0].user
    assert second.memory == ()
    assert labels(second) == [L]


@pytest.mark.parametrize("reference", UNREFERENCED)
def test_unreferenced_turns_are_trusted(reference: dict[str, Any]) -> None:
    backend = Recorder()
    c = conversation(assistant("Lyon is old | people love Nice", **reference), "So?", ("Lyon is old", None))
    first, second = turns_of(c, backend, settings_of("trust"))
    assert first.status is TurnStatus.UNREFERENCED
    assert [(k.text, k.label, k.probs, k.unscored) for k in first.claims] == [
        ("Lyon is old", None, {}, None),
        ("people love Nice", None, {}, None),
    ]
    assert second.memory == ((0, 0), (0, 1))
    assert labels(second) == [V]
    assert backend.asked("verify", "people love Nice") == []


@pytest.mark.parametrize("reference", UNREFERENCED)
def test_unreferenced_turns_are_verified_like_empty_references(reference: dict[str, Any]) -> None:
    c = conversation(assistant("Lyon is old", **reference), "So?", assistant("people love Nice", **reference))
    first, second = turns_of(c, None, settings_of("verify"))
    assert first.status is second.status is TurnStatus.SCORED
    assert (labels(first), labels(second)) == ([L], [S])


# --- order
def test_turn_t_of_every_conversation_is_labelled_before_turn_t_plus_one() -> None:
    shard = [
        conversation(*[(f"claim {name} {t}", None) for t in range(length)], id=name)
        for name, length in (("a", 3), ("b", 1), ("c", 2))
    ]
    backend = Recorder()
    results = score(*shard, backend=backend)
    assert backend.calls[0] == ("decompose", 6)
    assert [s for s, _ in backend.calls].count("decompose") == 1
    assert [[r.branches[0] for r in rs] for stage, rs in backend.batches if stage == "verify"] == [
        ["claim a 0", "claim b 0", "claim c 0"],
        ["claim a 1", "claim c 1"],
        ["claim a 2"],
    ]
    assert [r.id for r in results] == ["a", "b", "c"]
    assert [[t.claims[0].text for t in r.turns] for r in results] == [
        ["claim a 0", "claim a 1", "claim a 2"],
        ["claim b 0"],
        ["claim c 0", "claim c 1"],
    ]


FACTS = ["Paris is big", "Lyon is old", "people love Nice", "the assistant is unsure"]
TURN = st.fixed_dictionaries(
    {"role": st.just("assistant"), "text": st.lists(st.sampled_from(FACTS), max_size=4).map(" | ".join)},
    optional={"reference": st.none() | st.sampled_from([*FACTS, "not Lyon is old", "N/A"])},
)
TALKS = st.lists(st.lists(TURN | st.sampled_from(FACTS), min_size=1, max_size=4), min_size=1, max_size=4)


@given(TALKS, st.sampled_from(["skip", "trust", "verify"]), st.sampled_from(["none", "recent", "full"]))
@UNHURRIED
def test_a_conversation_is_scored_the_same_in_any_company(talks: list[list[Any]], mode: str, context: str) -> None:
    conversations = [conversation(*talk, id=str(n)) for n, talk in enumerate(talks)]
    config = settings_of(mode, context=context)
    assert score(*conversations, config=config) == [score(c, config=config)[0] for c in conversations]


def test_progress_counts_turns_and_claims() -> None:
    seen: list[tuple[int, int]] = []
    shard = [conversation(("x | y", None), ("z", None), id="a"), conversation(("u", None), id="b")]
    Pipeline(Recorder(), on_progress=lambda turns, claims: seen.append((turns, claims))).score_shard(shard)
    assert seen == [(2, 3), (1, 1)]
