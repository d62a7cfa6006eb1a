"""The stages as pure functions: labels and probabilities by hand and by property, and what prompts hold."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local import stages
from vista_local.labels import LABELS, UNVERIFIABLE, UNVERIFIABLE_LABELS, Label
from vista_local.memory import Entry, Kind
from vista_local.prompts import Utterance, render_claim_list
from vista_local.schema import Role

UNHURRIED = settings(max_examples=50, deadline=None)
V, C, L, S, A = LABELS
WORDS = {V.value: "Ja", UNVERIFIABLE: "Nein", C.value: "Falsch", L.value: "Fehlt", S.value: "Privat", A.value: "Kann"}
Q = st.lists(st.floats(0.01, 1), min_size=4, max_size=4).map(lambda w: [x / sum(w) for x in w])


@pytest.mark.parametrize(
    ("p", "q", "label"),
    [
        (0.5, None, V),
        (0.5, [1, 0, 0, 0], V),
        (0.499999, [0.4, 0.3, 0.2, 0.1], C),
        (0.0, [0.1, 0.4, 0.3, 0.2], L),
        (0.3, [0.1, 0.2, 0.6, 0.1], S),
        (0.49, [0.0, 0.1, 0.1, 0.8], A),
        # 0.4 is over every (1 - p) q_k, yet the claim is not verified: the rule has two steps.
        (0.4, [0.3, 0.3, 0.2, 0.2], C),
    ],
)
def test_label_of_a_claim(p: float, q: list[float] | None, label: Label) -> None:
    assert stages.claim_label(p, q) is label


def test_an_unverifiable_claim_needs_a_distribution() -> None:
    with pytest.raises(ValueError, match="categorise"):
        stages.claim_label(0.2, None)


def test_probabilities_of_a_claim_that_was_only_verified() -> None:
    assert stages.claim_probs(0.8, None) == {"VERIFIED": 0.8, "UNVERIFIABLE": 0.2}


def test_probabilities_of_a_claim_that_was_categorised() -> None:
    probs = stages.claim_probs(0.2, [0.5, 0.25, 0.125, 0.125])
    assert list(probs) == [label.value for label in LABELS]
    assert probs == pytest.approx({V: 0.2, C: 0.4, L: 0.2, S: 0.1, A: 0.1})


@given(st.floats(0, 1), Q)
@UNHURRIED
def test_probabilities_sum_to_one_and_agree_with_the_label(p: float, q: list[float]) -> None:
    probs = stages.claim_probs(p, q)
    assert math.isclose(sum(probs.values()), 1, abs_tol=1e-5)
    label = stages.claim_label(p, q)
    if label is not V:
        assert probs[label.value] == max(probs[k.value] for k in UNVERIFIABLE_LABELS)


def test_one_supporting_window_suffices() -> None:
    assert stages.combine_verify([0.1, 0.9, 0.2]) == 0.9
    assert stages.combine_verify([0.3]) == 0.3


def test_one_window_stands_as_it_is() -> None:
    assert stages.combine_categorise([[0.4, 0.3, 0.2, 0.1]]) == [0.4, 0.3, 0.2, 0.1]


@pytest.mark.parametrize(
    ("windows", "label"),
    [
        ([[0.6, 0.4, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]], C),
        ([[0, 1, 0, 0], [0.61, 0.39, 0, 0]], C),
        ([[0.59, 0.41, 0, 0], [0.59, 0.41, 0, 0]], L),
        ([[0.59, 0.01, 0.3, 0.1], [0.1, 0.5, 0.3, 0.1]], S),
        ([[0, 0.9, 0.1, 0], [0, 0, 0.6, 0.4], [0, 0, 0.6, 0.4]], S),
    ],
)
def test_contradiction_needs_a_clear_window(windows: list[list[float]], label: Label) -> None:
    assert stages.claim_label(0.1, stages.combine_categorise(windows)) is label


def test_mean_over_windows_leaves_contradicted_out() -> None:
    combined = stages.combine_categorise([[0.5, 0.3, 0.1, 0.1], [0.1, 0.3, 0.5, 0.1]])
    assert combined == pytest.approx([0, 0.3 / 0.7, 0.3 / 0.7, 0.1 / 0.7])


@given(st.lists(Q, min_size=1, max_size=5))
@UNHURRIED
def test_combined_windows_are_a_distribution_in_any_order(windows: list[list[float]]) -> None:
    combined = stages.combine_categorise(windows)
    assert math.isclose(sum(combined), 1, abs_tol=1e-9)
    if len(windows) > 1:
        clear = max(w[0] for w in windows) >= 0.6
        assert (max(combined) == combined[0]) == clear
    assert stages.combine_categorise(windows[::-1])[0] == pytest.approx(combined[0])


def test_decompose_prompt_shows_history_and_the_whole_reply() -> None:
    prompt = stages.decompose_prompt([Utterance(Role.USER, "Is it big?")], "Yes. It is.\nVery.")
    assert prompt.user == "Conversation:\nUser: Is it big?\n\nReply:\nYes. It is.\nVery."
    assert stages.decompose_prompt([], "Yes.").user == "Reply:\nYes."


def test_claims_of_a_turn_share_one_prefix() -> None:
    store = [Entry("Lyon is old", Kind.FACT, 1, 0), Entry("the assistant likes Nice", Kind.STATED, 1, 1)]
    request = stages.classify_request("verify", WORDS, [], store, "Paris is big.", ["a", "b"])
    assert request.branches == ("a", "b")
    assert request.prefix.user == (
        "Known facts:\n- Lyon is old\n- (stated) the assistant likes Nice\n\nReference:\nParis is big.\n\nClaim:"
    )


def test_an_empty_reference_is_said_to_be_none() -> None:
    assert stages.classify_request("verify", WORDS, [], [], "", ["a"]).prefix.user == "Reference:\n(none)\n\nClaim:"


@pytest.mark.parametrize(("stage", "labels"), [("verify", [V.value, UNVERIFIABLE]), ("categorise", [C, L, S, A])])
def test_instructions_name_the_adapters_own_words(stage: str, labels: list[str]) -> None:
    system = stages.classify_request(stage, WORDS, [], [], "", ["a"]).prefix.system
    assert [w for w in WORDS.values() if w in system] == [WORDS[str(label)] for label in labels]
    assert "{" not in system


def test_a_turn_without_claims_is_rendered_as_none() -> None:
    assert render_claim_list([]) == "None"
    assert render_claim_list(["a\nb", "c"]) == "- a b\n- c"
