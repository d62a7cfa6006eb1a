"""Result lines: the schema on disk, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from vista_local.cli import app
from vista_local.config import ScoreConfig, load_config
from vista_local.errors import InputError, VistaError
from vista_local.files import whole_file
from vista_local.labels import LABELS, Label
from vista_local.output import parse_result_line, result_line, run_record
from vista_local.schema import (
    ClaimResult,
    Conversation,
    ConversationResult,
    Corrected,
    Evidence,
    GivenClaim,
    Role,
    Turn,
    TurnResult,
    TurnStatus,
)

UNHURRIED = settings(max_examples=50, deadline=None)
V, C, L, S, A = LABELS
RUN = {"id": "0123", "base": "b"}

TEXT = st.text(st.sampled_from('a\n\r"\\\u2028\x85é') | st.characters(exclude_categories=["Cs"]), max_size=12)
SMALL = st.integers(0, 9)
EVIDENCE = (
    st.builds(Evidence, st.just("reference"), st.floats(0, 1), SMALL)
    | st.builds(Evidence, st.just("memory"), st.floats(0, 1), st.none(), SMALL, SMALL, st.booleans())
    | st.builds(Evidence, st.just("background"), st.floats(0, 1), st.none(), st.none(), SMALL)
)
CLAIM = st.builds(
    ClaimResult,
    TEXT,
    st.sampled_from(LABELS),
    st.dictionaries(st.sampled_from([str(label) for label in LABELS]), st.floats(0, 1)),
    st.none(),
    st.lists(EVIDENCE, max_size=2).map(tuple),
) | st.builds(ClaimResult, TEXT, st.none(), st.just({}), TEXT)
TURN = st.builds(
    TurnResult,
    SMALL,
    st.sampled_from(TurnStatus),
    st.lists(CLAIM, max_size=3).map(tuple),
    st.lists(TEXT, max_size=2).map(tuple),
    st.lists(TEXT, max_size=2).map(tuple),
    SMALL,
    SMALL,
    SMALL,
    st.lists(st.tuples(st.integers(-1, 9), SMALL), max_size=3).map(tuple),
    st.none() | TEXT,
    SMALL,
)
PASSAGE = TEXT.filter(str.strip)
GIVEN = st.builds(GivenClaim, PASSAGE, st.none() | st.sampled_from(LABELS))
SAID = st.builds(Turn, st.just(Role.USER), TEXT) | st.builds(
    Turn,
    st.just(Role.ASSISTANT),
    TEXT,
    st.none() | st.lists(PASSAGE, max_size=2).map(tuple),
    st.none() | st.lists(GIVEN, max_size=2).map(tuple),
)
TALK = st.lists(SAID, min_size=1, max_size=3).map(tuple)
RESULT = st.builds(
    lambda name, turns, error, talk: ConversationResult(name, turns, error, talk and Conversation(name, talk)),
    PASSAGE,
    st.lists(TURN, max_size=3).map(tuple),
    st.none() | TEXT,
    st.none() | TALK,
)


@given(RESULT)
@UNHURRIED
def test_a_line_is_one_line_and_is_read_back(result: ConversationResult) -> None:
    line = result_line(result, RUN)
    assert "\n" not in line
    assert "\r" not in line
    assert parse_result_line(line.encode().decode()) == result
    assert result_line(parse_result_line(line), RUN) == line


def test_the_fields_of_a_line() -> None:
    turn = TurnResult(
        index=1,
        status=TurnStatus.SCORED,
        claims=(ClaimResult("a", V, {"VERIFIED": 0.9, "UNVERIFIABLE": 0.1}), ClaimResult("b", None, {}, "too long")),
        unsupported_extraction=("c 1999",),
        notes=("n",),
        windows=2,
        chunks=3,
        omitted_memory=4,
        memory=((-1, 0), (0, 2)),
        recomputed=5,
    )
    skipped = TurnResult(index=3, status=TurnStatus.UNREFERENCED)
    line = json.loads(result_line(ConversationResult("x", (turn, skipped)), RUN))
    assert line == {
        "schema": "vista-local/1",
        "id": "x",
        "turns": [
            {
                "index": 1,
                "status": "scored",
                "claims": [
                    {"text": "a", "label": "VERIFIED", "probs": {"VERIFIED": 0.9, "UNVERIFIABLE": 0.1}, "evidence": []},
                    {"text": "b", "label": None, "probs": {}, "evidence": [], "unscored": "too long"},
                ],
                "vista_score": 0.5,
                "strict": False,
                "safe": False,
                "coverage": 0.5,
                "windows": 2,
                "chunks": 3,
                "memory": [[-1, 0], [0, 2]],
                "omitted_memory": 4,
                "unsupported_extraction": ["c 1999"],
                "notes": ["n"],
                "recomputed": 5,
            },
            {
                "index": 3,
                "status": "unreferenced",
                "claims": [],
                "vista_score": None,
                "strict": None,
                "safe": None,
                "coverage": None,
                "windows": 0,
                "chunks": 0,
                "memory": [],
                "omitted_memory": 0,
                "unsupported_extraction": [],
                "notes": [],
                "recomputed": 0,
            },
        ],
        "vista_score": 0.5,
        "run": RUN,
    }


def test_text_is_written_as_it_is() -> None:
    result = ConversationResult("é", (TurnResult(0, TurnStatus.SCORED, (ClaimResult("巴黎", V, {}),)),))
    assert "巴黎" in result_line(result, RUN)


@pytest.mark.parametrize("field", ["id", "turns"])
def test_a_line_without_a_field_is_refused(field: str) -> None:
    data = json.loads(result_line(ConversationResult("x", ()), RUN))
    del data[field]
    with pytest.raises(InputError, match=f"out.jsonl, line 3: not a result line: KeyError.'{field}'"):
        parse_result_line(json.dumps(data), "out.jsonl, line 3")


@pytest.mark.parametrize("line", ["", "{", "[]", "3", "null", '{"schema": "vista-local/1", "id": "x", "turns": [1]}'])
def test_what_is_no_result_line_is_refused(line: str) -> None:
    with pytest.raises(InputError, match="not a result line"):
        parse_result_line(line)


def test_another_schema_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="schema 'vista-local/9'; accepted: vista-local/1"):
        parse_result_line('{"schema": "vista-local/9", "id": "x", "turns": []}')


def test_an_unknown_label_is_refused() -> None:
    line = result_line(ConversationResult("x", (TurnResult(0, TurnStatus.SCORED, (ClaimResult("a", V, {}),)),)), RUN)
    with pytest.raises(InputError, match="TRUE"):
        parse_result_line(line.replace(Label.VERIFIED.value, "TRUE"))


def test_the_run_record_holds_what_a_result_depends_on() -> None:
    record = run_record(ScoreConfig(), {"backend": "scripted", "base_sha256": "ab"})
    assert record["config"]["context"] == "recent"
    assert record["config"]["memory"] == {"unreferenced": "skip", "budget_tokens": 512}
    assert (record["backend"], record["base_sha256"]) == ("scripted", "ab")
    assert record["vista_local"]


def test_the_run_id_depends_on_settings_and_models_alone() -> None:
    models = {"base_sha256": "ab", "adapters": {"verify": "1"}}
    same = run_record(load_config(), dict(reversed(models.items())))
    assert run_record(ScoreConfig(), models)["id"] == same["id"]
    others = [
        run_record(load_config(overrides={"context": "full"}), models),
        run_record(load_config(overrides={"memory": {"unreferenced": "trust"}}), models),
        run_record(load_config(overrides={"shard_size": 31}), models),
        run_record(load_config(overrides={"given_claims": True, "oracle_memory": True}), models),
        run_record(ScoreConfig(), {**models, "base_sha256": "cd"}),
    ]
    assert len({same["id"], *(r["id"] for r in others)}) == 6


@pytest.mark.parametrize(
    ("found", "wrong", "message"),
    [
        ('"id": "x"', '"id": 5', "field 'id': text is expected, not 5"),
        ('"text": "a"', '"text": 7', "field 'text': text is expected, not 7"),
        ('"probs": {"VERIFIED": 0.5}', '"probs": null', "field 'probs': an object of numbers is expected, not null"),
        ('"VERIFIED": 0.5', '"VERIFIED": NaN', "field 'VERIFIED': a number is expected, not NaN"),
        ('"VERIFIED": 0.5', '"VERIFIED": "half"', "field 'VERIFIED': a number"),
        ('"VERIFIED": 0.5', '"VERIFIED": true', "field 'VERIFIED': a number"),
        ('"VERIFIED": 0.5', f'"VERIFIED": 1{"0" * 400}', "OverflowError"),
        ('"label": "VERIFIED"', '"label": []', "not a valid Label"),
        ('"status": "scored"', '"status": 1', "not a valid TurnStatus"),
        ('"index": 1', '"index": -1', "field 'index': a whole number from 0 on is expected, not -1"),
        ('"index": 1', '"index": true', "field 'index'"),
        ('"windows": 2', '"windows": 2.5', "field 'windows'"),
        ('"recomputed": 0', '"recomputed": null', "field 'recomputed'"),
        ('"reviewed": true', '"reviewed": 1', "field 'reviewed': true or false is expected, not 1"),
        ('"notes": ["n"]', '"notes": "n"', "field 'notes': a list of texts is expected, not 'n'"),
        ('"notes": ["n"]', '"notes": [1]', "field 'notes': a list of texts is expected, not 1"),
        ('"unscored": "u"', '"unscored": 3', "field 'unscored': text"),
        ('"memory": [[-1, 0]]', '"memory": [[-1, "0"]]', "field 'memory': a list of pairs"),
        ('"memory": [[-1, 0]]', '"memory": [3]', "field 'memory': a list of pairs"),
        ('"sentence": 4', '"sentence": "4"', "field 'sentence': a whole number"),
        ('"sentence": 4', '"sentence": -4', "field 'sentence': a whole number"),
        ('"source": "reference"', '"source": 1', "field 'source': reference, memory or background"),
        ('"score": 0.75', '"score": null', "field 'score': a number"),
        ('"action": "edit"', '"action": "undo"', "field 'action': label, edit, split or add is expected, not 'undo'"),
        ('"text": "was"', '"text": {}', "field 'text': text is expected, not an object"),
    ],
)
def test_a_field_of_another_type_is_refused_by_name(found: str, wrong: str, message: str) -> None:
    claim = ClaimResult(
        "a", V, {"VERIFIED": 0.5}, None, (Evidence("reference", 0.75, 4),), corrected=Corrected("edit", "was", V)
    )
    turn = TurnResult(1, TurnStatus.SCORED, (claim,), (), ("n",), 2, memory=((-1, 0),), unscored="u", reviewed=True)
    line = result_line(ConversationResult("x", (turn,)), RUN)
    assert parse_result_line(line).turns == (turn,)
    assert line.count(found) >= 1
    with pytest.raises(InputError, match=r"^out, line 1: not a result line: ") as caught:
        parse_result_line(line.replace(found, wrong, 1), "out, line 1")
    assert message in str(caught.value)


def test_show_says_which_line_holds_no_result(tmp_path: Path) -> None:
    turn = TurnResult(0, TurnStatus.SCORED, (ClaimResult("a", V, {"VERIFIED": 0.5}),))
    line = result_line(ConversationResult("x", (turn,)), RUN)
    path = tmp_path / "out.jsonl"
    path.write_text(line + "\n" + line.replace('{"VERIFIED": 0.5}', "null") + "\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["show", str(path)])
    assert result.exit_code == 2
    assert "line 2: not a result line: " in " ".join(result.stderr.split())


def test_a_line_that_is_nested_too_deeply_is_one_sentence() -> None:
    with pytest.raises(InputError, match="not a result line"):
        parse_result_line("[" * 100_000)


@pytest.mark.parametrize("name", ["file.txt/out.json", "x" * 240 + ".json"])
def test_a_name_that_is_a_problem_is_one_sentence_or_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.txt").write_text("", encoding="utf-8")
    if "/" in name:
        with pytest.raises(VistaError, match="cannot be written"), whole_file(tmp_path / name) as stream:
            stream.write("x")
    else:
        with whole_file(tmp_path / name) as stream:
            stream.write("x")
        assert (tmp_path / name).read_text(encoding="utf-8") == "x"
