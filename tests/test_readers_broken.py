"""Readers: one clear `InputError` for every broken record, and nothing but that for anything else."""

from __future__ import annotations

import codecs
import datetime
import gzip
import io
import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reader_samples import (
    ANSWER,
    NATIVE,
    TWO,
    USER,
    Json,
    Q,
    Write,
    chat,
    fault,
    with_answer,
)

from vista_local.errors import InputError
from vista_local.labels import LABELS
from vista_local.readers import SKIPPED_KEPT, open_conversations, parse_conversation
from vista_local.schema import Conversation, GivenClaim, Role, Turn

# Broken records


#: A record, and what its message says after file and line.
BROKEN_RECORDS: list[tuple[Json, str]] = [
    ({}, ": an object with 'turns' or 'messages', or a list of turns, is expected; found no fields"),
    ({"text": "x"}, ": …found 'text'"),
    (3, ": …found 3"),
    (True, ": …found true"),
    (None, ": …found null"),
    ("x", ": …found 'x'"),
    ([], ": …found a list"),
    ({"turns": []}, "field 'turns': the conversation has no turns"),
    ({"turns": None}, "field 'turns': a list of turns is expected, not null"),
    ({"turns": {}}, "field 'turns': …not an object"),
    ({"messages": "x"}, "field 'messages': …not 'x'"),
    ({"messages": [{"role": "system", "content": "x"}]}, "field 'messages': the conversation has no turns"),
    ({"turns": [USER, "x"]}, "turn 2: an object is expected, not 'x'"),
    ([USER, [USER]], "turn 2: an object is expected, not a list"),
    ({"turns": [{"text": "x"}]}, "turn 1, field 'role': this field is missing; found 'text'"),
    ({"turns": [{"role": 1, "text": "x"}]}, "turn 1, field 'role': text is expected, not 1"),
    ({"turns": [{"role": "user"}]}, "turn 1, field 'text': this field is missing; found 'role'"),
    ({"turns": [{"role": "user", "text": None}]}, "turn 1, field 'text': text is expected, not null"),
    ({"turns": [{"role": "user", "text": ["x"]}]}, "turn 1, field 'text': …not a list"),
    ([{"role": "user", "utterance": 1.5}], "turn 1, field 'utterance': …not 1.5"),
    (chat({"role": "ai", "content": None}), "turn 1, field 'content': …not null"),
    (chat({"role": "user", "content": None, "tool_calls": [1]}), "turn 1, field 'content': …not null"),
    (chat({"role": "ai", "content": ["x", 1]}), "turn 1, field 'content', part 2: …not 1"),
    (chat({"role": "ai", "content": [{}]}), "turn 1, field 'content', part 1, field 'text': …found no fields"),
    (with_answer(reference=1), "turn 1, field 'reference': text, a list of texts or null is expected, not 1"),
    (with_answer(reference={"text": "x"}), "turn 1, field 'reference': …not an object"),
    (with_answer(reference=["x", None]), "turn 1, field 'reference', passage 2: …not null"),
    (with_answer(reference=[["x"]]), "turn 1, field 'reference', passage 1: …not a list"),
    (
        '{"turns": [{"role": "bot", "text": "x", "reference": [1e999]}]}',
        "turn 1, field 'reference', passage 1: …not Infinity",
    ),
    (chat(Q, documents=[{"title": "x"}]), "field 'documents', passage 1: a document needs one of text, content"),
    (chat(Q, documents=[{"text": 1}]), "field 'documents', passage 1: text is expected, not 1"),
    (chat({"role": "ai", "content": "x", "context": False}), "turn 1, field 'context': …not false"),
    (NATIVE | {"background": [1]}, "field 'background', passage 1: text is expected, not 1"),
    (NATIVE | {"id": []}, "field 'id': text is expected, not a list"),
    (NATIVE | {"id": True}, "field 'id': text is expected, not true"),
    (NATIVE | {"id": 1.5}, "field 'id': text is expected, not 1.5"),
    (NATIVE | {"id": " "}, "field 'id': the id is empty"),
    (with_answer(claims="c"), "turn 1, field 'claims': a list of claims is expected, not 'c'"),
    (with_answer(claims=["c", 1]), "turn 1, field 'claims', claim 2: text is expected, not 1"),
    (with_answer(claims=[" "]), "turn 1, field 'claims', claim 1: the claim is empty"),
    (
        with_answer(claims=[{"label": "VERIFIED"}]),
        "turn 1, field 'claims', claim 1, field 'claim': this field is missing",
    ),
    (
        with_answer(claims=[{"claim": "c", "label": "TRUE"}]),
        "turn 1, field 'claims', claim 1, field 'label': unknown label 'TRUE'; accepted: VERIFIED,",
    ),
    (
        with_answer(claims=[{"claim": "c", "label": 1}]),
        "turn 1, field 'claims', claim 1, field 'label': text is expected, not 1",
    ),
    (
        with_answer(claims=[{"claim": "c", "evidence": "1"}]),
        "turn 1, field 'claims', claim 1, field 'evidence': a list of sentence numbers",
    ),
    (
        with_answer(claims=[{"claim": "c", "evidence": [True]}]),
        "turn 1, field 'claims', claim 1, field 'evidence': …not true",
    ),
    ([{"role": "wizard", "utterance": "x", "human_claims": 1}], "turn 1, field 'human_claims': …not 1"),
    ({"turns": [USER | {"claims": [1]}]}, "turn 1, field 'claims', claim 1: text is expected"),
    ('{"id": NaN, "turns": []}', ": invalid JSON: NaN is no JSON value"),
    ('{"id": "x", "n": -Infinity}', ": invalid JSON: -Infinity is no JSON value"),
    ('{"id": ' + "9" * 5000 + "}", ": invalid JSON: Exceeds the limit"),
    ('{"turns": ' + "[" * 200000, ": the JSON is nested too deeply"),
    ('{"turns": ' + '{"a":' * 200000, ": the JSON is nested too deeply"),
]


