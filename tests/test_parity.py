"""Teacher and student side by side: what is read, what is counted, what is tested."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("scipy", reason="needs the [train] extra")

import numpy as np
import typer
from scipy import stats
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score

from training.noninferiority import (
    MIN_CLUSTERS,
    Cluster,
    clustered_standard_error,
    design_effect,
    difference,
    needed_items,
    non_inferiority,
)
from training.parity import compare, main, render
from training.traces import read_side
from vista_local.errors import InputError, VistaError
from vista_local.labels import LABELS
from vista_local.schema import SCHEMA

V, C, L, O, A = (label.value for label in LABELS)  # noqa: E741


def conversation(name: str, *turns: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "turns": [{"role": "user", "text": "?"}, *turns]}


def turn(*claims: tuple[str, str | None], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "text": "x", "claims": [{"claim": t, "label": v} for t, v in claims], **more}


def result(name: str, *turns: tuple[int, list[tuple[str, str | None]]], unscored: str | None = None) -> dict[str, Any]:
    data = [
        {
            "index": index,
            "status": "scored",
            "claims": [{"text": t, "label": v, "probs": {}, "evidence": []} for t, v in claims],
            "windows": 1,
            "chunks": 1,
            "memory": [],
            "omitted_memory": 0,
            "unsupported_extraction": [],
            "notes": [],
            **({"unscored": unscored} if unscored else {}),
        }
        for index, claims in turns
    ]
    return {"schema": SCHEMA, "id": name, "turns": data, "vista_score": None, "run": {}}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


# ---- the test of non-inferiority ----


def test_difference_and_its_error_by_hand() -> None:
    # Gains -1, 0, +2 over 4, 2, 4 items: d = 0.1; deviations -1.4, -0.2, 1.6.
    clusters = [Cluster(4, 2, 1, 0), Cluster(2, 2, 0, 0), Cluster(4, 1, 0, 2)]
    assert difference(clusters) == pytest.approx(0.1)
    expected = math.sqrt(3 / 2 * (1.4**2 + 0.2**2 + 1.6**2)) / 10
    assert clustered_standard_error(clusters) == pytest.approx(expected)
    assert design_effect(clusters) == pytest.approx(expected**2 / ((0.3 - 0.01) / 10))


def test_items_needed_by_hand() -> None:
    # z(0.95) + z(0.8) = 1.644854 + 0.841621; 100 items, 19 discordant: psi = 20 / 102.
    assert needed_items(19, 100, 0.04, level=0.95, power=0.8, effect=1.0) == math.ceil(
        20 / 102 * (2.4864748 / 0.04) ** 2
    )
    assert needed_items(19, 100, 0.04, level=0.95, power=0.8, effect=1.0) == 758
    assert needed_items(19, 100, 0.08, level=0.95, power=0.8, effect=2.0) == 379


@given(st.integers(0, 50), st.integers(50, 500), st.floats(0.01, 0.2))
def test_items_needed_grow_with_disagreement_and_fall_with_the_margin(b: int, n: int, margin: float) -> None:
    at = {"level": 0.95, "power": 0.8, "effect": 1.0}
    assert needed_items(b + 1, n, margin, **at) >= needed_items(b, n, margin, **at) > 0
    assert needed_items(b, n, margin / 2, **at) >= needed_items(b, n, margin, **at)


@given(st.lists(st.integers(0, 3), min_size=3, max_size=40))
def test_error_of_clusters_of_one_item_is_that_of_a_mean(cells: list[int]) -> None:
    clusters = [Cluster(1, int(c == 1), int(c == 2), int(c == 3)) for c in cells]
    gains = np.array([c.gain for c in clusters], dtype=float)
    assert clustered_standard_error(clusters) == pytest.approx(float(stats.sem(gains)), abs=1e-12)


def test_equal_systems_pass_once_there_is_enough_data_and_not_before() -> None:
    few = non_inferiority([Cluster(2, 2, 0, 0)] * 10, 0.04)
    many = non_inferiority([Cluster(4, 3, 0, 0)] * 40, 0.04)
    assert few is not None and few.verdict == "not enough data"
    assert few.needed_clusters >= MIN_CLUSTERS and few.needed_items > 20
    assert many is not None and many.verdict == "non-inferior"
    assert (many.difference, many.lower, many.upper) == (0.0, 0.0, 0.0)


def test_few_conversations_are_not_enough_however_many_items_they_have() -> None:
    outcome = non_inferiority([Cluster(1000, 1000, 0, 0)] * (MIN_CLUSTERS - 1), 0.04)
    assert outcome is not None and outcome.verdict == "not enough data"
    assert outcome.needed_clusters == MIN_CLUSTERS


def test_a_clear_loss_is_inferior_before_there_are_items_enough_for_the_contrary() -> None:
    clusters = [Cluster(4, 0, 4, 0), Cluster(4, 1, 3, 0), Cluster(4, 1, 3, 0)] * (MIN_CLUSTERS // 3)
    outcome = non_inferiority(clusters, 0.04)
    assert outcome is not None and outcome.verdict == "inferior" and outcome.upper < -0.04
    assert outcome.items < outcome.needed_items


@pytest.mark.parametrize("number", [1, MIN_CLUSTERS - 1])
def test_too_few_conversations_show_no_inferiority_either(number: int) -> None:
    empty = [Cluster(0, 0, 0, 0)] * MIN_CLUSTERS  # conversations without items say nothing
    outcome = non_inferiority([Cluster(1, 0, 1, 0)] * number + empty, 0.04)
    assert outcome is not None and outcome.verdict == "not enough data"
    assert outcome.clusters == number and outcome.needed_clusters >= MIN_CLUSTERS


def test_a_loss_about_the_margin_is_not_shown_with_enough_data() -> None:
    clusters = [Cluster(20, 18, 1, 0), Cluster(20, 18, 0, 0)] * 100  # 2.5 points worse, hardly any spread
    assert (outcome := non_inferiority(clusters, 0.0255)) is not None
    assert outcome.verdict == "not shown" and outcome.lower < -0.0255 < outcome.difference


def test_nothing_to_compare_and_settings_out_of_range() -> None:
    assert non_inferiority([Cluster(0, 0, 0, 0)], 0.04) is None
    with pytest.raises(ValueError, match="margin"):
        non_inferiority([Cluster(1, 1, 0, 0)], 4.0)
    with pytest.raises(ValueError, match="level"):
        non_inferiority([Cluster(1, 1, 0, 0)], 0.04, level=0.4)


# ---- reading ----


def test_a_teachers_labels_of_given_claims_stand_apart_from_its_own_claims(tmp_path: Path) -> None:
    record = conversation(
        "a",
        turn(
            ("p", V), ("q", L), teacher_labels=["VERIFIED", "subjective"], teacher_claims=[{"claim": "r", "label": C}]
        ),
    )
    path = write(tmp_path / "t.jsonl", [record])
    judged = read_side(path).conversations["a"][1]
    assert judged.given == (("p", LABELS[0]), ("q", LABELS[3])) and judged.own == (("r", LABELS[1]),)
    assert read_side(path, gold=True).conversations["a"][1].given == (("p", LABELS[0]), ("q", LABELS[2]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"id": "a", "turns": [', "line 2: no JSON (is the line cut off?)"),
        ('{"turns": []}', "line 2: a result line or a conversation with an id"),
        ('{"id": "b"}', "line 2: a list of turns is expected"),
        (
            '{"id": "b", "trace": {"form": "vista-local-trace/1", "fewshot_version": "0"}}',
            "a trace of fewshot_version '0'",
        ),
        ('{"id": "b", "turns": [{"claims": [{"claim": "p", "label": "MAYBE"}]}]}', "turn 1, field 'claims', claim 1"),
        (
            '{"id": "b", "turns": [{"claims": [{"claim": "p", "label": "VERIFIED"}], "teacher_labels": []}]}',
            "each of the 1",
        ),
        ('{"id": "a", "turns": []}', "conversation 'a' is there twice"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(conversation("a", turn(("p", V)))) + "\n" + text + "\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_side(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_gold_needs_every_label_and_a_file_needs_turns(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [conversation("a", turn(("p", None)))])
    assert read_side(path).conversations["a"][1].given == (("p", None),)
    with pytest.raises(InputError, match="a label is expected"):
        read_side(path, gold=True)
    with pytest.raises(InputError, match="no turn with labelled claims"):
        read_side(write(tmp_path / "e.jsonl", [{"id": "a", "turns": [{"role": "user", "text": "?"}]}]))


def test_usage_is_added_up(tmp_path: Path) -> None:
    records = [
        conversation("a", turn(("p", V))) | {"usage": {"calls": 2, "input_tokens": 100, "cost": 0.5}},
        conversation("b", turn(("p", V))) | {"usage": {"calls": 1, "input_tokens": 20, "seconds": 1.5, "note": "x"}},
    ]
    side = read_side(write(tmp_path / "t.jsonl", records))
    assert side.usage() == {"calls": 3, "input_tokens": 120, "cost": 0.5, "seconds_of_calls": 1.5}
    assert side.usage(["a", "elsewhere"]) == {"calls": 2, "input_tokens": 100, "cost": 0.5}


def test_an_unscored_claim_or_turn_is_no_gold(tmp_path: Path) -> None:
    claims = write(tmp_path / "g.jsonl", [result("a", (1, [("p", V)])), result("b", (3, [("p", V), ("q", None)]))])
    assert read_side(claims).conversations["b"][3].given[1] == ("q", None)
    with pytest.raises(InputError, match=r"g\.jsonl, line 2, turn 4, claim 2: gold needs a label, 'q' is unscored"):
        read_side(claims, gold=True)
    turns = write(tmp_path / "h.jsonl", [result("a", (1, []), unscored="no answer")])
    with pytest.raises(InputError, match=r"h\.jsonl, line 1, turn 2: a turn that could not be scored.*no answer"):
        read_side(turns, gold=True)


# ---- comparing ----


@pytest.fixture
def same_claims(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Six claims in three turns: the teacher has 5 right, the student 3, one of them alone; one is unscored."""
    gold = [
        conversation("a", turn(("p1", V), ("p2", V)), turn(("p3", O))),
        conversation("b", turn(("q1", C), ("q2", L), ("q3", A))),
    ]
    teacher = [
        conversation("a", turn(("p1", V), ("p2", V)), turn(("p3", L))),
        conversation("b", turn(("q1", C), ("q2", L), ("q3", A))),
    ]
    student = [
        result("a", (1, [("p1", V), ("p2", L)]), (2, [("p3", O)])),
        result("b", (1, [("q1", L), ("q2", L), ("q3", None)])),
    ]
    return (
        write(tmp_path / "teacher.jsonl", teacher),
        write(tmp_path / "student.jsonl", student),
        write(tmp_path / "gold.jsonl", gold),
    )


