"""The public data sets as their authors publish them: rows of responses, references and histories.

Formats were read off the published files' headers; the columns accepted are listed below.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vista_local.errors import InputError

FADE_FILE = "human_verified_500.csv"
FADE_ORIGINAL, FADE_CORRUPTED = "fade_orig", "fade_corrupt"

# Column names compare without case, and with spaces and hyphens as underscores. Each tuple starts with
# the name that the published file has; the others are spellings of the same thing in sister files.
REFERENCE_COLUMNS = ("knowledge", "evidence", "reference", "source_knowledge")
RESPONSE_COLUMNS = ("response", "model_response", "generated_response", "original_response")
CORRUPTED_COLUMNS = ("corrupted_response", "corrupt_response", "corrupted", "perturbed_response")
HISTORY_COLUMNS = (
    *("history", "message", "dialogue_history", "dialog_history", "context", "dialogue_context", "dialogue"),
    *("previous_utterance", "previous_turn", "utterance"),
)
FADE_REFERENCE_COLUMNS = (
    "knowledge_base",
    "render",
    "knowledge",
    "kb",
    "knowledge_base.render",
    "knowledge_base_render",
)

_TURN_BREAK = re.compile(r"\s*(?:\n|</?s>|<sep>|\[sep\]|<eos>|<eot>|\|\|\|)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class SourceRow:
    """One turn of a user's copy: the scored response, its reference, and the utterances before it."""

    reference: str
    response: str
    history: tuple[str, ...]


def norm(text: str) -> str:
    """Lower-cased a-z and 0-9 only: what an id is made of."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def public_id(source: str, reference: str, response: str) -> str:
    """The id of a public turn."""
    digest = hashlib.sha1(f"{norm(reference)}|{norm(response)}".encode(), usedforsecurity=False).hexdigest()
    return f"{source}-{digest[:8]}"


def read_begin(folder: Path, wanted: Iterable[str]) -> Iterator[tuple[str, SourceRow]]:
    """The rows of BEGIN's dev files, wherever they lie below `folder`; its test files are not opened.

    Raises:
        InputError: the folder or all of its dev files are missing, or a file lacks a column.
    """
    names = {f"{source}.tsv": source for source in wanted}
    for path in _find(folder, names, "*.tsv", lambda path: path.name.lower()):
        # The published files quote nothing, and quotes stand unpaired in the text: a reader that
        # knows quotes would swallow rows.
        rows = _table(path, delimiter="\t", quoting=csv.QUOTE_NONE)
        yield from _plain_rows(path, names[path.name.lower()], rows, RESPONSE_COLUMNS)


def read_faithdial(folder: Path, wanted: Iterable[str]) -> Iterator[tuple[str, SourceRow]]:
    """The rows of FaithDial's data-audit files below `folder` (the repository or its data-audit folder).

    The source of `CTRL/ctrl_processed_wow.csv` is `faithdial_audit_CTRL_ctrl_wow`.

    Raises:
        InputError: the folder or all of its audit files are missing, or a file lacks a column.
    """

    def key(path: Path) -> str:
        return f"faithdial_audit_{path.parent.name}_{path.stem.replace('_processed', '')}".lower()

    sources = {source.lower(): source for source in wanted}
    for path in _find(folder, sources, "*.csv", key):
        # The column of a model's responses bears the model's name, which is the folder's too.
        responses = (*RESPONSE_COLUMNS, _column_key(path.parent.name))
        yield from _plain_rows(path, sources[key(path)], _table(path), responses)


def read_fade(path: Path) -> Iterator[tuple[str, SourceRow]]:
    """The rows of FADE's human-verified file, given itself or by a folder above it; two turns for each row.

    Raises:
        InputError: the file is missing or lacks a column.
    """
    files = [path] if path.is_file() else _find(path, {FADE_FILE}, "*.csv", lambda p: p.name.lower())
    for file in files:
        header, rows = _table(file)
        reference = _column(header, FADE_REFERENCE_COLUMNS, "the knowledge", file)
        history = _column(header, HISTORY_COLUMNS, "the history", file)
        responses = {
            FADE_ORIGINAL: _column(header, RESPONSE_COLUMNS, "the response", file),
            FADE_CORRUPTED: _column(header, CORRUPTED_COLUMNS, "the corrupted response", file),
        }
        for row in rows:
            for source, column in responses.items():
                yield source, SourceRow(rendered(row[reference]), row[column], utterances(row[history]))


def _plain_rows(
    path: Path, source: str, table: tuple[list[str], list[list[str]]], responses: Sequence[str]
) -> Iterator[tuple[str, SourceRow]]:
    header, rows = table
    reference = _column(header, REFERENCE_COLUMNS, "the knowledge", path)
    response = _column(header, responses, "the response", path)
    history = _column(header, HISTORY_COLUMNS, "the history", path)
    for row in rows:
        # One previous utterance, taken as it stands. A few cells read "[]": the labelled data have
        # them as an utterance too, and a join has to give the data that the adapters were trained on.
        previous = (row[history],) if row[history].strip() else ()
        yield source, SourceRow(row[reference], row[response], previous)


def _find(folder: Path, names: Iterable[str], pattern: str, key: Callable[[Path], str]) -> list[Path]:
    """Files below `folder` whose key is among `names`."""
    if not folder.exists():
        raise InputError("no such file or folder", str(folder))
    wanted = set(names)
    found = sorted(path for path in folder.rglob(pattern) if path.is_file() and key(path) in wanted)
    if not found:
        raise InputError(f"none of the expected files is below this folder: {', '.join(sorted(wanted))}", str(folder))
    return found


def _table(path: Path, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a file with columns; rows cut short are left out (their ids come out as missing)."""
    csv.field_size_limit(sys.maxsize if sys.maxsize < 2**31 else 2**31 - 1)
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            table = list(csv.reader(lines, delimiter=delimiter, quoting=quoting))  # type: ignore[arg-type]
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", str(path)) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"no table in UTF-8: {error}", str(path)) from error
    if not table:
        raise InputError("the file is empty", str(path))
    header, *rows = table
    return header, [row for row in rows if len(row) >= len(header)]


