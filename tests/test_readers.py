"""Readers: what each input form gives, and one clear `InputError` for everything that is broken."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vista_local.errors import InputError
from vista_local.formats import MAX_FIELDS, Format, is_list_of_turns, role_table
from vista_local.labels import LABELS, Label
from vista_local.readers import ConversationReader, open_conversations, parse_conversation, read_conversations
from vista_local.schema import Conversation, GivenClaim, Role, Turn

Json = Any
Write = Callable[..., Path]

USER = {"role": "user", "text": "Is the bridge open?"}
ANSWER = {"role": "assistant", "text": "Yes, since May.", "reference": "The bridge opened in May."}
NATIVE = {"id": "a", "turns": [USER, ANSWER]}
READ = (
    Turn(Role.USER, "Is the bridge open?"),
    Turn(Role.ASSISTANT, "Yes, since May.", ("The bridge opened in May.",)),
)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes text, bytes, or values as JSON Lines; gives the path."""

    def write(*records: Json, name: str = "chat.jsonl") -> Path:
        path = tmp_path / name
        parts = [r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in records]
        path.write_bytes(b"\n".join(parts))
        return path

    return write


def with_answer(**fields: Json) -> Json:
    return {"id": "a", "turns": [{"role": "assistant", "text": "Yes."} | fields]}


def chat(*messages: Json, **fields: Json) -> Json:
    return {"id": "a", "messages": list(messages)} | fields


def one(record: Json, **options: Json) -> Conversation:
    return parse_conversation(record, **options)


def references(record: Json) -> list[tuple[str, ...] | None]:
    return [turn.reference for turn in one(record).turns if turn.role is Role.ASSISTANT]


def fault(source: Any, **options: Json) -> InputError:
    with pytest.raises(InputError) as caught:
        list(read_conversations(source, **options))
    str(caught.value).encode()  # printable
    return caught.value


# The native form


def test_native_record(write: Write) -> None:
    claims = [
        "The bridge is open.",
        {"claim": "It opened in May.", "label": "verifiable", "evidence": [1, "m1.2"]},
        {"claim": "It is pretty.", "label": None, "evidence": None},
    ]
    record = {"id": "a", "background": ["It is a bridge."], "turns": [USER, ANSWER | {"claims": claims}]}
    (conversation,) = read_conversations(write(record))
    assert conversation == Conversation(
        "a",
        (
            Turn(Role.USER, "Is the bridge open?"),
            Turn(
                Role.ASSISTANT,
                "Yes, since May.",
                ("The bridge opened in May.",),
                (
                    GivenClaim("The bridge is open."),
                    GivenClaim("It opened in May.", Label.VERIFIED, (1, "m1.2")),
                    GivenClaim("It is pretty."),
                ),
            ),
        ),
        ("It is a bridge.",),
    )


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, ()),
        ([], ()),
        ("", ()),
        (" ", ()),
        ("N/A", None),
        (" n/a\n", None),
        ("one", ("one",)),
        (["one", "", "two"], ("one", "two")),
    ],
)
def test_reference_spellings(reference: Json, expected: tuple[str, ...] | None) -> None:
    assert references(with_answer(reference=reference)) == [expected]


def test_missing_reference_is_unreferenced() -> None:
    assert references(with_answer()) == [None]


@pytest.mark.parametrize(("claims", "expected"), [({}, None), ({"claims": None}, None), ({"claims": []}, ())])
def test_no_claims_key_differs_from_no_claims(claims: Json, expected: Json) -> None:
    assert one(with_answer(**claims)).turns[0].claims == expected


@pytest.mark.parametrize(
    ("spelling", "label"), [("SUBJECTIVE", Label.OUT_OF_SCOPE), ("lacking-evidence", Label.LACKING_EVIDENCE)]
)
def test_label_spellings(spelling: str, label: Label) -> None:
    turn = one(with_answer(claims=[{"claim": "c", "label": spelling}])).turns[0]
    assert turn.claims == (GivenClaim("c", label),)