def test_figures_of_the_same_claims_by_hand(same_claims: tuple[Path, Path, Path]) -> None:
    teacher, student, gold = same_claims
    report = compare(read_side(teacher), read_side(student), read_side(gold, gold=True), 0.04)
    claims = report["claims"]
    assert report["claims_compared"] == "given" and (report["turns"], claims["claims"]) == (3, 6)
    assert claims["accuracy"]["teacher"]["value"] == pytest.approx(5 / 6)
    assert claims["accuracy"]["student"]["value"] == pytest.approx(3 / 6)
    assert claims["accuracy"]["difference"]["value"] == pytest.approx(-2 / 6)
    # The teacher alone is right on p2, q1, q3, the student alone on p3: p = 2 (1 + 4) / 16.
    assert claims["mcnemar"] == {"only_teacher": 3, "only_student": 1, "p_value": pytest.approx(10 / 16)}
    # Student: V 2/3, C 0, L 2/4, O 1, A 0.
    assert claims["per_class"][V]["student"] == pytest.approx(2 / 3)
    assert claims["macro_f1"]["student"]["value"] == pytest.approx((2 / 3 + 0 + 0.5 + 1 + 0) / 5)
    # Gold verdicts: strict T F F, safe T T F; student strict F F F, safe F T F; teacher strict T F F, safe T F F.
    assert report["strict"]["accuracy"]["student"]["value"] == pytest.approx(2 / 3)
    assert report["safe"]["accuracy"]["teacher"]["value"] == pytest.approx(2 / 3)
    # Student, strict: of one true turn none found, of two false ones both; F1 0 and 4/5. Teacher, safe: 2/3 and 2/3.
    assert report["strict"]["balanced_accuracy"]["student"]["value"] == pytest.approx(1 / 2)
    assert report["strict"]["macro_f1"]["student"]["value"] == pytest.approx((0 + 4 / 5) / 2)
    assert report["safe"]["macro_f1"]["teacher"]["value"] == pytest.approx(2 / 3)
    assert report["safe"]["mcnemar"] == {"only_teacher": 1, "only_student": 1, "p_value": 1.0}
    # Teacher and student agree on p1 and q2.
    assert report["agreement"]["labels"]["value"] == pytest.approx(2 / 6)
    assert report["verdict"] == {"on": "claims", "is": "not enough data"}
    assert claims["non_inferiority"]["needed_clusters"] >= MIN_CLUSTERS


