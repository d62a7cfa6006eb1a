"""Scores of turns, conversations and corpora, by hand; pooling laws by property."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local.labels import LABELS, SAFE_LABELS, Label
from vista_local.schema import ClaimResult, ConversationResult, TurnResult, TurnStatus
from vista_local.scoring import Summary, Totals, score_conversation, score_turn

V, C, L, S, A = LABELS

# No deadline: on a busy machine a slow example is no failure.
UNHURRIED = settings(max_examples=60, deadline=None)


def claims(*labels: Label | None) -> tuple[ClaimResult, ...]:
    return tuple(
        ClaimResult(f"claim {i}", label, unscored="too long" if label is None else None)
        for i, label in enumerate(labels)
    )


def turn(*labels: Label | None, index: int = 1, unscored: str | None = None, unreferenced: bool = False) -> TurnResult:
    status = TurnStatus.UNREFERENCED if unreferenced else TurnStatus.SCORED
    return TurnResult(index, status, claims(*labels), unscored=unscored)


@pytest.mark.parametrize(
    ("labels", "vista", "strict", "safe", "coverage"),
    [
        ((V, V), 1.0, True, True, 1.0),
        ((V, S), 1.0, False, True, 1.0),
        ((V, A), 1.0, False, True, 1.0),
        ((V, C), 0.5, False, False, 1.0),
        ((V, L, S, V), 0.75, False, False, 1.0),
        ((L,), 0.0, False, False, 1.0),
        ((V, V, V, None), 0.75, False, False, 0.75),
        ((None,), 0.0, False, False, 0.0),
        ((), None, True, True, None),
    ],
)
def test_turn_rules(
    labels: tuple[Label | None, ...], vista: float | None, strict: bool, safe: bool, coverage: float | None
) -> None:
    score = score_turn(turn(*labels))
    assert score.vista_score == vista
    assert score.strict is strict
    assert score.safe is safe
    assert score.coverage == coverage


def test_unreferenced_turn_has_no_score_and_no_claims_in_the_count() -> None:
    score = score_turn(turn(None, V, index=3, unreferenced=True))
    assert (score.index, score.claims, score.labelled) == (3, 0, 0)
    assert (score.vista_score, score.strict, score.safe, score.coverage) == (None, None, None, None)


def test_unscored_turn_has_no_verdict_but_keeps_its_claims_and_coverage() -> None:
    score = score_turn(turn(V, None, unscored="out of memory"))
    assert (score.vista_score, score.strict, score.safe) == (None, None, None)
    assert score.unscored == "out of memory"
    assert (score.claims, score.labelled, score.coverage) == (2, 1, 0.5)
    # A turn that failed before it had claims must not pass for one that has none to check.
    assert score_turn(turn(unscored="no list")).strict is None


def test_conversation_pools_claims_instead_of_averaging_turns() -> None:
    result = ConversationResult("c", (turn(V, V, V, index=1), turn(C, index=3)))
    score = score_conversation(result)
    assert score.id == "c"
    assert [t.index for t in score.turns] == [1, 3]
    assert score.vista_score == 0.75  # not (1 + 0) / 2
    assert score.totals.labels == {V: 3, C: 1, L: 0, S: 0, A: 0}
    assert score.totals.strict_rate == 0.5


def test_summary_by_hand() -> None:
    long_turn = TurnResult(
        0,
        TurnStatus.SCORED,
        claims(V, S, None),
        unsupported_extraction=("a", "b"),
        windows=4,
        chunks=2,
        omitted_memory=5,
    )
    summary = Summary()
    summary.add(ConversationResult("a", (long_turn, turn(V), turn(), turn(S, A))))
    summary.add(ConversationResult("b", (turn(V, unreferenced=True), turn(L, None, unscored="lost"))))
    summary.add(ConversationResult("c", (), error="unreadable"))
    totals = summary.totals
    assert (summary.conversations, summary.failed) == (3, 1)
    assert (totals.turns, totals.scored_turns, totals.unreferenced_turns, totals.unscored_turns) == (6, 4, 1, 1)
    # Claims: 3 + 1 + 0 + 2 scored, 2 of the lost turn, none of the unreferenced turn.
    assert (totals.claims, totals.labelled_claims, totals.unscored_claims) == (8, 6, 2)
    assert totals.labels == {V: 2, C: 0, L: 1, S: 2, A: 1}
    assert totals.vista_score == 5 / 8
    assert totals.coverage == 6 / 8
    assert totals.strict_rate == 2 / 4  # (V) and the turn without claims
    assert totals.safe_rate == 3 / 4  # these and (S, A); the long turn has an unscored claim
    assert totals.turn_coverage == 4 / 5
    assert (totals.windows, totals.chunks, totals.unsupported_extractions, totals.omitted_memory) == (4, 2, 2, 5)


def test_nothing_scored_gives_none_everywhere() -> None:
    summary = Summary()
    summary.add(ConversationResult("a", (turn(V, unreferenced=True),)))
    totals = summary.totals
    assert totals.vista_score is None
    assert totals.coverage is None
    assert totals.turn_coverage is None
    assert totals.strict_rate is None
    assert totals.safe_rate is None
    assert Totals().mostly_unreferenced is False


@pytest.mark.parametrize(("unreferenced", "referenced", "mostly"), [(1, 1, False), (2, 1, True), (0, 2, False)])
def test_mostly_unreferenced_means_over_half(unreferenced: int, referenced: int, mostly: bool) -> None:
    turns = (turn(unreferenced=True),) * unreferenced + (turn(V),) * referenced
    assert score_conversation(ConversationResult("a", turns)).totals.mostly_unreferenced is mostly


def test_as_dict_is_json_with_every_label_and_null_for_undefined() -> None:
    summary = Summary()
    assert json.loads(json.dumps(summary.as_dict()))["vista_score"] is None
    summary.add(ConversationResult("a", (turn(V, C),)))
    loaded = json.loads(json.dumps(summary.as_dict()))
    assert loaded["labels"] == {
        "VERIFIED": 1,
        "CONTRADICTED": 1,
        "LACKING_EVIDENCE": 0,
        "OUT_OF_SCOPE": 0,
        "ABSTENTION": 0,
    }
    assert (loaded["conversations"], loaded["claims"], loaded["scored_turns"]) == (1, 2, 1)
    assert loaded["vista_score"] == 0.5


turns_strategy = st.builds(
    lambda labels, unscored, unreferenced, windows: TurnResult(
        0,
        TurnStatus.UNREFERENCED if unreferenced else TurnStatus.SCORED,
        claims(*labels),
        windows=windows,
        unscored=unscored,
    ),
    st.lists(st.sampled_from([*LABELS, None]), max_size=5),
    st.sampled_from([None, None, "lost"]),
    st.booleans(),
    st.integers(0, 3),
)
conversations_strategy = st.lists(
    st.builds(
        lambda turns, error: ConversationResult("c", tuple(turns), error),
        st.lists(turns_strategy, max_size=4),
        st.sampled_from([None, "bad"]),
    ),
    max_size=6,
)


@UNHURRIED
@given(conversations_strategy, st.integers(0, 6))
def test_merged_parts_equal_the_whole_in_any_order(conversations: list[ConversationResult], cut: int) -> None:
    whole, left, right = Summary(), Summary(), Summary()
    for conversation in conversations:
        whole.add(conversation)
    for conversation in reversed(conversations[:cut]):
        left.add(conversation)
    for conversation in conversations[cut:]:
        right.add(conversation)
    right.merge(left)
    assert right == whole


@UNHURRIED
@given(conversations_strategy)
def test_pooled_score_equals_a_direct_count_over_claims(conversations: list[ConversationResult]) -> None:
    summary = Summary()
    for conversation in conversations:
        summary.add(conversation)
    counted = [
        claim.label
        for conversation in conversations
        for t in conversation.turns
        if t.status is TurnStatus.SCORED
        for claim in t.claims
    ]
    expected = Fraction(sum(x in SAFE_LABELS for x in counted), len(counted)) if counted else None
    assert summary.totals.vista_score == (None if expected is None else float(expected))
    assert summary.totals.unscored_claims == counted.count(None)
    assert summary.totals.turns == sum(len(c.turns) for c in conversations)
    assert summary.totals.strict_turns <= summary.totals.safe_turns <= summary.totals.scored_turns