@pytest.mark.parametrize(
    ("background", "expected"), [(None, ()), ("one", ("one",)), (["one", " ", "two"], ("one", "two"))]
)
def test_background(background: Json, expected: tuple[str, ...]) -> None:
    assert one(NATIVE | {"background": background}).background == expected


def test_references_and_claims_of_user_turns_are_left_out_and_named_once(write: Write) -> None:
    user = USER | {"reference": "r", "claims": ["c"]}
    reader = open_conversations(write({"id": "a", "turns": [USER, user, user]}, {"id": "b", "turns": [user]}))
    assert all(turn == READ[0] for conversation in reader for turn in conversation.turns)
    assert len(reader.warnings) == 1
    assert "chat.jsonl, line 1, turn 2" in reader.warnings[0]


def test_ids_are_generated_by_position_and_numbers_become_text(write: Write) -> None:
    turns = [USER]
    path = write({"turns": turns}, "", {"id": 7, "turns": turns}, {"id": None, "turns": turns})
    assert [c.id for c in read_conversations(path)] == ["conv-000001", "7", "conv-000003"]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *((n, Role.USER) for n in "user human apprentice customer prompter client student User".split()),
        *((n, Role.ASSISTANT) for n in "assistant gpt wizard agent bot ai model system-agent System_Agent".split()),
    ],
)
def test_known_roles(name: str, role: Role) -> None:
    assert one({"turns": [{"role": name, "text": "t"}]}).turns[0].role is role


def test_roles_option_extends_and_overrides(write: Write) -> None:
    path = write({"turns": [{"role": "Moderator", "text": "m"}, {"role": "agent", "text": "a"}]})
    (conversation,) = read_conversations(path, roles={"moderator": "assistant", "AGENT": "user"})
    assert [t.role for t in conversation.turns] == [Role.ASSISTANT, Role.USER]
    assert role_table({"narrator": "system"})["narrator"] == "system"


def test_role_mapped_to_nonsense() -> None:
    with pytest.raises(InputError, match="'x' is mapped to 'robot'; accepted: user, assistant, system, tool"):
        open_conversations("-", roles={"x": "robot"})


# The VISTA repository's form


VISTA = [
    {"role": "apprentice", "utterance": "Who built it?"},
    {
        "role": "wizard",
        "utterance": "Ana Reyes, I like it.",
        "retrieved_document": "Ana Reyes built it.",
        "human_claims": [
            "Ana Reyes built it.",
            {"claim": "The wizard likes it.", "label": "Subjective"},
            ["It stands.", "VERIFIED"],
        ],
    },
    {"role": "wizard", "utterance": "Bye.", "retrieved_document": "N/A"},
]
VISTA_TURNS = (
    Turn(Role.USER, "Who built it?"),
    Turn(
        Role.ASSISTANT,
        "Ana Reyes, I like it.",
        ("Ana Reyes built it.",),
        (
            GivenClaim("Ana Reyes built it."),
            GivenClaim("The wizard likes it.", Label.OUT_OF_SCOPE),
            GivenClaim("It stands.", Label.VERIFIED),
        ),
    ),
    Turn(Role.ASSISTANT, "Bye.", None),
)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([VISTA, VISTA]),
        json.dumps([VISTA, VISTA], indent=2),
        json.dumps(VISTA) + "\n" + json.dumps(VISTA) + "\n",
        json.dumps({"turns": VISTA}) + "\n" + json.dumps({"turns": VISTA}),
    ],
    ids=["line", "document", "lines", "objects"],
)
def test_vista(write: Write, text: str) -> None:
    reader = open_conversations(write(text, name="v.json"))
    assert reader.format == "vista"
    assert list(reader) == [Conversation("conv-000001", VISTA_TURNS), Conversation("conv-000002", VISTA_TURNS)]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_single_list_of_turns(write: Write, indent: int | None) -> None:
    assert list(read_conversations(write(json.dumps(VISTA, indent=indent)))) == [
        Conversation("conv-000001", VISTA_TURNS)
    ]


