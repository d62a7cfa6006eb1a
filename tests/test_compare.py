"""Two result files claim by claim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import LAKE, MILL, RUN, A, C, L, S, V, claim, write_results
from typer.testing import CliRunner

from vista_local.cli import app
from vista_local.compare import compare_data, compare_results, figures, mcnemar, transitions
from vista_local.errors import InputError
from vista_local.labels import Label
from vista_local.metrics import claim_confusion, macro_f1
from vista_local.report.page import render_page
from vista_local.schema import ConversationResult, Corrected, GivenClaim, TurnResult, TurnStatus


def conversation(name: str, *labels: Label | None) -> ConversationResult:
    claims = tuple(claim(f"claim {i}", label, 0.8) for i, label in enumerate(labels))
    return ConversationResult(name, (TurnResult(1, TurnStatus.SCORED, claims),))


FIRST = (conversation("a", V, C, L), conversation("b", V, V, None), conversation("only", V))
SECOND = (conversation("b", V, L, A), conversation("a", V, L, L), conversation("other", V))
GOLD = {"a": {1: (GivenClaim("claim 1", L),)}, "b": {1: (GivenClaim("claim 1", V), GivenClaim("claim 2", A))}}


def test_labels_are_compared_whatever_the_order_of_the_files() -> None:
    comparison = compare_results(FIRST, SECOND)
    changed = [
        (p.conversation, p.first.text, p.first.label, p.second.label) for p in comparison.every_pair if p.changed
    ]
    assert changed == [("a", "claim 1", C, L), ("b", "claim 1", V, L), ("b", "claim 2", None, A)]
    counts = transitions(comparison)
    assert counts[1][2] == counts[0][2] == counts[5][4] == 1 and counts[0][0] == 2 and sum(map(sum, counts)) == 6
    assert (comparison.only_first_conversations, comparison.only_second_conversations) == (1, 1)


def test_what_cannot_be_aligned_is_counted() -> None:
    fewer = replace(MILL, turns=(replace(MILL.turns[0], claims=(claim("the mill is OLD", C), claim("New.", V))),))
    comparison = compare_results((MILL, LAKE), (fewer, LAKE))
    assert [(p.first.text, p.second.label) for p in comparison.pairs[0]] == [("The mill is old.", C)]
    assert (comparison.only_first_claims, comparison.only_second_claims) == (4, 1)
    twice = conversation("a", V, V)
    twice = replace(twice, turns=(replace(twice.turns[0], claims=(claim("x", V), claim("x", C), claim("x", L))),))
    once = replace(twice, turns=(replace(twice.turns[0], claims=(claim("x", S), claim("x", S))),))
    comparison = compare_results((twice,), (once,))
    assert (len(comparison.every_pair), comparison.only_first_claims, comparison.only_second_claims) == (2, 1, 0)


def test_figures_have_intervals_and_a_paired_difference() -> None:
    rows = {f.name: f for f in figures(compare_results(FIRST, SECOND, GOLD), resamples=200)}
    assert rows["VISTA score"].first == pytest.approx(3 / 6) and rows["VISTA score"].second == pytest.approx(3 / 6)
    accuracy = rows["claim accuracy"]
    assert accuracy.first == pytest.approx(1 / 3) and accuracy.second == pytest.approx(2 / 3)
    assert accuracy.difference == pytest.approx(1 / 3)
    low, high = accuracy.difference_interval or (1.0, -1.0)
    assert low <= 1 / 3 <= high
    assert rows["macro-F1"].second == pytest.approx(macro_f1([L, V, A], [L, L, A]))
    assert rows["macro-F1"].first == pytest.approx(claim_confusion([L, V, A], [C, V, None]).macro_f1)
    same = {f.name: f for f in figures(compare_results(FIRST, FIRST, GOLD), resamples=50)}
    assert all(f.difference == 0 and f.difference_interval == (0, 0) for f in same.values())


def test_coverage_stands_beside_the_scores() -> None:
    unscored = replace(SECOND[1], turns=(replace(SECOND[1].turns[0], claims=(), unscored="timeout"),))
    comparison = compare_results(FIRST, (SECOND[0], unscored))
    rows = {f.name: f for f in figures(comparison, resamples=50)}
    claims, turns = rows["claim coverage"], rows["turn coverage"]
    assert (claims.first, claims.second) == (pytest.approx(5 / 6), 1.0)  # one claim of "b" has no label
    assert (turns.first, turns.second, turns.difference) == (1.0, 0.5, -0.5)


def test_mcnemar_is_on_claims_with_gold() -> None:
    test = mcnemar(compare_results(FIRST, SECOND, GOLD))
    assert test is not None and (test.only_first, test.only_second, test.p_value) == (1, 2, 1.0)
    assert mcnemar(compare_results(FIRST, SECOND)) is None
    assert "claim accuracy" not in {f.name for f in figures(compare_results(FIRST, SECOND), resamples=10)}


def test_a_reviewers_labels_are_no_merit_of_the_model() -> None:
    """In a merged file the reviewed turns are gold, and the labels in them are the reviewer's."""
    (turn,) = conversation("a", C, V, V).turns
    by_reviewer = (
        replace(turn.claims[0], corrected=Corrected("label", label=V)),  # the model had said VERIFIED
        turn.claims[1],
        replace(turn.claims[2], corrected=Corrected("add")),
    )
    merged = ConversationResult("a", (replace(turn, claims=by_reviewer),))
    gold = {"a": {1: (GivenClaim("claim 0", C), GivenClaim("claim 1", V), GivenClaim("claim 2", V))}}
    found = compare_results([merged], [conversation("a", V, V, V)], gold)
    accuracy = next(f for f in figures(found, resamples=10) if f.name == "claim accuracy")
    assert (accuracy.first, accuracy.second) == (0.5, 0.5)
    test = mcnemar(found)
    assert test is not None and (test.only_first, test.only_second) == (0, 0)
    assert compare_data(found, title="t", names=("a", "b"), resamples=10)["judged"] == 2