def test_own_claims_are_matched_and_turn_verdicts_are_tested(tmp_path: Path) -> None:
    gold = [conversation(f"c{i}", turn(("the human's claim", V if i % 2 else L))) for i in range(4)]
    teacher = [
        conversation(f"c{i}", turn(("the mill was built in 1912", V if i % 2 else L), ("it has a red roof", V)))
        for i in range(4)
    ]
    student = [result(f"c{i}", (1, [("the mill was built in 1912", V)])) for i in range(4)]
    paths = [write(tmp_path / f"{n}.jsonl", r) for n, r in (("t", teacher), ("s", student), ("g", gold))]
    report = compare(read_side(paths[0]), read_side(paths[1]), read_side(paths[2], gold=True), 0.04)
    assert report["claims_compared"] == "own" and "claims" not in report
    found = report["agreement"]["decomposition"]
    assert (found["matched"], found["predicted"], found["teacher"]) == (4, 4, 8)
    assert report["agreement"]["labels"]["value"] == pytest.approx(0.5)
    assert report["safe"]["accuracy"]["teacher"]["value"] == 1.0
    assert report["safe"]["accuracy"]["student"]["value"] == pytest.approx(0.5)
    assert report["verdict"]["on"] == "safe turns"


def test_a_claim_that_differs_moves_the_test_to_turns_and_says_so_or_is_left_out(
    same_claims: tuple[Path, Path, Path], tmp_path: Path, command: typer.Typer
) -> None:
    teacher, student, gold = same_claims
    records = [json.loads(line) for line in student.read_text(encoding="utf-8").splitlines()]
    records[1]["turns"][0]["claims"][1]["text"] = "q2, said otherwise"
    write(student, records)
    sides = read_side(teacher), read_side(student), read_side(gold, gold=True)
    report = compare(*sides, 0.04)
    assert report["turns_with_other_claims"] == {"number": 1, "first": ["b", 1], "left_out": False}
    assert "claims" not in report and report["verdict"]["on"] == "safe turns"
    asked = compare(*sides, 0.04, "claims")
    assert asked["turns_with_other_claims"]["left_out"] and asked["verdict"]["on"] == "claims"
    assert (asked["turns"], asked["claims"]["claims"]) == (2, 3)
    options = ["--teacher", str(teacher), "--student", str(student), "--gold", str(gold)]
    said = " ".join(CliRunner().invoke(command, options).output.split())
    assert "turns are compared, not claims: the files' claims differ in 1 turn; the first is turn 2 of 'b'" in said
    said = " ".join(CliRunner().invoke(command, [*options, "--on", "claims"]).output.split())
    assert "1 turn left out: the files' claims differ there" in said
    records[0]["turns"] = []
    write(student, records)
    with pytest.raises(VistaError, match="the files' claims differ in every turn"):
        compare(read_side(teacher), read_side(student), None, 0.04, "claims")