def test_lists_of_native_and_chat_turns() -> None:
    assert one([USER, ANSWER]).turns == READ
    messages = [
        {"role": "user", "content": USER["text"]},
        {"role": "bot", "content": ANSWER["text"], "context": ANSWER["reference"]},
    ]
    assert one(messages).turns == READ


def test_list_of_turns_or_of_conversations() -> None:
    assert is_list_of_turns([USER]) and is_list_of_turns([{"content": "x"}])
    assert not any(map(is_list_of_turns, ([], [NATIVE], [VISTA], [chat()], [{}], {"role": 1}, 3)))


# Chat logs


Q = {"role": "user", "content": "q"}


def test_chat_log(write: Write) -> None:
    answer = {"role": "assistant", "content": "Yes, since May.", "context": "The bridge opened in May."}
    reader = open_conversations(write(chat({"role": "user", "content": "Is the bridge open?"}, answer)))
    assert list(reader) == [Conversation("a", READ)]
    assert reader.format is Format.CHAT and reader.warnings == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("one", ("one",)),
        (None, ()),
        ([], ()),
        ("N/A", None),
        (["one", "two"], ("one", "two")),
        (
            [{"text": "one", "score": 2}, {"content": "two"}, {"page_content": "three"}, "four"],
            ("one", "two", "three", "four"),
        ),
        ({"text": "one"}, ("one",)),
    ],
)
@pytest.mark.parametrize("field", ["context", "documents"])
def test_chat_references_of_message_and_record(field: str, value: Json, expected: Json) -> None:
    bare = {"role": "assistant", "content": "a"}
    assert references(chat(Q, bare | {field: value})) == [expected]
    assert references(chat(Q, bare, Q, bare, **{field: value})) == [expected, expected]


def test_a_messages_own_context_goes_before_the_records() -> None:
    bare = {"role": "assistant", "content": "a"}
    own = [bare | {"context": "own"}, bare | {"context": None}, bare | {"context": "N/A"}, bare]
    assert references(chat(*own, context="record")) == [("own",), (), None, ("record",)]


def test_context_and_documents_are_joined() -> None:
    assert references(chat({"role": "ai", "content": "a", "context": "c", "documents": ["d"]})) == [("c", "d")]


def test_tool_messages_are_retrieved_text_of_the_next_assistant_turn() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}
    tool = {"role": "tool", "content": "found", "tool_call_id": "1"}
    function = {"role": "function", "content": "more", "name": "f"}
    bare = {"role": "assistant", "content": "a"}
    conversation = one(chat(Q, call, tool, call, function, bare, Q, bare, tool))
    assert conversation.turns == (
        Turn(Role.USER, "q"),
        Turn(Role.ASSISTANT, "a", ("found", "more")),
        Turn(Role.USER, "q"),
        Turn(Role.ASSISTANT, "a", None),
    )
    assert references(chat(tool, bare, bare, context="record")) == [("record", "found"), ("record",)]
    assert references(chat(tool, bare | {"context": "own"})) == [("own", "found")]


def test_context_of_a_user_message_serves_the_answer() -> None:
    assert references(chat(Q | {"documents": ["d"]}, {"role": "assistant", "content": "a"})) == [("d",)]


def test_system_messages_are_left_out_and_named_once(write: Write) -> None:
    system = {"role": "system", "content": "Be kind."}
    reader = open_conversations(write(chat(system, system, Q), chat({"role": "developer", "content": "x"}, Q, id="b")))
    assert [c.turns for c in reader] == [(Turn(Role.USER, "q"),)] * 2
    assert len(reader.warnings) == 1
    assert "line 1, turn 1: system messages" in reader.warnings[0]


def test_content_parts(write: Write) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {}}, "two", {"text": "three"}]
    reader = open_conversations(write(chat({"role": "user", "content": parts})))
    assert next(reader).turns == (Turn(Role.USER, "one\ntwo\nthree"),)
    assert len(reader.warnings) == 1 and "'image_url'" in reader.warnings[0]


# Containers and encodings