@pytest.mark.parametrize(("record", "expected"), BROKEN_RECORDS)
def test_broken_records(write: Write, record: Json, expected: str) -> None:
    # A text is taken as it stands if it is JSON already.
    line = record if isinstance(record, str) and record.startswith("{") else json.dumps(record)
    path = write(line)
    error = fault(path)
    place, _, fragment = expected.partition(": ")
    assert error.where == f"{path}, line 1" + (f", {place}" if place else "")
    assert fragment.removeprefix("…") in str(error)
    assert fragment.startswith("…") or str(error).startswith(f"{error.where}: {fragment}")
    assert len(str(error)) < 600 + len(str(path))

    # Between good records it is counted, and no more.
    path = write(TWO[0], line, TWO[1], name="more.jsonl")
    reader = open_conversations(path, skip_bad=True)
    assert [c.id for c in reader] == ["a", "b"]
    assert len(reader.skipped) == 1
    assert f"{path}, line 2" in reader.skipped[0]


def test_unknown_role_says_how_to_map_it(write: Write) -> None:
    turns = [USER, ANSWER, {"role": "Moderator", "text": "x"}]
    path = write(NATIVE, "", {"id": "b", "turns": turns})
    error = fault(path)
    assert error.where == f"{path}, line 3, turn 3, field 'role'"
    assert "unknown role 'Moderator'; accepted: agent, ai, apprentice, assistant," in str(error)
    assert "--role moderator=assistant" in str(error)
    document = write(json.dumps([NATIVE, {"id": "b", "turns": turns}], indent=1), name="chat.json")
    assert fault(document).where == f"{document}, record 2, turn 3, field 'role'"
    single = write(json.dumps({"turns": turns}, indent=1), name="single.json")
    assert fault(single).where == f"{single}, turn 3, field 'role'"


