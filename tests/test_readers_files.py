"""Readers: containers and encodings, and files that are broken as a whole."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reader_samples import (
    ANSWER,
    NATIVE,
    READ,
    TWO,
    USER,
    VISTA,
    Q,
    Write,
    chat,
    fault,
)

from vista_local import readers
from vista_local.errors import InputError
from vista_local.formats import Format
from vista_local.readers import ConversationReader, open_conversations, parse_conversation, read_conversations
from vista_local.schema import Conversation, GivenClaim, Role, Turn

# Containers and encodings


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


# Input without a bound


class Repeated(io.RawIOBase):
    """A start, a piece many times over, and an end, made as they are read."""

    def __init__(self, start: bytes, piece: bytes, times: int, end: bytes = b"") -> None:
        self.parts = iter((start, *(piece for _ in range(times)), end))
        self.rest = b""
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.rest:
            if (part := next(self.parts, None)) is None:
                return 0
            self.rest = part
        piece, self.rest = self.rest[: len(buffer)], self.rest[len(buffer) :]
        buffer[: len(piece)] = piece
        self.given += len(piece)
        return len(piece)


def packed(stream: io.RawIOBase) -> io.BytesIO:
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb") as target:
        while block := stream.read(1 << 16):
            target.write(block)
    out.seek(0)
    return out


LONG, BOMB = 1 << 20, 300  # the limit in these tests; 300 pieces of 64 KiB are 19 times as long


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "text"])
def test_a_line_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    monkeypatch.setattr(readers, "MAX_LINE", LONG)
    name = "utf-8" if encoding == "text" else encoding
    start = (json.dumps(NATIVE) + "\n" + '{"id": "').encode(name)
    piece = ("x" * (1 << 16)).encode(name.replace("utf-16", "utf-16-le"))
    source: Any = packed(Repeated(start, piece, BOMB))
    assert len(source.getbuffer()) < 100_000
    if encoding == "text":
        source = io.TextIOWrapper(gzip.GzipFile(fileobj=source), encoding="utf-8")  # type: ignore[type-var]
    reader = open_conversations(source, skip_bad=True)
    assert next(reader).id == "a"
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="line 2: the line is longer than 1 MiB; write one conversation a line"):
            next(reader)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * LONG


def test_a_document_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_DOCUMENT", LONG)
    for piece in (b"\n" * 1000, b" " * 1000 + b"\n"):
        stream = Repeated(b"\n[\n", piece, 20_000)
        with pytest.raises(InputError, match="input: the document is longer than 1 MiB; write it as JSON Lines"):
            list(open_conversations(stream, skip_bad=True))  # type: ignore[arg-type]
        assert stream.given < 1.5 * LONG


def test_blank_lines_before_a_document_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Repeated(b"", b"\n" * 1000, 2_000, b"[\n}")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="line 2000002, column 1: invalid JSON"):
            list(open_conversations(stream))  # type: ignore[arg-type]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_lines_up_to_the_limit_are_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("utf-8", "utf-16"):
        line = json.dumps(NATIVE) + "\n"
        path = write((line + json.dumps(TWO[1]) + "\n").encode(encoding))
        monkeypatch.setattr(readers, "MAX_LINE", len(line))
        assert [c.id for c in open_conversations(path)] == ["a", "b"]
        monkeypatch.setattr(readers, "MAX_LINE", len(line) - 2)
        assert "line 1: the line is longer than" in str(fault(path))


def test_python_values() -> None:
    assert parse_conversation(NATIVE) == Conversation("a", READ)
    assert parse_conversation({"turns": [USER]}, number=12).id == "conv-000012"
    with pytest.raises(InputError, match=r"^conversation 3, turn 1, field 'role': "):
        parse_conversation({"turns": [{"text": "x"}]}, "conversation 3")
