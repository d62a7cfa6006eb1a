"""What later turns know of earlier ones, and claims that the input gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from reading_script import (
    CERTAIN,
    L,
    Recorder,
    V,
    assistant,
    conversation,
    labels,
    part,
    score,
    settings_of,
    turns_of,
)

from vista_local.errors import InputError, VistaError
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt
from vista_local.schema import TurnStatus


# --- memory
def test_claims_of_one_turn_never_support_each_other() -> None:
    def anything_known_suffices(stage: str, prompt: Prompt, claim: str) -> Sequence[float]:
        if stage == "categorise":
            return CERTAIN[L]
        return [0.9, 0.1] if part(prompt, "Known facts:") or claim in part(prompt, "Reference:") else [0.1, 0.9]

    reply = "Paris is big | Lyon is old"
    backend = Recorder(classify=anything_known_suffices)
    first, second = turns_of(conversation((reply, "Paris is big"), (reply, None)), backend)
    assert (labels(first), first.memory) == ([V, L], ())
    assert (labels(second), second.memory) == ([V, V], ((0, 0),))


@pytest.mark.parametrize("context", ["none", "recent", "full"])
@pytest.mark.parametrize("mode", ["skip", "trust", "verify"])
def test_user_statements_are_not_facts(context: str, mode: str) -> None:
    backend = Recorder()
    c = conversation("Paris is big", ("Paris is big", None), "Paris is big", ("Paris is big", None))
    for turn in turns_of(c, backend, settings_of(mode, context=context)):
        assert (labels(turn), turn.memory) == ([L], ())
    assert all("Known facts" not in p.user for p in backend.asked("verify", "Paris is big"))


def test_only_verified_and_out_of_scope_claims_are_remembered_and_told_apart() -> None:
    backend = Recorder()
    reply = "Paris is big | Lyon is old | people love Nice | the assistant is unsure | Metz is far"
    c = conversation((reply, "Paris is big. not Lyon is old."), "And?", ("Brest is wet", None))
    _, second = turns_of(c, backend)
    assert second.memory == ((0, 0), (0, 2))
    known = part(backend.asked("verify", "Brest is wet")[0], "Known facts:")
    assert known == "- Paris is big\n- (stated) people love Nice"


def test_the_store_grows_over_turns_without_duplicates() -> None:
    c = conversation(
        ("Paris is big", "Paris is big"), ("Paris is big | Lyon is old", "Lyon is old"), ("Lyon is old", None)
    )
    *_, third = turns_of(c)
    assert third.memory == ((0, 0), (1, 1))
    assert labels(third) == [V]


def test_background_facts_support_from_the_first_turn_on() -> None:
    (turn,) = turns_of(conversation(("Paris is big", None), background=["Paris is big"]))
    assert (labels(turn), turn.memory) == ([V], ((-1, 0),))


def test_conversations_of_a_shard_share_no_memory() -> None:
    known = conversation(("Paris is big", "Paris is big"), ("Paris is big", None), id="a")
    other = conversation(("Lyon is old", "Lyon is old"), ("Paris is big", None), id="b")
    first, second = score(known, other)
    assert labels(first.turns[1]) == [V]
    assert labels(second.turns[1]) == [L]


def test_past_the_budget_the_best_entries_are_shown_and_the_rest_counted() -> None:
    facts = [f"Town{i} has {i} gates" for i in range(8)]  # four words and three for the line
    c = conversation((" | ".join(facts), ". ".join(facts)), ("Town2 has 2 gates", None))
    _, turn = turns_of(c, None, settings_of(budget=21))
    assert turn.memory == ((0, 2), (0, 6), (0, 7))
    assert turn.omitted_memory == 5
    assert labels(turn) == [V]
    _, unlimited = turns_of(c)
    assert (len(unlimited.memory), unlimited.omitted_memory) == (8, 0)


# --- given claims
GIVEN = [{"claim": "Lyon is old", "label": "VERIFIED"}, {"claim": "Paris is big", "label": "CONTRADICTED"}]


def test_given_claims_are_labelled_in_order_whatever_labels_they_carry() -> None:
    backend = Recorder()
    c = conversation("Hi", assistant("Ignored text", reference="Paris is big", claims=GIVEN))
    (turn,) = turns_of(c, backend, settings_of(given_claims=True))
    assert [(k.text, k.label) for k in turn.claims] == [("Lyon is old", L), ("Paris is big", V)]
    assert backend.replies == []
    assert turn.chunks == 0


def test_given_claims_are_kept_as_they_are() -> None:
    c = conversation(assistant("x", reference=None, claims=["Rome in 1999", "Rome in 1999"]))
    (turn,) = turns_of(c, None, settings_of(given_claims=True))
    assert [k.text for k in turn.claims] == ["Rome in 1999", "Rome in 1999"]
    assert turn.unsupported_extraction == ()


def test_without_given_claims_the_inputs_claims_are_not_read() -> None:
    (turn,) = turns_of(conversation(assistant("Metz is far", reference=None, claims=GIVEN)))
    assert [k.text for k in turn.claims] == ["Metz is far"]


def test_a_turn_without_claims_key_is_left_alone_and_an_empty_list_is_a_turn_without_claims() -> None:
    c = conversation(
        assistant("Paris is big", reference="Paris is big"),
        assistant("Hello", reference="Paris is big", claims=[]),
        assistant("x", reference=None, claims=["Paris is big"]),
    )
    backend = Recorder()
    empty, last = turns_of(c, backend, settings_of(given_claims=True))
    assert (empty.index, empty.status, empty.claims) == (1, TurnStatus.SCORED, ())
    assert (last.index, labels(last), last.memory) == (2, [L], ())
    assert "Assistant: Paris is big" in backend.asked("verify", "Paris is big")[0].user


def test_the_store_holds_predicted_labels_of_given_claims() -> None:
    c = conversation(
        assistant("x", reference="Paris is big", claims=GIVEN), assistant("y", reference=None, claims=["Metz is far"])
    )
    assert turns_of(c, None, settings_of(given_claims=True))[1].memory == ((0, 1),)


def test_oracle_memory_holds_the_inputs_labels_and_leaves_predictions_alone() -> None:
    c = conversation(
        assistant("x", reference="Paris is big", claims=GIVEN), assistant("y", reference=None, claims=[GIVEN[0]])
    )
    first, second = turns_of(c, None, settings_of(given_claims=True, oracle_memory=True))
    assert labels(first) == [L, V]
    assert (second.memory, labels(second)) == (((0, 0),), [V])


def test_oracle_memory_needs_given_claims_with_labels() -> None:
    with pytest.raises(VistaError, match="given_claims"):
        Pipeline(Recorder(), settings_of(oracle_memory=True))
    c = conversation(assistant("x", reference="Paris", claims=["Paris is big"]), id="talk 7")
    with pytest.raises(InputError, match=r"'talk 7', turn 0: .*'Paris is big' has none"):
        turns_of(c, None, settings_of(given_claims=True, oracle_memory=True))


def test_given_claims_of_unreferenced_turns_follow_the_option() -> None:
    c = conversation(assistant("x", claims=["Lyon is old"]), assistant("y", reference=None, claims=["Lyon is old"]))
    for mode, stored in (("skip", ()), ("trust", ((0, 0),))):
        first, second = turns_of(c, None, settings_of(mode, given_claims=True))
        assert (first.status, labels(first)) == (TurnStatus.UNREFERENCED, [None])
        assert second.memory == stored