def test_long_values_are_cut_in_messages(write: Write) -> None:
    assert len(str(fault(write({"turns": [{"role": "x" * 100_000, "text": "x"}]})))) < 700
    assert len(str(fault(write(with_answer(claims=[{"claim": "c", "label": "x" * 100_000}]))))) < 700
    assert len(str(fault(write({"x" * 100_000: 1})))) < 700


def test_surrogates_in_messages_can_be_printed(write: Write) -> None:
    assert "unknown role" in str(fault(write({"turns": [{"role": "\ud800", "text": "x"}]})))
    assert "found" in str(fault(write({"\ud800": 1})))


def test_deep_nesting_in_an_ignored_field_of_a_document(write: Write) -> None:
    path = write("[\n" + json.dumps(NATIVE)[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}\n]")
    assert str(fault(path)) == f"{path}: the JSON is nested too deeply"


@pytest.mark.parametrize("indent", [None, 1])
def test_duplicate_ids_name_both_places(write: Write, indent: int | None) -> None:
    records = [NATIVE, TWO[1], NATIVE]
    if indent:
        path, unit = write(json.dumps(records, indent=indent)), "record"
    else:
        path, unit = write(*records), "line"
    assert str(fault(path)) == f"{path}, {unit} 3, field 'id': the id 'a' was used before: {unit} 1"
    reader = open_conversations(path, skip_bad=True)
    assert [c.id for c in reader] == ["a", "b"]
    assert len(reader.skipped) == 1


def test_a_generated_id_can_clash_too(write: Write) -> None:
    path = write({"id": "conv-000002", "turns": [USER]}, {"turns": [USER]})
    assert "'conv-000002' was used before: line 1" in str(fault(path))


def test_one_input_has_one_form(write: Write) -> None:
    error = fault(write(NATIVE, chat(Q, id="b")))
    assert "line 2, field 'turns': this field is missing; found 'id', 'messages'" in str(error)


@pytest.mark.parametrize("start", ['{"id": "a", "tur', '{"id": "a"} x', "garbage", '": "x"}]}', '{"id": NaN,'])
def test_a_damaged_first_line_does_not_hide_json_lines(write: Write, start: str) -> None:
    path = write(start, NATIVE, TWO[1])
    assert f"{path}, line 1" in fault(path).where
    reader = open_conversations(path, skip_bad=True)
    assert [c.id for c in reader] == ["a", "b"]
    assert len(reader.skipped) == 1


def test_nothing_but_bad_records_is_an_error_even_when_skipping(write: Write) -> None:
    path = write({}, [])
    error = fault(path, skip_bad=True)
    assert str(error).startswith(f"{path}: none of its records can be read (2); the first: {path}, line 1: ")


def test_of_many_broken_records_only_the_first_messages_are_kept(write: Write) -> None:
    path = write(NATIVE, *["{"] * (3 * SKIPPED_KEPT), TWO[1])
    reader = open_conversations(path, skip_bad=True)
    assert not reader.skipped
    assert [c.id for c in reader] == ["a", "b"]
    assert len(reader.skipped) == 3 * SKIPPED_KEPT
    assert reader.skipped[0].startswith(f"{path}, line 2, column 2: invalid JSON")
    assert len(list(reader.skipped)) == SKIPPED_KEPT


def test_what_json_cannot_hold_is_named_by_its_type() -> None:
    """A record from Python may hold anything."""
    for value, said in (
        (b"yes", "bytes"),
        (datetime.datetime(2020, 1, 1), "datetime"),
        (object(), "object"),
        (10**5000, "int"),
    ):
        for record in (with_answer(text=value), with_answer(reference=[value]), with_answer(claims=[value])):
            with pytest.raises(InputError, match=rf"text is expected, not a value of type {said}$"):
                parse_conversation(record)
    with pytest.raises(InputError, match="found a value of type bytes"):
        parse_conversation(b"yes")
    with pytest.raises(InputError, match=r"turn 1, field 'text': this field is missing; found 'role', 3$"):
        parse_conversation({"turns": [{"role": "user", 3: "x"}]})