def test_nothing_in_common_and_repeated_ids_are_refused() -> None:
    with pytest.raises(InputError, match="in common"):
        compare_results(FIRST[:1], SECOND[:1])
    with pytest.raises(InputError, match="twice"):
        compare_results(FIRST[:1] * 2, SECOND)
    with pytest.raises(InputError, match="twice"):
        compare_results(FIRST, SECOND[:1] * 2)


def test_the_page_holds_each_changed_claim_with_its_context() -> None:
    other = replace(MILL, turns=(replace(MILL.turns[0], claims=(claim("The mill is old.", L, 0.5),)), *MILL.turns[1:]))
    data = compare_data(compare_results((MILL,), (other,)), title="t", names=("x", "y"), resamples=10)
    (example,) = data["examples"]
    assert example["a"] == {"l": 0, "p": 0.93} and example["b"] == {"l": 2, "p": 0.5}
    assert example["asked"] == "How old is the mill?" and example["reference"] == [
        "Rain fell. The mill is old.",
        "It is white.",
    ]
    assert (data["claims"], data["changed"], data["unaligned"]["only_first_claims"]) == (3, 1, 2)
    json.dumps(data, allow_nan=False)
    assert '"changed":1' in render_page(data, "compare")


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    a, b = (
        write_results(tmp_path / "a[1].jsonl", *FIRST),
        write_results(tmp_path / "b.jsonl", *SECOND, run=RUN | {"id": "x"}),
    )
    gold = tmp_path / "gold.jsonl"
    claims = [{"claim": "claim 1", "label": "LACKING_EVIDENCE"}]
    gold.write_text(
        json.dumps(
            {"id": "a", "turns": [{"role": "user", "text": "?"}, {"role": "assistant", "text": "!", "claims": claims}]}
        )
    )
    page = tmp_path / "compare.html"
    result = CliRunner().invoke(app, ["compare", str(a), str(b), "--gold", str(gold), "-o", str(page)])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    for word in (
        "a[1].jsonl",
        "VISTA score",
        "claim accuracy",
        "claim coverage",
        "3 claims have another label",
        "conversations in A 1",
        "p = 1.0000",
    ):
        assert word.replace("conversations in A", "only in A conversations") in text, text
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    gold.write_text(gold.read_text().replace('"a"', '"nobody"'))
    refused = CliRunner().invoke(app, ["compare", str(a), str(b), "--gold", str(gold)])
    assert refused.exit_code == 2 and "gold claim" in " ".join(refused.stderr.split())