def test_turns_can_be_asked_for_where_the_claims_are_the_same(same_claims: tuple[Path, Path, Path]) -> None:
    teacher, student, gold = same_claims
    report = compare(read_side(teacher), read_side(student), read_side(gold, gold=True), 0.04, "turns")
    assert "claims" not in report and report["turns_with_other_claims"]["number"] == 0


def test_given_and_own_claims_are_not_compared_and_gold_memory_is_no_student(tmp_path: Path) -> None:
    teacher = write(tmp_path / "t.jsonl", [result("a", (1, [("p", V)])) | {"run": {"config": {"given_claims": False}}}])
    given = result("a", (1, [("p", V)])) | {"run": {"config": {"given_claims": True}}}
    student = write(tmp_path / "s.jsonl", [given])
    with pytest.raises(VistaError, match=r"s\.jsonl labels given claims .*t\.jsonl claims of its own"):
        compare(read_side(teacher), read_side(student), None, 0.04)
    given["run"]["config"]["oracle_memory"] = True
    with pytest.raises(InputError, match=r"s\.jsonl, line 1: scored with oracle_memory"):
        read_side(write(student, [given]))


def test_turns_that_one_file_lacks_are_counted_and_none_in_common_is_an_error(tmp_path: Path) -> None:
    teacher = write(
        tmp_path / "t.jsonl", [conversation("a", turn(("p", V)), turn(("q", V))), conversation("b", turn(("r", V)))]
    )
    student = write(tmp_path / "s.jsonl", [result("a", (1, [("p", V)]))])
    report = compare(read_side(teacher), read_side(student), None, 0.04)
    assert report["left_out_turns"] == {"teacher": 2, "student": 0} and report["verdict"] is None
    with pytest.raises(VistaError, match="no turn is in"):
        compare(read_side(teacher), read_side(write(tmp_path / "o.jsonl", [result("z", (1, []))])), None, 0.04)