# Properties


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
passages = st.lists(texts.filter(str.strip), max_size=3).map(tuple)
claims = st.builds(
    GivenClaim,
    texts.filter(str.strip),
    st.none() | st.sampled_from(LABELS),
    st.lists(st.integers() | texts, max_size=2).map(tuple),
)
turns = st.builds(Turn, st.just(Role.USER), texts) | st.builds(
    Turn, st.just(Role.ASSISTANT), texts, st.none() | passages, st.none() | st.lists(claims, max_size=3).map(tuple)
)
conversations = st.builds(
    Conversation, texts.filter(str.strip), st.lists(turns, min_size=1, max_size=5).map(tuple), passages
)


def as_json(conversation: Conversation) -> Json:
    """The native form, as its description has it."""

    def turn(t: Turn) -> Iterator[tuple[str, Json]]:
        yield from (("role", t.role.value), ("text", t.text))
        if t.reference is not None:
            yield "reference", list(t.reference)
        if t.claims is not None:
            yield "claims", [{"claim": c.text, "label": c.label, "evidence": list(c.evidence)} for c in t.claims]

    return {
        "id": conversation.id,
        "turns": [dict(turn(t)) for t in conversation.turns],
        "background": list(conversation.background),
    }


@settings(max_examples=100, deadline=None)
@given(
    st.lists(conversations, min_size=1, max_size=4, unique_by=lambda c: c.id),
    st.sampled_from(["lines", "array", "pretty"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.booleans(),
    st.booleans(),
)
def test_what_is_written_is_read(
    given: list[Conversation], layout: str, encoding: str, packed: bool, escaped: bool
) -> None:
    values = [as_json(c) for c in given]
    if layout == "lines":
        text = "\n".join(json.dumps(v, ensure_ascii=escaped) for v in values)
    else:
        text = json.dumps(values, ensure_ascii=escaped, indent=None if layout == "array" else 2)
    data = text.encode(encoding)
    reader = open_conversations(io.BytesIO(gzip.compress(data) if packed else data), format="native")
    assert list(reader) == given
    assert reader.warnings == [] and len(reader.skipped) == 0


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["user", "bot", "N/A", "tool"])
)
keys = st.sampled_from(
    "id turns messages role text utterance content reference context documents claims human_claims claim label "
    "evidence retrieved_document background type tool_calls".split()
) | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda c: st.lists(c, max_size=4) | st.dictionaries(keys, c, max_size=5), max_leaves=25
)


def read_or_refuse(data: bytes, skip_bad: bool) -> None:
    """Nothing but conversations or an `InputError` comes out, and its message can be printed."""
    reader = open_conversations(io.BytesIO(data), skip_bad=skip_bad)
    try:
        for conversation in reader:
            assert conversation.turns
            json.dumps(as_json(conversation), ensure_ascii=False).encode()
    except InputError as error:
        str(error).encode()
        assert error.where.startswith("input")
    for message in (*reader.skipped, *reader.warnings):
        message.encode()


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=200),
    st.sampled_from([b"", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, b"{", b"[", b"\x1f\x8b", b"\x1f\x8b\x08\0"]),
    st.booleans(),
)
def test_any_bytes(data: bytes, prefix: bytes, skip_bad: bool) -> None:
    read_or_refuse(prefix + data, skip_bad)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(anything, min_size=1, max_size=3), st.booleans(), st.booleans())
def test_any_json(values: list[Json], lines: bool, skip_bad: bool) -> None:
    text = "\n".join(map(json.dumps, values)) if lines else json.dumps(values, indent=1)
    read_or_refuse(text.encode(), skip_bad)


@settings(max_examples=150, deadline=None)
@given(conversations, st.data(), st.booleans())
def test_any_damage_to_a_good_file(conversation: Conversation, data: st.DataObject, packed: bool) -> None:
    good = json.dumps(as_json(conversation), indent=data.draw(st.none() | st.just(1))).encode()
    whole = gzip.compress(good, mtime=0) if packed else good
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    read_or_refuse(whole[:start] + data.draw(st.binary(max_size=3)) + whole[end:], skip_bad=False)
