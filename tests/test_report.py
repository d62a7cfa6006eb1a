"""The report's data and file, without a browser: figures, gold, and that no text can become code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_samples import LAKE, MILL, RUN, A, C, L, V, claim, write_results
from typer.testing import CliRunner

from vista_local.cli import app
from vista_local.corrections import Gold
from vista_local.errors import VistaError
from vista_local.labels import LABELS
from vista_local.report.align import aligned, text_key
from vista_local.report.data import LAST_TURN, passage_pieces, report_data
from vista_local.report.page import embedded, render_page
from vista_local.schema import (
    Conversation,
    ConversationResult,
    Corrected,
    GivenClaim,
    Role,
    Turn,
    TurnResult,
    TurnStatus,
)
from vista_local.text import split_sentences


def data(*results: ConversationResult, **options: Any) -> dict[str, Any]:
    return report_data(((r, RUN) for r in results), title="t", source="out.jsonl", **options)


def test_the_figures_are_those_of_the_summary() -> None:
    page = data(MILL, LAKE)
    summary = page["summary"]
    assert (summary["claims"], summary["scored_turns"], summary["unreferenced_turns"]) == (7, 3, 1)
    assert summary["vista_score"] == pytest.approx(5 / 7)
    assert summary["labels"] == {V: 3, C: 1, L: 0, "OUT_OF_SCOPE": 1, A: 1}
    low, high = summary["interval"]
    assert low <= 5 / 7 <= high
    assert [(p["turn"], p["claims"], p["turns"]) for p in page["by_turn"]] == [("1", 5, 2), ("2", 2, 1), ("3", 0, 1)]
    assert page["by_turn"][2]["score"] is None
    assert page["gold"] is None


def test_a_conversation_holds_all_that_the_page_shows() -> None:
    mill = data(MILL)["conversations"][0]
    turn = mill["turns"][1]
    assert turn["r"]["claims"][0] == {
        "t": "The mill is old.",
        "l": 0,
        "p": {"VERIFIED": 0.93, "UNVERIFIABLE": 0.07},
        "ev": [{"s": "reference", "p": 0.9, "n": 1}],
    }
    assert [mill["passages"][p] for p in turn["ref"]] == [
        ["", "Rain fell.", " ", "The mill is old.", ""],
        ["", "It is white.", ""],
    ]
    later = mill["turns"][3]["r"]
    assert later["mem"] == [[-1, 0], [1, 0], [1, 2]] and later["omitted"] == 2
    assert later["claims"][1] == {"t": "The mill is loud.", "l": None, "why": "too long"}
    assert later["apart"] == ["The mill has 4 wings."] and "repeated" in later["notes"][0]
    assert mill["turns"][3]["ref"] == [] and mill["turns"][5]["r"]["unreferenced"] and "ref" not in mill["turns"][5]
    assert mill["background"] == ["The hill is high."]


def test_without_the_input_the_claims_stand_alone() -> None:
    compact = data(replace(MILL, conversation=None))["conversations"][0]
    assert [(t["i"], t["text"]) for t in compact["turns"]] == [(1, None), (3, None), (5, None)]
    assert "passages" not in compact


@given(st.text(st.sampled_from("Ab. !?\n\t。…é\u2028") | st.characters(exclude_categories=["Cs"]), max_size=40))
def test_pieces_of_a_passage_are_its_sentences_and_join_to_it(passage: str) -> None:
    pieces = passage_pieces(passage)
    assert "".join(pieces) == passage
    assert pieces[1::2] == split_sentences(passage)


def test_late_turns_are_pooled() -> None:
    turns = tuple(TurnResult(i, TurnStatus.SCORED, (claim("x", V),)) for i in range(LAST_TURN + 3))
    points = data(ConversationResult("long", turns))["by_turn"]
    assert len(points) == LAST_TURN + 1
    assert (points[-1]["turn"], points[-1]["claims"]) == (f"{LAST_TURN + 1}+", 3)


def test_gold_gives_accuracy_calibration_and_a_matrix() -> None:
    gold: Gold = {
        "mill": {1: (GivenClaim("the mill is old", V), GivenClaim("The mill is red.", V), GivenClaim("New.", V))},
        "lake": {1: (GivenClaim("The lake is deep.", V),)},
    }
    page = data(MILL, LAKE, gold=gold)
    found = page["gold"]
    assert (found["n"], found["unmatched_claims"], found["unmatched_gold"], found["conversations"]) == (3, 2, 1, 2)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["confusion"]["counts"][0] == [2, 1, 0, 0, 0]
    bins = {round(b["low"], 1): (b["n"], b["accuracy"]) for b in found["calibration"]["bins"] if b["n"]}
    assert bins == {0.5: (1, 0.0), 0.9: (2, 1.0)}
    assert found["calibration"]["ece"] == pytest.approx(1 / 3 * 0.6 + 2 / 3 * 0.04)
    claims = page["conversations"][0]["turns"][1]["r"]["claims"]
    assert [c.get("g") for c in claims] == [0, 0, None]


def test_labels_of_the_input_and_reviewed_turns_are_gold_without_being_asked_for() -> None:
    turns = list(MILL.conversation.turns)  # type: ignore[union-attr]
    turns[1] = replace(turns[1], claims=(GivenClaim("The mill is red.", L),))
    given_labels = replace(MILL, conversation=Conversation("mill", tuple(turns)))
    assert data(given_labels)["gold"]["confusion"]["counts"][2] == [0, 1, 0, 0, 0]
    first = MILL.turns[0]
    changed = replace(first.claims[1], label=L, corrected=Corrected("label", "The mill is red.", C))
    rewritten = replace(first.claims[0], text="Old.", corrected=Corrected("edit", "The mill is old.", V))
    reviewed = replace(first, claims=(rewritten, changed, first.claims[2]), reviewed=True)
    found = data(replace(MILL, turns=(reviewed, *MILL.turns[1:])))["gold"]
    assert found["n"] == 2, "what the reviewer rewrote is no longer the model's"
    assert found["confusion"]["counts"][2] == [0, 1, 0, 0, 0], "the model said CONTRADICTED, the reviewer disagreed"
    assert found["accuracy"] == pytest.approx(0.5)


def test_gold_that_fits_nothing_is_refused() -> None:
    with pytest.raises(VistaError, match="gold claim"):
        data(MILL, gold={"other": {1: (GivenClaim("x", V),)}})


def test_only_the_lowest_scores_are_listed_on_demand() -> None:
    low = replace(LAKE, id="low", turns=(TurnResult(1, TurnStatus.SCORED, (claim("x", C),)),))
    page = data(LAKE, MILL, low, limit=2)
    assert [c["id"] for c in page["conversations"]] == ["mill", "low"]
    assert page["summary"]["conversations"] == 3


def test_an_id_that_is_there_twice_is_refused_with_both_runs() -> None:
    with pytest.raises(VistaError, match=r"'mill' is there twice, both times as a result of run 00ff00ff00ff00ff$"):
        data(MILL, LAKE, MILL)
    two_runs = [(LAKE, RUN), (MILL, RUN), (MILL, {"id": "other"})]
    with pytest.raises(VistaError, match="'mill' is there twice, as a result of run 00ff00ff00ff00ff and of run other"):
        report_data(two_runs, title="t", source="out.jsonl", limit=1)
    apart = report_data([(LAKE, RUN), (MILL, {"id": "other"})], title="t", source="out.jsonl")
    assert [r["id"] for r in apart["runs"]] == [RUN["id"], "other"]


def test_the_digest_is_that_of_the_listed_ids_and_claims() -> None:
    first = MILL.turns[0]
    relabelled = replace(first, claims=(replace(first.claims[0], label=L), *first.claims[1:]))
    reworded = replace(first, claims=(replace(first.claims[0], text="\ud83d"), *first.claims[1:]))
    same = [data(MILL, LAKE)["digest"], data(replace(MILL, turns=(relabelled, *MILL.turns[1:])), LAKE)["digest"]]
    others = [
        data(MILL)["digest"],
        data(LAKE, MILL)["digest"],
        data(replace(MILL, id="c1"), LAKE)["digest"],
        data(replace(MILL, turns=(reworded, *MILL.turns[1:])), LAKE)["digest"],
        data(replace(MILL, turns=(replace(first, index=3), *MILL.turns[2:]), conversation=None), LAKE)["digest"],
    ]
    assert same[0] == same[1] and len({same[0], *others}) == 6
    assert data(MILL, LAKE, limit=1)["digest"] == others[0], "of those that are listed"


@given(
    st.lists(st.sampled_from(["a", "b", " A. ", "c"]), max_size=6),
    st.lists(st.sampled_from(["a", "B", "c."]), max_size=6),
)
def test_a_gold_claim_is_used_once_at_most(texts: list[str], gold: list[str]) -> None:
    found = aligned(texts, [GivenClaim(g, V) for g in gold])
    for key in {text_key(t) for t in texts}:
        here = sum(text_key(t) == key for t in texts)
        there = sum(text_key(g) == key for g in gold)
        assert sum(f is not None for t, f in zip(texts, found, strict=True) if text_key(t) == key) == min(here, there)


# --- the file -------------------------------------------------------------------------------------

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "[click](javascript:window.hacked=1) javascript:window.hacked=1",
    "<!--<script>",
    "]]>&lt;\u2028\u2029\x00\x1b[31m",
    "\u202eright to left\u202c",
    "lone \ud83d surrogate",
)


class Elements(HTMLParser):
    """Start tags of a page, and the content of its script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def hostile_result(text: str) -> ConversationResult:
    said = (Turn(Role.USER, text), Turn(Role.ASSISTANT, text, (text,)))
    return ConversationResult(
        text,
        (TurnResult(1, TurnStatus.SCORED, (claim(text, V),), notes=(text,)),),
        error=text,
        conversation=Conversation(text, said),
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_can_leave_the_data(text: str) -> None:
    page = render_page(data(hostile_result(text)) | {"title": text})
    page.encode("utf-8")
    parser = Elements()
    parser.feed(page)
    frame = "html head meta meta meta meta meta title style body div p noscript p script script"
    assert " ".join(tag for tag, _ in parser.tags) == frame
    assert json.loads(parser.scripts[0])["conversations"][0]["turns"][0]["text"] == text
    assert "<" not in parser.scripts[0]


@given(st.text())
def test_embedded_data_come_back(text: str) -> None:
    written = embedded({text: [text]})
    assert "<" not in written and json.loads(written) == {text: [text]}
    written.encode("utf-8")


@pytest.mark.parametrize("kind", ["report", "compare"])
def test_the_policy_allows_the_two_inline_blocks_and_nothing_else(kind: Any) -> None:
    page = render_page({"title": "t", "labels": []}, kind)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy.group(1).split("; "))
    assert rules["default-src"] == "'none'" and set(rules) == {
        "default-src",
        "script-src",
        "style-src",
        "img-src",
        "base-uri",
        "form-action",
    }
    for name, tag in (("script-src", "<script>"), ("style-src", "<style>")):
        block = (
            page.split(tag)[1].split("</")[0] if tag == "<style>" else page.rsplit(tag, 1)[1].rsplit("</script>", 1)[0]
        )
        digest = base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page), "the page names no other place"
    assert "innerHTML" not in page and "eval(" not in page and "fetch(" not in page


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    out = write_results(tmp_path / "out.jsonl")
    page = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["report", str(out), "-o", str(page), "--title", "Mills & lakes"])
    assert result.exit_code == 0, result.output
    assert "<title>Mills &amp; lakes</title>" in page.read_text(encoding="utf-8")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "report.html"]


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, (), ("out.jsonl", "cannot be read")),
        ("", (), ("no results",)),
        ('{"schema": "other"}\n', (), ("line 1", "vista-local/1")),
        ("good", ("--gold", "missing.jsonl"), ("missing.jsonl",)),
        ("good", ("-o", "no/such/folder.html"), ("folder.html", "cannot be written")),
        ("good", ("-o", "."), ("is a folder",)),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, content: str | None, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    out = tmp_path / "out.jsonl"
    if content == "good":
        write_results(out)
    elif content is not None:
        out.write_text(content, encoding="utf-8")
    result = CliRunner().invoke(app, ["report", str(out), "-o", str(tmp_path / "r.html"), *options])
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "r.html").exists()
    for word in words:
        assert word in " ".join(result.stderr.split())


def test_every_label_has_its_colour_in_every_theme() -> None:
    page = render_page({"title": "t", "labels": []})
    for number in range(len(LABELS)):
        assert page.count(f"--l-{number}: #") == 4, "light, dark, dark by system setting, print"