TWO = [NATIVE, NATIVE | {"id": "b"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(NATIVE) + "\n" + json.dumps(TWO[1]),
        "\n \r\n" + json.dumps(NATIVE) + "\r\n\r\n" + json.dumps(TWO[1]) + "\r\n\n",
        json.dumps(TWO),
        json.dumps(TWO, indent=4),
        "\n\n" + json.dumps(TWO, indent=1).replace("\n", "\r\n") + "\n",
        "[" + ",\n".join(json.dumps(r) for r in TWO) + "]",
        "[\n" + "\n,".join(json.dumps(r) for r in TWO) + "\n]\n",
    ],
    ids=["lines", "blank lines", "one line", "pretty", "crlf", "line a record", "comma first"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_containers(write: Write, text: str, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    data = (codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b"") + text.encode(encoding)
    path = write(pack(data), name="data.of-any-name")
    assert list(read_conversations(path)) == [Conversation("a", READ), Conversation("b", READ)]
    assert list(read_conversations(io.BytesIO(pack(data)))) == [Conversation("a", READ), Conversation("b", READ)]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_single_conversation(write: Write, indent: int | None) -> None:
    assert list(read_conversations(str(write(json.dumps(NATIVE, indent=indent))))) == [Conversation("a", READ)]


def test_text_streams_stay_open() -> None:
    text, data = io.StringIO("\ufeff" + json.dumps(NATIVE)), io.BytesIO(gzip.compress(json.dumps(NATIVE).encode()))
    assert list(read_conversations(text)) == list(read_conversations(data)) == [Conversation("a", READ)]
    assert not text.closed and not data.closed


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pack(json.dumps(NATIVE).encode())), "ascii"))
    assert list(read_conversations("-")) == [Conversation("a", READ)]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert str(fault("-")) == "standard input: the input is empty"


def test_a_pipe_that_gives_a_byte_at_a_time() -> None:
    class Slow(io.RawIOBase):
        def __init__(self, data: bytes) -> None:
            self.rest = data

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            size = min(1, len(buffer))
            piece, self.rest = self.rest[:size], self.rest[size:]
            buffer[: len(piece)] = piece
            return len(piece)

    for data in (json.dumps(NATIVE).encode(), gzip.compress(json.dumps(NATIVE).encode())):
        assert list(read_conversations(Slow(data))) == [Conversation("a", READ)]  # type: ignore[arg-type]


def test_unusual_text_is_kept() -> None:
    text = "a\x00b \u2028 \u200fשלום עולם\u202e \U0001f600 e\u0301\r\n\t"
    line = json.dumps({"turns": [{"role": "user", "text": text}]}, ensure_ascii=False)
    (conversation,) = read_conversations(io.BytesIO(line.encode()))
    assert conversation.turns[0].text == text


def test_lone_surrogates_are_replaced_and_named_once(write: Write) -> None:
    turn = '{"role": "assistant", "text": "x\\ud800y\\ud83d\\ude00", "reference": ["\\udc00"], "claims": ["\\udfff"]}'
    said: list[str] = []
    reader = open_conversations(write(f'{{"id": "\\ud801", "turns": [{turn}, {turn}]}}'), on_warning=said.append)
    (conversation,) = reader
    claims = (GivenClaim("\ufffd"),)
    assert conversation == Conversation(
        "\ufffd", (Turn(Role.ASSISTANT, "x\ufffdy\U0001f600", ("\ufffd",), claims),) * 2
    )
    assert said == reader.warnings
    assert len(said) == 1 and "U+FFFD" in said[0] and "line 1, turn 1" in said[0]


def test_300_turns_and_a_megabyte_in_one_message(write: Write) -> None:
    long = "word " * 200_000
    turns = [USER, ANSWER] * 149 + [USER, ANSWER | {"text": long}]
    for encoding in ("utf-8", "utf-16"):
        (conversation,) = read_conversations(write(json.dumps({"turns": turns}).encode(encoding)))
        assert len(conversation.turns) == 300
        assert conversation.turns[-1].text == long


