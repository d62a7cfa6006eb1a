"""What each input of the corpus must give: refused with these words, or scored like this."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refused:
    """Exit code 2, and a message with all of these parts: place, what was found, what is accepted or to be done."""

    words: tuple[str, ...]
    kept: bool = False  # whether results from before the fault are there, and the message says so


@dataclass(frozen=True)
class Scored:
    """Exit code 0 with so many conversations, scored turns and records skipped, and these words in the summary."""

    conversations: int = 1
    turns: int | None = None
    skipped: int = 0
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """An input (or, for settings, a file of them) and options of `score`."""

    name: str
    expected: Refused | Scored
    options: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return " ".join((self.name, *self.options))


def refused(name: str, *words: str, options: tuple[str, ...] = (), kept: bool = False) -> Case:
    return Case(
        name, Refused((name, *words, *(["results so far are kept", "--resume"] if kept else [])), kept), options
    )


def scored(name: str, conversations: int = 1, *words: str, turns: int | None = None, **more: object) -> Case:
    options = more.get("options", ())
    skipped = more.get("skipped", 0)
    assert isinstance(options, tuple) and isinstance(skipped, int)
    return Case(name, Scored(conversations, turns, skipped, words), options)


EMPTY = "the input is empty"
NO_CONVERSATION = "an object with 'turns' or 'messages', or a list of turns, is expected"
SKIP = ("--skip-bad-records",)

CASES = [
    # ---- not there, or not text
    refused("no_such_file.jsonl", "can't be read: No such file or directory"),
    refused("empty.jsonl", EMPTY),
    refused("blank_lines.jsonl", EMPTY),
    refused("byte_order_mark_alone.jsonl", EMPTY),
    refused("of_nothing.gz", EMPTY),
    refused("bomb.gz", EMPTY),
    refused("utf32.jsonl", "UTF-32; convert it to UTF-8"),
    refused("utf16_odd_length.jsonl", "line 2", "convert the file to UTF-8", kept=True),
    refused("utf16_without_mark.jsonl", "line 1", "invalid JSON"),
    refused("latin1.jsonl", "line 2", "byte 0xe9 is not UTF-8", "convert the file to UTF-8", kept=True),
    refused("latin1.jsonl", "line 2", "byte 0xe9 is not UTF-8", options=SKIP, kept=True),
    refused("surrogates_as_bytes.jsonl", "line 2", "byte 0xed is not UTF-8", "convert the file to UTF-8", kept=True),
    refused("zeros.jsonl", "line 1", "invalid JSON"),
    refused("noise.jsonl", "line 1", "is not UTF-8"),
    refused("picture.png", "line 1", "byte 0x89 is not UTF-8"),
    refused("archive.zip", "line 1"),
    refused("cut.gz", "the gzip file is cut off here; get it again", kept=True),
    refused("cut.gz", "the gzip file is cut off here; get it again", options=SKIP, kept=True),
    refused("cut_in_the_header.gz", "the gzip file is cut off here"),
    refused("damaged.gz", "the gzip file is damaged", kept=True),
    refused("tail_behind.gz", "the gzip file is damaged", kept=True),
    refused("twice_packed.gz", "byte 0x8b is not UTF-8"),
    # ---- not JSON
    refused("cut_line.jsonl", "line 2, column", "invalid JSON", kept=True),
    refused("cut_document.json", "line 26, column 18", "invalid JSON"),
    refused("trailing_comma.jsonl", "line 2, column 25", "invalid JSON", kept=True),
    refused("single_quotes.jsonl", "line 1, column 2", "invalid JSON"),
    refused("comment.jsonl", "line 1, column 1", "invalid JSON"),
    refused("two_on_a_line.jsonl", "line 1", "invalid JSON: Extra data"),
    refused("unquoted_key.jsonl", "line 1, column 2", "invalid JSON"),
    refused("nan.jsonl", "line 2", "NaN is no JSON value", kept=True),
    refused("minus_infinity.jsonl", "line 1", "-Infinity is no JSON value"),
    refused("overflowing_number.jsonl", "line 1, field 'id'", "text is expected, not Infinity"),
    refused("number_of_5000_digits.jsonl", "line 1", "invalid JSON: Exceeds the limit"),
    refused("nested_deeply.jsonl", "line 1", "nested too deeply"),
    refused("nested_in_a_field.jsonl", "line 1", "nested too deeply"),
    refused("table.csv", "line 1, column 1", "invalid JSON"),
    refused("notes.yaml", "line 1, column 1", "invalid JSON"),
    refused("page.html", "line 1, column 1", "invalid JSON"),
    refused("prose.txt", "line 1, column 1", "invalid JSON"),
    refused("megabyte_first_line.jsonl", "line 1, column 1", "invalid JSON"),
    refused("old_mac_line_ends.jsonl", "line 1", "invalid JSON: Extra data"),
    # ---- no conversation
    refused("object_empty.jsonl", "line 1", NO_CONVERSATION, "found no fields"),
    refused("value_number.jsonl", "line 1", NO_CONVERSATION, "found 3"),
    refused("value_null.jsonl", "line 1", NO_CONVERSATION, "found null"),
    refused("value_string.jsonl", "line 1", NO_CONVERSATION, "found 'hello'"),
    refused("value_true.jsonl", "line 1", NO_CONVERSATION, "found true"),
    refused("list_empty.json", "line 1", NO_CONVERSATION, "found a list"),
    refused("list_of_numbers.json", "record 1", NO_CONVERSATION, "found 1"),
    refused("turns_missing.jsonl", "line 1", NO_CONVERSATION, "found 'id'"),
    refused("turns_misspelt.jsonl", "line 1", NO_CONVERSATION, "found 'id', 'trns'"),
    refused("turns_null.jsonl", "line 1, field 'turns'", "a list of turns is expected, not null"),
    refused("turns_object.jsonl", "line 1, field 'turns'", "a list of turns is expected, not an object"),
    refused("turns_string.jsonl", "line 1, field 'turns'", "a list of turns is expected, not 'hello'"),
    refused("turns_empty.jsonl", "line 1, field 'turns'", "the conversation has no turns"),
    refused("only_system.jsonl", "line 1, field 'messages'", "the conversation has no turns"),
    # ---- wrong turns
    refused("turn_string.jsonl", "line 1, turn 2", "an object is expected, not 'The bridge is open.'"),
    refused("turn_null.jsonl", "line 1, turn 2", "an object is expected, not null"),
    refused("turn_number.jsonl", "line 1, turn 2", "an object is expected, not 7"),
    refused("turn_without_role.jsonl", "line 1, turn 1, field 'role'", "this field is missing; found 'text'"),
    refused("turn_without_text.jsonl", "line 1, turn 2, field 'text'", "this field is missing; found 'role'"),
    refused("text_null.jsonl", "line 1, turn 1, field 'text'", "text is expected, not null"),
    refused("text_number.jsonl", "line 1, turn 1, field 'text'", "text is expected, not 1.5"),
    refused("text_list.jsonl", "line 1, turn 1, field 'text'", "text is expected, not a list"),
    refused("text_object.jsonl", "line 1, turn 1, field 'text'", "text is expected, not an object"),
    refused(
        "role_unknown.jsonl", "line 2, turn 2, field 'role'", "unknown role 'Moderator'", "--role moderator=", kept=True
    ),
    refused("role_null.jsonl", "line 1, turn 1, field 'role'", "text is expected, not null"),
    refused("role_number.jsonl", "line 1, turn 1, field 'role'", "text is expected, not 1"),
    refused("role_empty.jsonl", "line 1, turn 1, field 'role'", "unknown role ''", "accepted:"),
    refused("megabyte_role.jsonl", "line 1, turn 1, field 'role'", "unknown role 'xxx", "accepted:"),
    refused("reference_number.jsonl", "field 'reference'", "text, a list of texts or null is expected, not 1"),
    refused("reference_object.jsonl", "field 'reference'", "text, a list of texts or null is expected, not an object"),
    refused("reference_false.jsonl", "field 'reference'", "text, a list of texts or null is expected, not false"),
    refused("reference_of_null.jsonl", "field 'reference', passage 2", "text is expected, not null"),
    refused("reference_nested.jsonl", "field 'reference', passage 1", "text is expected, not a list"),
    refused("claims_string.jsonl", "field 'claims'", "a list of claims is expected, not 'c'"),
    refused("claims_of_number.jsonl", "field 'claims', claim 2", "text is expected, not 1"),
    refused("claim_empty.jsonl", "field 'claims', claim 1", "the claim is empty"),
    refused("claim_without_text.jsonl", "field 'claims', claim 1, field 'claim'", "this field is missing"),
    refused("claim_triple.jsonl", "field 'claims', claim 1", "text is expected, not a list"),
    refused("label_unknown.jsonl", "claim 1, field 'label'", "unknown label 'TRUE'; accepted: VERIFIED, CONTRADICTED"),
    refused("label_number.jsonl", "claim 1, field 'label'", "text is expected, not 1"),
    refused("evidence_string.jsonl", "claim 1, field 'evidence'", "a list of sentence numbers or names is expected"),
    refused("evidence_bool.jsonl", "claim 1, field 'evidence'", "text is expected, not true"),
    refused("background_number.jsonl", "field 'background', passage 1", "text is expected, not 1"),
    refused("background_of_null.jsonl", "field 'background', passage 1", "text is expected, not null"),
    refused("id_list.jsonl", "line 1, field 'id'", "text is expected, not a list"),
    refused("id_true.jsonl", "line 1, field 'id'", "text is expected, not true"),
    refused("id_float.jsonl", "line 1, field 'id'", "text is expected, not 1.5"),
    refused("id_blank.jsonl", "line 1, field 'id'", "the id is empty"),
    refused("ids_twice.jsonl", "line 3, field 'id'", "the id 'good' was used before: line 1", kept=True),
    refused("ids_twice.json", "record 3, field 'id'", "the id 'good' was used before: record 1", kept=True),
    refused("id_generated_twice.jsonl", "line 2, field 'id'", "'conv-000002' was used before: line 1", kept=True),
    refused("id_markup_twice.jsonl", "line 2, field 'id'", "the id '[red]x[/red]' was used before: line 1", kept=True),
    refused("forms_mixed.jsonl", "line 2, field 'turns'", "this field is missing; found 'id', 'messages'", kept=True),
    refused("chat_content_null.jsonl", "turn 1, field 'content'", "text is expected, not null"),
    refused("chat_part_number.jsonl", "turn 1, field 'content', part 2", "text is expected, not 1"),
    refused("chat_document_without_text.jsonl", "field 'documents', passage 1", "a document needs one of text"),
    refused("chat_context_false.jsonl", "turn 2, field 'context'", "text, a list of texts or null is expected"),
    refused("vista_claims_number.json", "turn 1, field 'human_claims'", "a list of claims is expected, not 1"),
    Case(
        "claims_unlabelled.jsonl",
        Refused(("conversation 'a', turn 0", "oracle_memory needs a label on every claim; 'c' has none")),
        ("--given-claims", "--oracle-memory"),
    ),
    # ---- bad records among good ones
    refused("some_bad.jsonl", "line 2, column 2", "invalid JSON", kept=True),
    scored("some_bad.jsonl", 3, "skipped 5 broken records; the first:", "line 2", options=SKIP, skipped=5),
    scored("cut_line.jsonl", 1, "skipped 1 broken record;", options=SKIP, skipped=1),
    scored("ids_twice.jsonl", 2, "the id 'good' was used before", options=SKIP, skipped=1),
    refused("all_bad.jsonl", "none of its records can be read (2); the first:", "line 1", options=SKIP),
    # ---- odd, but what it says is plain
    scored("byte_order_mark.jsonl", turns=1),
    scored("utf16_little.jsonl", 500, turns=500),
    scored("utf16_big.jsonl", turns=1),
    scored("windows_line_ends.jsonl", 2, turns=2),
    scored("no_last_newline.jsonl", 2, turns=2),
    scored("good.gz", turns=1),
    scored("good_gzip_named.jsonl", 500, turns=500),
    scored("roles_in_capitals.jsonl", turns=1),
    scored("reference_blank.jsonl", turns=1),
    scored("reply_empty.jsonl", turns=1),
    scored("reply_of_dots.jsonl", turns=1),
    scored("user_only.jsonl", turns=0),
    scored("unreferenced.jsonl", 1, "Over half of the assistant turns have no reference", turns=0),
    scored("ids_numbers.jsonl", 2, turns=2),
    scored("id_path.jsonl", 3, turns=3),
    scored("fields_unknown.jsonl", 1, "ignored fields: source, reward", turns=1),
    scored("fields_1000_unknown.jsonl", 1, "and more", turns=1),
    scored("right_to_left.jsonl", 2, turns=2),
    scored("emoji.jsonl", turns=1),
    scored("markup.jsonl", turns=1),
    scored("special_tokens.jsonl", turns=1),
    scored("tool_calls.jsonl", turns=1),
    scored("escaped_surrogates.jsonl", 1, "lone surrogates are replaced by U+FFFD", turns=1),
    scored("control_characters.jsonl", turns=1),
    scored("turns_300.jsonl", turns=150),
    scored("megabyte_reply.jsonl", turns=1),
    scored("megabyte_question.jsonl", turns=1),
    scored("megabyte_question.jsonl", turns=1, options=("--context", "full")),
    scored("megabyte_word.jsonl", turns=1),
    scored("many_initials.jsonl", turns=1),
    scored("megabyte_of_dots.jsonl", turns=1),
    scored("megabyte_of_spaces.jsonl", turns=1),
    scored("megabyte_reference.jsonl", turns=1),
    scored("megabyte_id.jsonl", turns=1),
    scored("many_empty_passages.jsonl", turns=1),
    # ---- settings
    refused("settings_key_unknown.yaml", "unknown setting 'shard_sise'; did you mean 'shard_size'?"),
    refused("settings_key_nested_unknown.yaml", "'memory.budget_token'; did you mean 'memory.budget_tokens'?"),
    refused("settings_key_far_off.yaml", "unknown setting 'colour'; known: context,"),
    refused("settings_value_wrong.yaml", "setting 'context'", "'none', 'recent' or 'full'", "found 'everything'"),
    refused("settings_value_type.yaml", "setting 'shard_size'", "valid integer", "found 'many'"),
    refused("settings_value_negative.yaml", "setting 'shard_size'", "greater than or equal to 1", "found 0"),
    refused("settings_list.yaml", "a mapping of settings is expected, found list"),
    refused("settings_not_yaml.yaml", "cannot be read"),
    refused("settings_binary.yaml", "cannot be read"),
    refused("settings_bomb.yaml", "unknown setting 'a0'"),
    scored("settings_empty.yaml"),
]
