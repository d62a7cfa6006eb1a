"""Corrections: read, checked against the results, applied; used as gold and as training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import LAKE, MILL, RUN, A, C, L, S, V, write_results
from typer.testing import CliRunner, Result

from vista_local.cli import app
from vista_local.corrections import gold_claims, gold_conversations, read_corrections
from vista_local.errors import InputError
from vista_local.labels import LABELS
from vista_local.merge import apply
from vista_local.output import native_form, read_results
from vista_local.schema import ConversationResult, Evidence, GivenClaim

WAS = [
    {"text": "The mill is old.", "label": "VERIFIED"},
    {"text": "The mill is red.", "label": "CONTRADICTED"},
    {"text": "The miller likes rain.", "label": "OUT_OF_SCOPE"},
]


def now(*claims: tuple[str, str | None, int | None]) -> list[dict[str, Any]]:
    return [{"text": text, "label": label, "from": origin} for text, label, origin in claims]


CORRECTED = now(
    ("The mill is very old.", "VERIFIED", 0),
    ("The mill is red.", "LACKING_EVIDENCE", 1),
    ("The mill stands.", "VERIFIED", None),
)


def line(claims: list[dict[str, Any]] = CORRECTED, **changes: Any) -> dict[str, Any]:
    data: dict[str, Any] = {
        "schema": "vista-local-corrections/1",
        "run": RUN["id"],
        "id": "mill",
        "turns": [{"index": 1, "was": WAS, "claims": claims}],
        "input": native_form(MILL.conversation),  # type: ignore[arg-type]
    }
    return data | changes


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
    return path


def merge(tmp_path: Path, *lines: object, options: tuple[str, ...] = ()) -> tuple[Result, Path]:
    results = write_results(tmp_path / "out.jsonl")
    corrections = write(tmp_path / "corrections.jsonl", *lines)
    merged = tmp_path / "merged.jsonl"
    return CliRunner().invoke(app, ["merge", str(results), str(corrections), "-o", str(merged), *options]), merged


def test_merge_applies_every_kind_of_change_and_recomputes_the_scores(tmp_path: Path) -> None:
    result, path = merge(tmp_path, line())
    assert result.exit_code == 0, result.output
    for word in ("labels 1", "edits 1", "added 1", "deleted 1", "splits 0"):
        assert word in result.stderr
    mill, lake = read_results(path)
    assert lake == LAKE
    turn = mill.turns[0]
    assert turn.reviewed and not mill.turns[1].reviewed
    assert [(c.text, c.label) for c in turn.claims] == [(c["text"], c["label"]) for c in CORRECTED]
    edited, relabelled, added = turn.claims
    assert edited.corrected is not None and (edited.corrected.action, edited.corrected.text) == (
        "edit",
        "The mill is old.",
    )
    assert edited.probs == {}
    assert relabelled.corrected is not None and (relabelled.corrected.action, relabelled.corrected.label) == (
        "label",
        C,
    )
    assert relabelled.probs == MILL.turns[0].claims[1].probs
    assert added.corrected is not None and (added.corrected.action, added.corrected.text) == ("add", None)
    data = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert data["turns"][0]["vista_score"] == pytest.approx(2 / 3)
    assert data["turns"][0]["safe"] is False and data["run"] == RUN
    assert data["vista_score"] == pytest.approx(3 / 5)


def test_references_to_moved_claims_move_and_those_to_deleted_ones_go() -> None:
    split = now(("The mill is", "VERIFIED", 0), ("old.", "VERIFIED", 0), ("The miller likes rain.", "OUT_OF_SCOPE", 2))
    (correction,) = read(line(split))
    result = apply(MILL, RUN["id"], [correction])
    assert result.turns[1].memory == ((-1, 0), (1, 0), (1, 2))
    gone = now(("The mill is red.", "CONTRADICTED", 1), ("The miller likes rain.", "OUT_OF_SCOPE", 2))
    result = apply(MILL, RUN["id"], read(line(gone)))
    assert result.turns[1].memory == ((-1, 0), (1, 1))
    assert result.turns[1].claims[0].evidence == ()
    assert MILL.turns[1].claims[0].evidence == (Evidence("memory", 0.8, turn=1, claim=0),)


def read(*lines: object) -> list[Any]:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return read_corrections(write(Path(folder) / "c.jsonl", *lines))


def test_a_turn_marked_as_fine_changes_nothing_but_is_reviewed() -> None:
    fine = now(*((c["text"], c["label"], k) for k, c in enumerate(WAS)))
    result = apply(MILL, RUN["id"], read(line(fine)))
    assert result.turns[0].reviewed and result.turns[0].claims == MILL.turns[0].claims


def test_a_second_merge_changes_nothing_and_a_further_correction_keeps_what_the_model_said(tmp_path: Path) -> None:
    once = apply(MILL, RUN["id"], read(line()))
    assert apply(once, RUN["id"], read(line())) == once
    again = now(
        ("The mill is very old.", "VERIFIED", 0),
        ("The mill is red.", "VERIFIED", 1),
        ("The mill stands.", "VERIFIED", 2),
    )
    was = [{"text": c["text"], "label": c["label"]} for c in CORRECTED]
    twice = apply(once, RUN["id"], read(line(turns=[{"index": 1, "was": was, "claims": again}])))
    changed = twice.turns[0].claims[1]
    assert changed.label is V and changed.corrected is not None and changed.corrected.label is C


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "other"}, ("run other", RUN["id"])),
        ({"id": "nobody"}, ("nobody", "line 1")),
        ({"turns": [{"index": 2, "was": WAS, "claims": CORRECTED}]}, ("no scored turn 2", "1, 3, 5")),
        ({"turns": [{"index": 5, "was": [], "claims": now(("x", "VERIFIED", None))}]}, ("unreferenced",)),
        ({"turns": [{"index": 1, "was": WAS[:2], "claims": []}]}, ("fits no claim", "2 claims", "3 are")),
        (
            {
                "turns": [
                    {"index": 1, "was": [{"text": "The mill is new.", "label": "VERIFIED"}, *WAS[1:]], "claims": []}
                ]
            },
            ("turn 1", "claim 0", "The mill is new.", "The mill is old."),
        ),
        ({"turns": [{"index": 1, "was": WAS, "claims": now(("x", "VERIFIED", 7))}]}, ("'from'", "7", "3 claims")),
        ({"turns": [{"index": 1, "was": WAS, "claims": now(("x", "TRUE", 0))}]}, ("TRUE", "VERIFIED", "'label'")),
        ({"turns": [{"index": 1, "was": WAS, "claims": now((" ", "VERIFIED", 0))}]}, ("empty", "'text'")),
        ({"turns": [{"index": 1, "was": WAS, "claims": now(("x", None, 0))}]}, ("label is missing",)),
        ({"turns": [{"index": 1, "was": WAS}]}, ("'claims'", "missing")),
        ({"turns": "all"}, ("'turns'", "'all'")),
        ({"input": [1]}, ("'input'", "dict is expected")),
        ({"turns": [{"index": 1, "was": WAS, "claims": []}] * 2}, ("twice",)),
        ({"schema": "vista-local/1"}, ("no correction", "vista-local-corrections/1")),
    ],
)
def test_a_correction_that_fits_nothing_is_refused_and_nothing_is_written(
    tmp_path: Path, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    result, path = merge(tmp_path, line(**changes))
    assert result.exit_code == 2, result.output
    text = " ".join(result.stderr.split())
    for word in words:
        assert word in text, text
    assert not path.exists() and sorted(p.name for p in tmp_path.iterdir()) == ["corrections.jsonl", "out.jsonl"]


def test_two_reviewers_who_disagree_are_named(tmp_path: Path) -> None:
    other = line(now(("The mill is old.", "CONTRADICTED", 0)))
    result, _ = merge(tmp_path, line(), other)
    assert result.exit_code == 2 and "differently" in result.stderr and "line 1" in " ".join(result.stderr.split())
    same, path = merge(tmp_path, line(), line())
    assert same.exit_code == 0 and path.exists()


@pytest.mark.parametrize("content", ["", "not json\n", "[1]\n"])
def test_a_file_without_corrections_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"c\.jsonl"):
        read_corrections(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_corrections(tmp_path / "missing.jsonl")


def test_corrections_and_merged_results_are_the_same_gold(tmp_path: Path) -> None:
    result, merged = merge(tmp_path, line())
    assert result.exit_code == 0
    expected = tuple(GivenClaim(c["text"], label) for c, label in zip(CORRECTED, (V, L, V), strict=True))
    for path in (tmp_path / "corrections.jsonl", merged):
        assert gold_claims(path) == {"mill": {1: expected}}
        (conversation,) = gold_conversations(path)
        assert conversation.id == "mill" and conversation.turns[1].claims == expected
        assert conversation.turns[3].claims is None, "nobody reviewed this turn"
        assert conversation.turns[1].reference == MILL.conversation.turns[1].reference  # type: ignore[union-attr]


def test_gold_needs_labels_and_conversations(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no gold label"):
        gold_claims(write_results(tmp_path / "plain.jsonl"))
    with pytest.raises(InputError, match="--compact"):
        gold_conversations(write(tmp_path / "c.jsonl", {k: v for k, v in line().items() if k != "input"}))
    labelled = {"id": "t", "turns": [{"role": "assistant", "text": "x", "claims": [["x", "subjective"]]}]}
    assert gold_claims(write(tmp_path / "in.jsonl", labelled)) == {"t": {0: (GivenClaim("x", S),)}}


def test_a_reviewed_turn_with_an_unlabelled_claim_is_no_gold(tmp_path: Path) -> None:
    was = [{"text": "The mill, as said, is old.", "label": "VERIFIED"}, {"text": "The mill is loud.", "label": None}]
    claims = now(("The mill, as said, is old.", "CONTRADICTED", 0), ("The mill is loud.", None, 1))
    path = write(tmp_path / "c.jsonl", line(turns=[{"index": 3, "was": was, "claims": claims}]))
    with pytest.raises(InputError, match="no gold label"):
        gold_claims(path)
    merged = apply(MILL, RUN["id"], read_corrections(path))
    assert merged.turns[1].claims[1].unscored == "too long"


def test_training_accepts_corrected_conversations(tmp_path: Path) -> None:
    from training.data import load_teacher_turns

    result, path = merge(tmp_path, line(), options=("--as-data",))
    assert result.exit_code == 0, result.output
    (turn,) = load_teacher_turns(path)
    assert (turn.id, turn.turn, turn.reference) == ("mill", 1, ("Rain fell. The mill is old.", "It is white."))
    assert turn.claims == tuple((c["text"], label) for c, label in zip(CORRECTED, (V, L, V), strict=True))
    result, path = merge(tmp_path, line(), options=("--as-data", "--all-turns"))
    assert [t.turn for t in load_teacher_turns(path)] == [1], "turn 3 has a claim without a label"


def test_training_reads_corrections_as_they_are_exported(tmp_path: Path) -> None:
    from training.data import load_teacher_turns

    was = [{"text": "The mill, as said, is old.", "label": "VERIFIED"}, {"text": "The mill is loud.", "label": None}]
    claims = now(("The mill, as said, is old.", "VERIFIED", 0), ("The mill is loud.", "ABSTENTION", 1))
    later = line(turns=[{"index": 3, "was": was, "claims": claims}])
    path = write(tmp_path / "corrections.jsonl", line(), later)  # two lines for one conversation
    first, second = load_teacher_turns(path)
    assert (first.id, first.turn, first.text) == ("mill", 1, "It is old and red. The miller likes rain.")
    assert first.reference == ("Rain fell. The mill is old.", "It is white.") and second.reference == ()
    assert first.claims == tuple((c["text"], label) for c, label in zip(CORRECTED, (V, L, V), strict=True))
    assert [s.text for s in first.store] == ["The hill is high."]
    assert [s.text for s in second.store] == ["The hill is high.", "The mill is very old.", "The mill stands."]
    assert [u.text for u in second.history] == ["How old is the mill?", first.text, "Really?"]
    # The same as by way of the results.
    result, merged = merge(tmp_path, line(), later, options=("--as-data",))
    assert result.exit_code == 0 and load_teacher_turns(merged) == [first, second]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input": None}, "'mill' lacks its conversation; score without --compact, or apply .* --as-data"),
        ({"turns": [{"index": 9, "was": [], "claims": []}]}, "'mill' has no assistant turn 9"),
        ({"turns": [{"index": 2, "was": [], "claims": []}]}, "'mill' has no assistant turn 2"),
    ],
)
def test_training_refuses_corrections_that_it_cannot_learn_from(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    from training.data import load_teacher_turns

    with pytest.raises(InputError, match=rf"corrections\.jsonl: {message}"):
        load_teacher_turns(write(tmp_path / "corrections.jsonl", line(**changes)))


def test_data_says_which_memory_it_lacks(tmp_path: Path) -> None:
    was = [{"text": "The mill, as said, is old.", "label": "VERIFIED"}, {"text": "The mill is loud.", "label": None}]
    claims = now(("The mill, as said, is old.", "VERIFIED", 0), ("The mill is loud.", "ABSTENTION", 1))
    later = line(turns=[{"index": 3, "was": was, "claims": claims}])
    result, path = merge(tmp_path, later, options=("--as-data",))
    assert result.exit_code == 0 and "1 of them a reviewed turn follows one that nobody reviewed" in " ".join(
        result.stderr.split()
    )
    result, path = merge(tmp_path, later, options=("--as-data", "--all-turns"))
    from training.data import load_teacher_turns

    first, second = load_teacher_turns(path)
    assert [c for c, _ in first.claims] == [c["text"] for c in WAS]
    assert [label for _, label in second.claims] == [V, A]
    assert len(second.store) == 3  # the background, and two of the first turn's claims


def test_all_turns_belongs_to_data(tmp_path: Path) -> None:
    result, _ = merge(tmp_path, line(), options=("--all-turns",))
    assert result.exit_code == 2 and "--as-data" in result.stderr


CLAIMS = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=8).filter(str.strip), st.sampled_from(LABELS), st.none() | st.integers(0, 2)
    ),
    max_size=5,
)


@given(CLAIMS)
def test_whatever_a_reviewer_leaves_is_what_the_merged_turn_has(claims: list[tuple[str, Any, int | None]]) -> None:
    wanted = now(*((text, label.value, origin) for text, label, origin in claims))
    result: ConversationResult = apply(MILL, RUN["id"], read(line(wanted)))
    assert [(c.text, c.label) for c in result.turns[0].claims] == [(text, label) for text, label, _ in claims]
    for turn, number in result.turns[1].memory:
        assert turn != 1 or number < len(claims)
    assert result.turns[2] == MILL.turns[2]