def test_json_lines_are_not_held_in_memory() -> None:
    class Endless(io.RawIOBase):
        """20 MB of JSON Lines, made as they are read."""

        def __init__(self) -> None:
            self.lines = ({"id": f"{n}", "turns": [USER | {"text": "x" * 10_000}]} for n in range(2_000))
            self.rest = b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            if not self.rest:
                self.rest = (json.dumps(next(self.lines, None)) + "\n").encode()
            if self.rest == b"null\n":
                return 0
            piece, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
            buffer[: len(piece)] = piece
            return len(piece)

    tracemalloc.start()
    try:
        count = sum(1 for _ in read_conversations(Endless()))  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 2_000
    assert peak < 4_000_000


def test_conversations_come_before_the_end_is_read(write: Write) -> None:
    reader = read_conversations(write(NATIVE, "{broken"))
    assert next(reader) == Conversation("a", READ)
    with pytest.raises(InputError, match="line 2, column 2: invalid JSON"):
        next(reader)
    assert list(reader) == []


def test_a_closed_reader_ends(write: Write) -> None:
    with open_conversations(write(*TWO)) as reader:
        assert reader.format is Format.NATIVE
        assert reader.format is Format.NATIVE
    assert list(reader) == []


def test_the_form_is_known_before_the_first_conversation_and_loses_none(write: Write) -> None:
    for record, form in ((NATIVE, "native"), (VISTA, "vista"), (chat(Q), "chat")):
        reader = open_conversations(write(record, [] if form == "vista" else "{}"), skip_bad=True)
        assert reader.format == form
        assert len(list(reader)) == 1
        assert len(reader.skipped) == 1


def test_a_given_form_rules(write: Write) -> None:
    path = write({"turns": [{"role": "user", "utterance": "u"}]})
    assert next(read_conversations(path)).turns == (Turn(Role.USER, "u"),)
    assert "turn 1, field 'text': this field is missing; found 'role', 'utterance'" in str(fault(path, format="native"))
    with pytest.raises(InputError, match="format: 'csv' is unknown; accepted: auto, native, vista, chat"):
        ConversationReader(path, format="csv")


# Ignored fields


def test_ignored_fields_are_named_once_for_the_whole_input(write: Write) -> None:
    turn = ANSWER | {"gold_label": 1, "claims": [{"claim": "c", "note": 1}]}
    said: list[str] = []
    path = write(
        {"id": "a", "turns": [turn], "source": "x"}, {"id": "b", "turns": [turn], "teacher_labels": [], "\ud800": 0}
    )
    assert len(list(read_conversations(path, on_warning=said.append))) == 2
    assert said == ["ignored fields: source, gold_label, note, teacher_labels, \ufffd"]


def test_ignored_fields_do_not_grow_without_bound(write: Write) -> None:
    reader = open_conversations(write(NATIVE | {f"field{n}": 0 for n in range(1_000)}))
    assert len(list(reader)) == 1
    assert reader.warnings[0].count("field") == MAX_FIELDS + 1
    assert reader.warnings[0].endswith(" and more")


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


# Broken files


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert str(fault(tmp_path / "no.jsonl")) == f"{tmp_path / 'no.jsonl'}: can't be read: No such file or directory"
    assert str(fault(tmp_path)) == f"{tmp_path}: can't be read: Is a directory"
    assert "can't be read" in str(fault("a\0b"))
    assert "can't be read" in str(fault(str(tmp_path / "\udcff.jsonl")))


def test_closed_and_unreadable_streams() -> None:
    closed = io.StringIO()
    closed.close()
    assert "closed file" in str(fault(closed))
    assert "no attribute 'read'" in str(fault(42))
    latin = io.TextIOWrapper(io.BytesIO(b"\xe9"), encoding="utf-8")
    assert "can't be read: 'utf-8' codec can't decode byte 0xe9" in str(fault(latin))


@pytest.mark.parametrize(
    "data", [b"", b" \n\r\n\t", codecs.BOM_UTF8, codecs.BOM_UTF16_LE, gzip.compress(b""), codecs.BOM_UTF8 + b"\n"]
)
@pytest.mark.parametrize("skip_bad", [False, True])
def test_empty_input(write: Write, data: bytes, skip_bad: bool) -> None:
    path = write(data)
    assert str(fault(path, skip_bad=skip_bad)) == f"{path}: the input is empty"


