"""Notebook views: tables with one row a claim, and HTML in which text stays text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from report_samples import LAKE, MILL, A, C, V, claim, write_results

from vista_local import Results
from vista_local.errors import MissingExtraError
from vista_local.notebook import COLUMNS, LISTED, claim_rows
from vista_local.schema import Conversation, ConversationResult, Role, Turn, TurnResult, TurnStatus

HOSTILE = "<script>alert(1)</script> & \u202e\x00"


def test_one_row_a_claim() -> None:
    rows = list(claim_rows([MILL, LAKE]))
    assert [list(row) for row in rows] == [list(COLUMNS)] * 7
    first, unlabelled = rows[0], rows[4]
    assert (first["conversation"], first["turn"], first["claim"], first["label"], first["p"]) == (
        "mill",
        1,
        0,
        "VERIFIED",
        0.93,
    )
    assert (
        first["evidence"] == "reference"
        and first["p_contradicted"] is None
        and first["turn_vista_score"] == pytest.approx(2 / 3)
    )
    assert (unlabelled["label"], unlabelled["p"], unlabelled["unscored"]) == (None, None, "too long")
    assert rows[1]["p_contradicted"] == 0.6


def test_pandas_has_types_and_gaps(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="needs the extra: notebook")
    frame = Results.read(write_results(tmp_path / "out.jsonl")).to_pandas()
    assert list(frame.columns) == list(COLUMNS) and len(frame) == 7
    assert frame["label"].value_counts().to_dict() == {
        "VERIFIED": 3,
        "CONTRADICTED": 1,
        "OUT_OF_SCOPE": 1,
        "ABSTENTION": 1,
    }
    assert frame["label"].isna().sum() == 1
    assert str(frame["turn_strict"].dtype) == "boolean" and str(frame["p"].dtype) == "float64"
    assert LAKE.to_pandas()["text"].tolist() == ["The lake is deep.", "The depth is not known."]
    assert len(Results([]).to_pandas()) == 0


def test_dataset_has_the_same_rows() -> None:
    pytest.importorskip("datasets", reason="needs the extra: notebook")
    dataset = Results([MILL, LAKE]).to_dataset()
    assert dataset.column_names == list(COLUMNS)
    assert list(dataset) == list(claim_rows([MILL, LAKE]))
    assert dataset.features["turn_strict"].dtype == "bool"
    assert LAKE.to_dataset().num_rows == 2


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_dataset", "datasets")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, method: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"{package} .*vista-local\[notebook\]"):
        getattr(MILL, method)()


def test_a_conversation_shows_claims_and_no_markup_of_its_own() -> None:
    html = MILL._repr_html_()
    for piece in (
        "How old is the mill?",
        "The mill is old.",
        "VERIFIED, 93 %",
        "too long",
        "unreferenced",
        ">C</span>",
    ):
        assert piece in html
    said = (Turn(Role.USER, HOSTILE), Turn(Role.ASSISTANT, HOSTILE, ()))
    bad = ConversationResult(
        HOSTILE, (TurnResult(1, TurnStatus.SCORED, (claim(HOSTILE, A),)),), HOSTILE, Conversation(HOSTILE, said)
    )
    for view in (bad._repr_html_(), Results([bad])._repr_html_()):
        assert "<script" not in view and "\u202e" not in view and "\x00" not in view
        assert "&lt;script&gt;" in view


def test_results_are_a_sequence_with_a_summary() -> None:
    results = Results([MILL, LAKE])
    assert len(results) == 2 and results[1] is LAKE and list(results[:1]) == [MILL] and isinstance(results[:1], Results)
    assert results.summary().totals.labels[V] == 3 and results.summary().totals.labels[C] == 1
    assert "71.4 %" in repr(results) and "71.4 %" in results._repr_html_()
    many = Results([LAKE] * (LISTED + 2))._repr_html_()
    assert "and 2 more" in many and many.count("<tr>") == LISTED + 1
