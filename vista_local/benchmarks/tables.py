"""Published data sets with columns: tables, column names, and cells that hold a literal.

Formats were read off the published files' headers; the columns accepted are listed below.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vista_local.errors import InputError

FADE_FILE = "human_verified_500.csv"

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


def find_files(folder: Path, names: Iterable[str], pattern: str, key: Callable[[Path], str]) -> list[Path]:
    """Files below `folder` whose key is among `names`.

    Raises:
        InputError: there is no such folder, or no such file in it.
    """
    if not folder.exists():
        raise InputError("no such file or folder", str(folder))
    wanted = set(names)
    found = sorted(path for path in folder.rglob(pattern) if path.is_file() and key(path) in wanted)
    if not found:
        raise InputError(f"none of the expected files is below this folder: {', '.join(sorted(wanted))}", str(folder))
    return found


def read_table(path: Path, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a file with columns, for who looks rows up by content: rows cut short are left out.

    Raises:
        InputError: the file can't be read, is no table, or is empty.
    """
    header, rows = placed_table(path, delimiter, quoting, whole=False)
    return header, [row for _, row in rows if len(row) >= len(header)]


def placed_table(
    path: Path, delimiter: str = ",", quoting: int = csv.QUOTE_MINIMAL, whole: bool = True
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Header and rows, each row with its place for messages: its number below the header, the line it begins on.

    Blank lines are no rows.

    Raises:
        InputError: the file can't be read, is no table, or is empty; with `whole`, a row has fewer cells than the
            header.
    """
    csv.field_size_limit(sys.maxsize if sys.maxsize < 2**31 else 2**31 - 1)
    lines_and_rows: list[tuple[int, list[str]]] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            reader, line = csv.reader(lines, delimiter=delimiter, quoting=quoting), 1  # type: ignore[arg-type]
            for row in reader:
                lines_and_rows.append((line, row))
                line = reader.line_num + 1  # a quoted cell may span lines
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", str(path)) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"no table in UTF-8: {error}", str(path)) from error
    if not lines_and_rows:
        raise InputError("the file is empty", str(path))
    (_, header), *rest = lines_and_rows
    rows: list[tuple[str, list[str]]] = []
    for line, row in rest:
        where = f"{path}, row {len(rows) + 1} (line {line})"
        short = len(row) < len(header)
        if short and not any(cell.strip() for cell in row):
            continue
        if short and whole:
            raise InputError(f"the row is cut short: {len(row)} cells, the header has {len(header)}", where)
        rows.append((where, row))
    return header, rows


def column_key(name: str) -> str:
    """A column's name without case, spaces and hyphens."""
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


def find_column(header: Sequence[str], accepted: Sequence[str], what: str, where: str | Path) -> int:
    """Number of the first of the accepted columns that the header has.

    Raises:
        InputError: it has none.
    """
    keys = [column_key(name) for name in header]
    for name in accepted:
        if name in keys:
            return keys.index(name)
    raise InputError(
        f"no column for {what}; found: {', '.join(header)}; accepted: {', '.join(accepted)}",
        str(where),
    )


def literal(cell: str) -> Any:
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
    value = literal(cell)
    parts = value if isinstance(value, list) else [value]
    texts = [part.get("render", "") if isinstance(part, dict) else part for part in parts]
    return " ".join(" ".join(map(str, text)) if isinstance(text, list) else str(text) for text in texts)


def utterances(cell: str) -> tuple[str, ...]:
    """The utterances of a history cell: a list in JSON or Python, or text with line breaks or separators."""
    value = literal(cell)
    if not isinstance(value, list):
        return tuple(part for part in _TURN_BREAK.split(str(value)) if part.strip())
    texts = []
    for entry in value:
        if isinstance(entry, dict):
            entry = next((entry[k] for k in ("text", "utterance", "message", "content") if k in entry), "")
        texts.append(str(entry))
    return tuple(text for text in texts if text.strip())