def test_a_failed_turn_is_wrong_under_either_rule(tmp_path: Path) -> None:
    gold = write(tmp_path / "g.jsonl", [conversation("a", turn()), conversation("b", turn(("p", L)))])
    student = write(
        tmp_path / "s.jsonl",
        [result("a", (1, []), unscored="timeout"), result("b", (1, [("p", L)]), unscored="timeout")],
    )
    report = compare(read_side(gold), read_side(student), read_side(gold, gold=True), 0.04)
    assert report["safe"]["accuracy"]["student"]["value"] == 0.0
    assert report["safe"]["accuracy"]["teacher"]["value"] == 1.0


label = st.sampled_from([v.value for v in LABELS])


@settings(max_examples=15)
@given(st.lists(st.lists(st.tuples(label, label, label), min_size=1, max_size=4), min_size=2, max_size=5))
def test_figures_equal_scipy_and_sklearn(triples: list[list[tuple[str, str, str]]]) -> None:
    from training.traces import Side, SideTurn
    from vista_local.labels import Label

    def side(which: int) -> Side:
        turns = {
            f"c{i}": {0: SideTurn(c := tuple((f"p{j}", Label(t[which])) for j, t in enumerate(claims)), c)}
            for i, claims in enumerate(triples)
        }
        return Side("x", turns)

    report = compare(side(0), side(1), side(2), 0.04)
    teacher, student, gold = ([t[w] for claims in triples for t in claims] for w in range(3))
    claims = report["claims"]
    assert claims["accuracy"]["student"]["value"] == pytest.approx(accuracy_score(gold, student))
    expected = f1_score(gold, teacher, labels=[v.value for v in LABELS], average="macro", zero_division=0)
    assert claims["macro_f1"]["teacher"]["value"] == pytest.approx(expected)
    b = sum(t == g != s for t, s, g in zip(teacher, student, gold, strict=True))
    c = sum(s == g != t for t, s, g in zip(teacher, student, gold, strict=True))
    p = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert claims["mcnemar"]["p_value"] == pytest.approx(p)
    kappa = report["agreement"]["kappa"]
    if kappa is not None:
        assert kappa == pytest.approx(cohen_kappa_score(teacher, student))


# ---- the command ----


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(main)
    return app


def test_the_command_prints_a_table_and_writes_json(
    same_claims: tuple[Path, Path, Path], tmp_path: Path, command: typer.Typer
) -> None:
    teacher, student, gold = map(str, same_claims)
    out = tmp_path / "parity.json"
    done = CliRunner().invoke(
        command,
        ["--teacher", teacher, "--student", student, "--gold", gold, "-o", str(out), "--student-seconds", "3.5"],
    )
    assert done.exit_code == 0, done.output
    assert (
        "claims: not enough data at a margin of 4 points" in done.output
        and "student: seconds by the clock 3.5" in done.output
    )
    report = json.loads(out.read_text(encoding="utf-8"))
    wide = Console(width=200, file=io.StringIO(), record=True)
    render(report, wide)
    printed = wide.export_text()
    for name in ("strict balanced accuracy", "strict macro f1", "safe balanced accuracy", "safe macro f1"):
        assert name in printed
    assert report["margin"] == pytest.approx(0.04) and report["files"]["gold"]["name"] == "gold.jsonl"


def test_gold_with_an_unscored_claim_is_one_sentence(tmp_path: Path, command: typer.Typer) -> None:
    side = write(tmp_path / "s.jsonl", [result("a", (1, [("p", V), ("q", None)]))])
    done = CliRunner().invoke(command, ["--teacher", str(side), "--student", str(side), "--gold", str(side)])
    assert done.exit_code == 2 and "turn 2, claim 2" in " ".join(done.stderr.split())


def test_what_can_be_tested_is_named(same_claims: tuple[Path, Path, Path], command: typer.Typer) -> None:
    options = ["--teacher", str(same_claims[0]), "--student", str(same_claims[1]), "--on", "words"]
    done = CliRunner().invoke(command, options)
    assert done.exit_code == 2 and "--on 'words'; accepted: claims, turns" in " ".join(done.stderr.split())


def test_a_missing_file_is_one_sentence_and_exit_code_2(tmp_path: Path, command: typer.Typer) -> None:
    done = CliRunner().invoke(
        command, ["--teacher", str(tmp_path / "no.jsonl"), "--student", str(tmp_path / "no.jsonl")]
    )
    assert done.exit_code == 2