def _column_key(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def _column(header: Sequence[str], accepted: Sequence[str], what: str, path: Path) -> int:
    keys = [_column_key(name) for name in header]
    for name in accepted:
        if name in keys:
            return keys.index(name)
    raise InputError(
        f"no column for {what}; found: {', '.join(header)}; accepted: {', '.join(accepted)}",
        str(path),
    )


def _literal(cell: str) -> Any:
    """The value of a cell that holds JSON or a Python literal; the cell itself where it's plain text."""
    if cell.strip()[:1] in ("{", "["):
        for parse in (json.loads, ast.literal_eval):
            try:
                return parse(cell.strip())
            except (ValueError, SyntaxError, RecursionError, MemoryError):
                continue
    return cell


def rendered(cell: str) -> str:
    """FADE's reference: the `render` of a knowledge_base cell (of each entry, if there are several)."""
    value = _literal(cell)
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("render", "") if isinstance(part, dict) else part for part in parts]
    return " ".join(" ".join(map(str, text)) if isinstance(text, list) else str(text) for text in texts)


def utterances(cell: str) -> tuple[str, ...]:
    """The utterances of a history cell: a list in JSON or Python, or text with line breaks or separators."""
    value = _literal(cell)
    if not isinstance(value, list):
        return tuple(part for part in _TURN_BREAK.split(str(value)) if part.strip())
    texts = []
    for entry in value:
        if isinstance(entry, dict):
            entry = next((entry[k] for k in ("text", "utterance", "message", "content") if k in entry), "")
        texts.append(str(entry))
    return tuple(text for text in texts if text.strip())
