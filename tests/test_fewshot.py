"""The prompted pipeline's words: complete, consistent with the parsers, and parsers that never guess."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vista_local.claims import parse_claims, unsupported_details
from vista_local.fewshot import (
    FEWSHOT_VERSION,
    INSTRUCTIONS,
    Conflict,
    ContradictionAnswer,
    Stage,
    categorise_messages,
    contradiction_messages,
    decompose_messages,
    example_pairs,
    parse_categorise_answer,
    parse_contradiction_answer,
    parse_verify_answer,
    stage_messages,
    verify_messages,
)
from vista_local.fewshot_examples import CATEGORISE_EXAMPLES, DECOMPOSE_EXAMPLES, VERIFY_EXAMPLES, DecomposeExample
from vista_local.labels import UNVERIFIABLE, UNVERIFIABLE_LABELS, Label
from vista_local.prompts import StoreLine, Utterance, decompose_user, evidence_user, render_claim_list
from vista_local.schema import Role

TALK = [Utterance(Role.USER, "Who built it?")]
STORE = [StoreLine("The mill is old."), StoreLine("The assistant likes mills.", stated=True)]


def test_version_is_present() -> None:
    assert FEWSHOT_VERSION


def test_number_of_examples() -> None:
    assert (len(DECOMPOSE_EXAMPLES), len(VERIFY_EXAMPLES), len(CATEGORISE_EXAMPLES)) == (6, 6, 8)


def test_every_label_is_shown_evenly() -> None:
    assert Counter(e.answer for e in VERIFY_EXAMPLES) == {Label.VERIFIED.value: 3, UNVERIFIABLE: 3}
    assert Counter(e.answer for e in CATEGORISE_EXAMPLES) == {label.value: 2 for label in UNVERIFIABLE_LABELS}


def test_example_answers_parse() -> None:
    for example in VERIFY_EXAMPLES:
        assert parse_verify_answer(example.answer) is (example.answer == Label.VERIFIED.value)
    for example in CATEGORISE_EXAMPLES:
        assert parse_categorise_answer(example.answer) is Label(example.answer)


@pytest.mark.parametrize("example", DECOMPOSE_EXAMPLES, ids=lambda e: e.shows)
def test_claim_lists_read_back_and_pass_the_guard(example: DecomposeExample) -> None:
    assert parse_claims(render_claim_list(example.claims)).claims == example.claims
    sources = [example.reply, *(u.text for u in example.history)]
    assert [unsupported_details(c, sources) for c in example.claims] == [[] for _ in example.claims]


def test_what_the_examples_cover() -> None:
    assert any(not e.claims for e in DECOMPOSE_EXAMPLES), "an empty list"
    assert any("did not know" in c for e in DECOMPOSE_EXAMPLES for c in e.claims), "a presupposition"
    evidence = [*VERIFY_EXAMPLES, *CATEGORISE_EXAMPLES]
    assert any(e.store for e in VERIFY_EXAMPLES if e.answer == Label.VERIFIED.value), "support from memory"
    assert any(not e.reference for e in evidence), "an empty reference"
    assert any(s.stated for e in evidence for s in e.store), "a stated entry"


def test_messages_alternate_and_share_the_students_body() -> None:
    messages = decompose_messages(TALK, "Ines Falk did.")
    assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * 6, "user"]
    assert messages[-1]["content"] == decompose_user(TALK, "Ines Falk did.")
    for build, count in ((verify_messages, 6), (categorise_messages, 8)):
        messages = build(TALK, STORE, "It is a mill.", "Ines Falk\nbuilt it.")
        assert [m["role"] for m in messages] == ["system", *["user", "assistant"] * count, "user"]
        assert messages[-1]["content"] == f"{evidence_user(TALK, STORE, 'It is a mill.')} Ines Falk built it."


@pytest.mark.parametrize("stage", ["decompose", "verify", "categorise"])
def test_zero_shot_has_no_examples(stage: Stage) -> None:
    messages = stage_messages(stage, "body", "zero")
    assert messages == [{"role": "system", "content": INSTRUCTIONS[stage]}, {"role": "user", "content": "body"}]
    rendered = "\n".join(m["content"] for m in messages)
    assert not any(user in rendered for user, _ in example_pairs(stage))


def test_contradiction_pass_has_instructions_and_body_only() -> None:
    messages = contradiction_messages(TALK, "Nobody did.")
    assert [m["role"] for m in messages] == ["system", "user"]
    assert messages[-1]["content"] == decompose_user(TALK, "Nobody did.")


def test_unknown_shots_are_refused() -> None:
    with pytest.raises(ValueError, match="few, zero"):
        stage_messages("verify", "body", "six")  # type: ignore[arg-type]


def test_instructions_name_every_answer() -> None:
    assert all(word in INSTRUCTIONS["verify"] for word in (Label.VERIFIED.value, UNVERIFIABLE))
    assert all(label.value in INSTRUCTIONS["categorise"] for label in UNVERIFIABLE_LABELS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("VERIFIED", True),
        ("  **Verified.**\n", True),
        ("unverifiable", False),
        ("Unverified", False),
        ("The claim is supported by the second fact.\nAnswer: VERIFIED", True),
        ("It looks VERIFIED at first, but the year differs: UNVERIFIABLE", False),
        ("not verified", False),
        ("This can't be verified.", False),
        ("non-verifiable", False),
        ("Yes.", True),
        ("No, the date differs.", False),
        ('{"answer": "VERIFIED"}', True),
        ("VERIFIED. There is no doubt.", True),
        ("VERIFIED or UNVERIFIABLE", None),
        ("VERIFIED/UNVERIFIABLE", None),
        ("yes and no", None),
        ("Yes, no, maybe", None),
        ("None", None),
        ("No answer can be given", None),
        ("The diversified reference", None),
        ("", None),
    ],
)
def test_verify_answers(text: str, expected: bool | None) -> None:
    assert parse_verify_answer(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CONTRADICTED", Label.CONTRADICTED),
        ("Contradiction.", Label.CONTRADICTED),
        ("lacking-evidence", Label.LACKING_EVIDENCE),
        ("`Lacking Evidence`", Label.LACKING_EVIDENCE),
        ("subjective", Label.OUT_OF_SCOPE),
        ("out of\nscope", Label.OUT_OF_SCOPE),
        ("ABSTAIN", Label.ABSTENTION),
        ('{"label": "OUT_OF_SCOPE"}', Label.OUT_OF_SCOPE),
        ("UNVERIFIABLE: LACKING_EVIDENCE", Label.LACKING_EVIDENCE),
        ("Perhaps CONTRADICTED. No: the cast is open, so LACKING_EVIDENCE.", Label.LACKING_EVIDENCE),
        ("LACKING_EVIDENCE, not CONTRADICTED", Label.LACKING_EVIDENCE),
        ("LACKING_EVIDENCE rather than out of scope", Label.LACKING_EVIDENCE),
        ("LACKING_EVIDENCE: it can't be verified", Label.LACKING_EVIDENCE),
        ("CONTRADICTED or LACKING_EVIDENCE", None),
        ("CONTRADICTED / OUT_OF_SCOPE", None),
        ("CONTRADICTED, LACKING_EVIDENCE, OUT_OF_SCOPE, ABSTENTION", None),
        ("It is not CONTRADICTED.", None),
        ("VERIFIED", None),
        ("CONTRADICTED? On reflection VERIFIED", None),
        ("uncontradicted", None),
        ("I cannot tell.", None),
        ("LAC\u212aING_EVIDENCE", None),
        ("", None),
    ],
)
def test_categorise_answers(text: str, expected: Label | None) -> None:
    assert parse_categorise_answer(text) is expected


def test_contradiction_answers() -> None:
    assert parse_contradiction_answer("NO") == ContradictionAnswer(False)
    assert parse_contradiction_answer("none.") == ContradictionAnswer(False)
    assert parse_contradiction_answer("**YES**") == ContradictionAnswer(True)
    places = 'YES\n- "I live alone" <> "my wife"\n- in 1990 <> in 1991\nThat is all.'
    expected = (Conflict("I live alone", "my wife"), Conflict("in 1990", "in 1991"))
    assert parse_contradiction_answer(places) == ContradictionAnswer(True, expected)
    assert parse_contradiction_answer("NO\n- a <> b") is None
    assert parse_contradiction_answer("Not sure") is None
    assert parse_contradiction_answer("") is None


_PIECES = st.sampled_from(
    "VERIFIED|UNVERIFIABLE|not | or |/|CONTRADICTED|OUT-OF SCOPE|Yes|no|\n|- |<>|n't |\u212a".split("|")
)
# A busy machine draws slowly; that is no fault of the parsers.
_PATIENT = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_PATIENT
@given(st.one_of(st.text(max_size=80), st.lists(_PIECES, max_size=8).map("".join)))
def test_parsers_never_raise_and_stay_in_their_answers(text: str) -> None:
    assert parse_verify_answer(text) in (True, False, None)
    label = parse_categorise_answer(text)
    assert label is None or label in UNVERIFIABLE_LABELS
    answer = parse_contradiction_answer(text)
    assert answer is None or isinstance(answer, ContradictionAnswer)


@_PATIENT
@given(st.sampled_from(UNVERIFIABLE_LABELS), st.sampled_from("_- "), st.booleans())
def test_any_spelling_of_a_label_is_read(label: Label, joint: str, lower: bool) -> None:
    spelled = label.value.replace("_", joint)
    assert parse_categorise_answer(f"Label: {spelled.lower() if lower else spelled}.") is label
