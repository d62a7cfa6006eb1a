"""Readers: what each form of conversation gives."""

from __future__ import annotations

import json

import pytest
from reader_samples import (
    ANSWER,
    NATIVE,
    READ,
    USER,
    VISTA,
    Json,
    Q,
    Write,
    chat,
    one,
    references,
    with_answer,
)

from vista_local.errors import InputError
from vista_local.formats import MAX_FIELDS, Format, is_list_of_turns, role_table
from vista_local.labels import Label
from vista_local.readers import open_conversations, read_conversations
from vista_local.schema import Conversation, GivenClaim, Role, Turn

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


# Ignored fields


def test_ignored_fields_are_named_once_for_the_whole_input(write: Write) -> None:
    turn = ANSWER | {"gold_label": 1, "claims": [{"claim": "c", "note": 1}]}
    said: list[str] = []
    path = write(
        {"id": "a", "turns": [turn], "source": "x"}, {"id": "b", "turns": [turn], "teacher_labels": [], "\ud800": 0}
    )
    assert len(list(read_conversations(path, on_warning=said.append))) == 2
    assert said == ["ignored fields: source, gold_label, note, teacher_labels, \ufffd"]


def test_the_name_of_an_ignored_field_cannot_write_to_the_terminal(write: Write) -> None:
    said: list[str] = []
    record = NATIVE | {"\x1b]0;owned\x07": 1, "a\nb": 2, "\u202ec": 3, "café au lait": 4}
    list(open_conversations(write(record), on_warning=said.append))
    assert said == [r"ignored fields: '\x1b]0;owned\x07', 'a\nb', '\u202ec', café au lait"]


def test_ignored_fields_do_not_grow_without_bound(write: Write) -> None:
    reader = open_conversations(write(NATIVE | {f"field{n}": 0 for n in range(1_000)}))
    assert len(list(reader)) == 1
    assert reader.warnings[0].count("field") == MAX_FIELDS + 1
    assert reader.warnings[0].endswith(" and more")