def test_an_empty_list_of_conversations(write: Write) -> None:
    path = write("[\n]")
    assert str(fault(path)) == f"{path}: there are no conversations in it"


@pytest.mark.parametrize("skip_bad", [False, True])
def test_undecodable_bytes_name_the_line(write: Write, skip_bad: bool) -> None:
    path = write(NATIVE, b'{"id": "caf\xe9"}', TWO[1])
    error = fault(path, skip_bad=skip_bad)
    assert str(error).startswith(f"{path}, line 2: byte 0xe9 is not UTF-8")
    assert "convert the file to UTF-8" in str(error)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_undecodable_utf16_names_the_line(write: Write, encoding: str) -> None:
    good = "".join(json.dumps(NATIVE | {"id": f"{n}"}) + "\n" for n in range(3_000))
    data = ("\ufeff" + good + "x\ud800").encode(encoding, "surrogatepass") + "x\n".encode(encoding)
    assert fault(write(data)).where.endswith(", line 3001")
    assert fault(write(("\ufeff\n" + "{").encode(encoding) + b"\x00")).where.endswith(", line 2")


def test_utf32_is_named(write: Write) -> None:
    assert "UTF-32; convert it to UTF-8" in str(fault(write(codecs.BOM_UTF32_LE + "{}".encode("utf-32-le"))))


@pytest.mark.parametrize("skip_bad", [False, True])
def test_truncated_and_damaged_gzip(write: Write, skip_bad: bool) -> None:
    lines = "".join(json.dumps(NATIVE | {"id": f"{n}"}) + "\n" for n in range(500)).encode()
    packed = gzip.compress(lines)
    path = write(packed[: len(packed) // 2])
    assert "the gzip file is cut off here" in str(fault(path, skip_bad=skip_bad))
    assert "cut off" in str(fault(write(packed[:-4]), skip_bad=skip_bad))
    assert "cut off" in str(fault(write(packed[:5]), skip_bad=skip_bad))
    damaged = bytearray(packed)
    damaged[-8] ^= 0xFF  # the checksum
    assert "the gzip file is damaged" in str(fault(write(bytes(damaged)), skip_bad=skip_bad))
    assert "the gzip file is damaged" in str(fault(write(packed + b"tail"), skip_bad=skip_bad))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"id": "a",\n "turns": [}', "line 2, column 12"),
        ('\n\n{"id": "a",\n\n "turns"', "line 5, column 9"),
        ("[\n{},\n{}\n", "line 3, column 3"),
        ('{"turns": []}\n{"turns": [}', "line 2, column 12"),
        ('{"turns": [', "line 1, column 12"),
        ("[[1]]\n[[1]]", "line 2, column 1"),
    ],
)
def test_invalid_json_names_line_and_column(write: Write, text: str, place: str) -> None:
    path = write(text)
    good_first = text.startswith('{"turns": []}')
    error = fault(path, skip_bad=good_first)
    if good_first:
        reader = open_conversations(path, skip_bad=True)
        with pytest.raises(InputError):
            list(reader)
        assert reader.skipped[1].startswith(f"{path}, {place}: invalid JSON: ")
    else:
        assert error.where == f"{path}, {place}"
        assert "invalid JSON: " in str(error)


def test_a_broken_document_is_not_skipped(write: Write) -> None:
    path = write("[\n" + json.dumps(NATIVE) + ",\n")
    assert "line 2" in fault(path, skip_bad=True).where


def test_python_values() -> None:
    assert parse_conversation(NATIVE) == Conversation("a", READ)
    assert parse_conversation({"turns": [USER]}, number=12).id == "conv-000012"
    with pytest.raises(InputError, match=r"^conversation 3, turn 1, field 'role': "):
        parse_conversation({"turns": [{"text": "x"}]}, "conversation 3")


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
    assert reader.warnings == [] and reader.skipped == []


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
