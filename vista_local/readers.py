"""From a file, a stream or standard input to `Conversation`s, one at a time; every fault is an `InputError`.

Read are JSON Lines (a line at a time: the file is never held in memory) and JSON documents (held
in memory), plain or gzipped, in UTF-8 with or without BOM or UTF-16 with BOM. All of this is told
from the content, never from the name. The forms of a conversation are in `formats`; one input has
one form, since the form decides how turns without reference are taken.

A fault of a *record* names its line (JSON Lines) or number (JSON array), counted from 1, and with
`skip_bad` is counted while reading goes on. A fault of the *file* (missing, truncated, not text, a
document that is not JSON, a line or document that is too long to hold) always ends the reading.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn, Self, TypeAlias, cast

from vista_local.errors import InputError
from vista_local.formats import Format, Notes, convert, detect, found_fields, is_list_of_turns, role_table, show
from vista_local.schema import Conversation

#: A path, "-" for standard input, or an open binary or text stream (which stays open).
Source: TypeAlias = str | Path | IO[bytes] | IO[str]

_SPACE = " \t\r\n"  # white space of JSON; str.strip() would take more
_BLOCK = 1 << 16
#: Longest line, and longest document over several lines, in bytes or characters: a small gzip file may unpack to more
#: than memory holds.
MAX_LINE, MAX_DOCUMENT = 1 << 28, 1 << 30
#: Messages that are kept of records left out: a file may be broken in every line.
SKIPPED_KEPT = 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UTF32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_FAULTS = (OSError, EOFError, ValueError, zlib.error)  # ValueError: a closed stream, a text stream's decoder


def parse_conversation(
    record: object, where: str = "conversation", *, number: int = 1, roles: Mapping[str, str] | None = None
) -> Conversation:
    """One conversation from what `json.loads` gives for it, in any of the forms.

    `where` is its place for messages; `number` makes the id of a record without one. What a
    reader would warn of passes without a word.

    Raises:
        InputError: it is no conversation.
    """
    value = dict(record) if isinstance(record, Mapping) else record
    form = detect(value) or _unknown(value, where)
    return convert(value, form, where, number, role_table(roles), Notes(lambda _: None))


class Skipped:
    """The records left out: their number is its length, the messages of the first few are its items."""

    def __init__(self) -> None:
        self._number = 0
        self._kept: list[str] = []

    def add(self, message: str) -> None:
        """Count a record; keep its message if it is one of the first few."""
        self._number += 1
        if len(self._kept) < SKIPPED_KEPT:
            self._kept.append(message)

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> str:
        return self._kept[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)


class ConversationReader(Iterator[Conversation]):
    """The conversations of one source, in order, and what was noticed on the way.

    The source is opened when the first conversation, or `format`, is asked for.

    Args:
        source: a path, "-" for standard input, or an open binary or text stream.
        format: the form of the conversations; "auto" tells it from the first record.
        roles: role names beside the known ones, mapped to user, assistant, system or tool.
        on_warning: called with each warning, once a kind; the ignored fields are named at the end.
        skip_bad: leave out broken records, counted in `skipped`, and go on.

    Attributes:
        name: the source, as messages name it.
        skipped: as many as records were left out, with the messages of the first few.
        warnings: what `on_warning` was called with.

    Raises:
        InputError: `format` or `roles` hold an unknown name. Iteration raises it for bad input.
    """

    def __init__(
        self,
        source: Source,
        *,
        format: str = "auto",
        roles: Mapping[str, str] | None = None,
        on_warning: Callable[[str], None] | None = None,
        skip_bad: bool = False,
    ) -> None:
        if format != "auto" and format not in list(Format):
            raise InputError(f"{format!r} is unknown; accepted: auto, {', '.join(Format)}", "format")
        self.name = _name(source)
        self.skipped = Skipped()
        self.warnings: list[str] = []
        self._form = None if format == "auto" else Format(format)
        self._roles = role_table(roles)
        self._on_warning = on_warning
        self._skip_bad = skip_bad
        self._ahead: list[Conversation] = []
        self._rest = self._read(source)

    @property
    def format(self) -> Format | None:
        """The form of the conversations; reads up to the first one where that isn't known yet.

        Raises:
            InputError: as for iteration.
        """
        if self._form is None:
            self._ahead.extend(itertools.islice(self._rest, 1))
        return self._form

    def __next__(self) -> Conversation:
        return self._ahead.pop() if self._ahead else next(self._rest)

    def close(self) -> None:
        """Let go of the source; iteration then ends."""
        self._ahead.clear()
        self._rest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _warn(self, message: str) -> None:
        self.warnings.append(message)
        if self._on_warning:
            self._on_warning(message)

    def _read(self, source: Source) -> Generator[Conversation, None, None]:
        notes = Notes(self._warn)
        seen: dict[str, int] = {}
        number = 0
        with contextlib.closing(_lines(source, self.name)) as lines:
            for number, record in enumerate(_records(lines, self.name), 1):
                try:
                    conversation = self._convert(record, number, notes)
                    first = seen.setdefault(conversation.id, record.index)
                    if first != record.index:
                        message = f"the id {show(conversation.id)} was used before: {record.unit} {first}"
                        raise InputError(message, f"{record.where}, field 'id'")
                except InputError as error:
                    if not self._skip_bad:
                        raise
                    self.skipped.add(str(error))
                else:
                    yield conversation
        notes.finish()
        if not number:
            raise InputError("there are no conversations in it", self.name)
        if len(self.skipped) == number:
            raise InputError(f"none of its records can be read ({number}); the first: {self.skipped[0]}", self.name)

    def _convert(self, record: _Record, number: int, notes: Notes) -> Conversation:
        value = record.value if record.text is None else _parse(record.text, self.name, record.index)
        if self._form is None:
            self._form = detect(value) or _unknown(value, record.where)
        return convert(value, self._form, record.where, number, self._roles, notes)


#: The reader under the names of what it does.
open_conversations = read_conversations = ConversationReader


@dataclass(frozen=True)
class _Record:
    """One record and its place: a line still to be parsed, or a value from a document."""

    name: str
    unit: str
    index: int
    text: str | None = None
    value: object = None

    @property
    def where(self) -> str:
        return f"{self.name}, {self.unit} {self.index}" if self.unit else self.name


def _records(lines: Iterator[str], name: str) -> Iterator[_Record]:
    blank = 0
    for first in lines:
        first = first if blank else first.removeprefix("\ufeff")
        if first.strip(_SPACE):
            break
        blank += 1
    else:
        raise InputError("the input is empty", name)
    if _is_json_lines(first.rstrip(_SPACE)):
        for index, line in enumerate(itertools.chain([first], lines), blank + 1):
            if line.strip(_SPACE):
                yield _Record(name, "line", index, text=line)
        return
    value = _parse(_document(itertools.chain([first], lines), name), name, before=blank)
    if isinstance(value, list) and not is_list_of_turns(value):
        for index, item in enumerate(value, 1):
            yield _Record(name, "record", index, value=item)
    else:
        yield _Record(name, "", 1, value=value)


def _document(lines: Iterator[str], name: str) -> str:
    text = io.StringIO(newline="")  # not a list: lines may be empty, and a billion of them
    for line in lines:
        text.write(line)
        if text.tell() > MAX_DOCUMENT:
            raise InputError(f"the document is longer than {_mib(MAX_DOCUMENT)}; write it as JSON Lines", name)
    return text.getvalue()


def _is_json_lines(first: str) -> bool:
    """Tell JSON Lines from a JSON document by the first line that is not blank."""
    try:
        value = _load(first)
    except json.JSONDecodeError as error:
        # A document's first line is right up to its end, and not in the middle of a string there.
        return error.pos < len(first) or error.msg.startswith("Unterminated")
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, list) or not value or is_list_of_turns(value)


def _load(text: str) -> object:
    return cast(object, json.loads(text, parse_constant=_refuse_constant))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _parse(text: str, name: str, line: int | None = None, before: int = 0) -> object:
    """Parse a line (number `line`) or a whole document, which has `before` lines before it."""
    where = name if line is None else f"{name}, line {line}"
    try:
        # Without its end, a fault "at the end" would be placed on the next line.
        return _load(text.rstrip(_SPACE))
    except json.JSONDecodeError as error:
        place = f"{name}, line {line or before + error.lineno}, column {error.colno}"
        raise InputError(f"invalid JSON: {error.msg}", place) from None
    except ValueError as error:  # NaN and its like; a number of thousands of digits
        raise InputError(f"invalid JSON: {str(error).partition(';')[0]}", where) from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply", where) from None


def _lines(source: Source, name: str) -> Generator[str, None, None]:
    """Lines of text with their ends.

    Raises:
        InputError: the source can't be opened, read, unpacked or decoded.
    """
    done = 0
    with contextlib.ExitStack() as stack:
        try:
            stream: Any = source
            if isinstance(source, str | Path):
                stdin = str(source) == "-"
                stream = getattr(sys.stdin, "buffer", sys.stdin) if stdin else stack.enter_context(open(source, "rb"))
            # A stream of text has no bytes to look at; its owner chose the encoding.
            is_text = isinstance(stream.read(0), str)
            for line in _short_lines(stream, name) if is_text else _decoded(stream, name):
                yield line
                done += 1
        except (*_FAULTS, AttributeError) as error:
            raise InputError(_reason(error), f"{name}, line {done + 1}" if done else name) from None


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the gzip file is cut off here; get it again"
    if isinstance(error, gzip.BadGzipFile | zlib.error):
        return f"the gzip file is damaged: {error}"
    return f"can't be read: {(error.strerror if isinstance(error, OSError) else None) or error}"


def _short_lines(stream: Any, name: str) -> Iterator[Any]:
    """Lines of bytes or text with their ends; of one that is too long, no more is read than shows it."""
    for number in itertools.count(1):
        line = stream.readline(MAX_LINE + 1)
        if not line:
            return
        _check_length(len(line), name, number)
        yield line


def _check_length(length: int, name: str, number: int) -> None:
    if length > MAX_LINE:
        message = f"the line is longer than {_mib(MAX_LINE)}; write one conversation a line"
        raise InputError(message, f"{name}, line {number}")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):g} MiB"


def _decoded(stream: IO[bytes], name: str) -> Iterator[str]:
    head, stream = _peek(stream)
    if head.startswith(b"\x1f\x8b"):
        head, stream = _peek(cast(IO[bytes], gzip.GzipFile(fileobj=stream)))
    if head.startswith(_UTF32):
        raise InputError("the input is UTF-32; convert it to UTF-8", name)
    if head.startswith(_UTF16):
        yield from _utf16_lines(stream, name)
        return
    for number, line in enumerate(_short_lines(stream, name), 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            _undecodable(error, name, number)
        yield text


def _utf16_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-16")()
    number = 1
    open_line: list[str] = []  # joined at its end: adding block to block would take quadratic time
    length = 0
    while True:
        block = stream.read(_BLOCK)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            encoding = "utf-16-le" if error.encoding.endswith("le") else "utf-16-be"
            before = error.object[: error.start].decode(encoding, "replace")
            _undecodable(error, name, number + before.count("\n"))
        piece, *following = text.split("\n")
        open_line.append(piece)
        length += len(piece)
        _check_length(length, name, number)
        for piece in following:
            yield "".join(open_line) + "\n"
            open_line, length = [piece], len(piece)
            number += 1
        if not block:
            break
    yield "".join(open_line)


def _undecodable(error: UnicodeDecodeError, name: str, line: int) -> NoReturn:
    found = f"{error.object[error.start]:#04x}"
    message = f"byte {found} is not {error.encoding.upper()} ({error.reason}); convert the file to UTF-8"
    raise InputError(message, f"{name}, line {line}") from None


class _Rejoined(io.RawIOBase):
    """A binary stream with the bytes put back that were read from its beginning; it never closes the stream."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head = head
        # read1 gives what a pipe has; read would wait until the buffer is full.
        self._read_some: Callable[[int], bytes | None] = getattr(stream, "read1", stream.read)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data, self._head = self._head[: len(buffer)], self._head[len(buffer) :]
        data = data or self._read_some(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)


def _peek(stream: IO[bytes]) -> tuple[bytes, IO[bytes]]:
    """The first four bytes (fewer at the end), and the stream as if they had not been read."""
    head = b""
    while len(head) < 4 and (more := stream.read(4 - len(head))):
        head += more
    return head, io.BufferedReader(_Rejoined(head, stream), _BLOCK)


def _name(source: Source) -> str:
    if str(source) == "-":
        return "standard input"
    name = source if isinstance(source, str | Path) else getattr(source, "name", "input")
    # A file name may hold bytes that are not UTF-8; messages must be printable.
    return str(name).encode("utf-8", "replace").decode()


def _unknown(value: object, where: str) -> NoReturn:
    found = found_fields(value) if isinstance(value, dict) else f"found {show(value)}"
    raise InputError(f"an object with 'turns' or 'messages', or a list of turns, is expected; {found}", where)
