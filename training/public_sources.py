"""The public data sets as their authors publish them: rows of responses, references and histories."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vista_local.benchmarks.tables import (
    CORRUPTED_COLUMNS,
    FADE_FILE,
    FADE_REFERENCE_COLUMNS,
    HISTORY_COLUMNS,
    REFERENCE_COLUMNS,
    RESPONSE_COLUMNS,
    column_key,
    find_column,
    find_files,
    read_table,
    rendered,
    utterances,
)

FADE_ORIGINAL, FADE_CORRUPTED = "fade_orig", "fade_corrupt"


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
    for path in find_files(folder, names, "*.tsv", lambda path: path.name.lower()):
        # The published files quote nothing, and quotes stand unpaired in the text: a reader that
        # knows quotes would swallow rows.
        rows = read_table(path, delimiter="\t", quoting=csv.QUOTE_NONE)
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
    for path in find_files(folder, sources, "*.csv", key):
        # The column of a model's responses bears the model's name, which is the folder's too.
        responses = (*RESPONSE_COLUMNS, column_key(path.parent.name))
        yield from _plain_rows(path, sources[key(path)], read_table(path), responses)


def read_fade(path: Path) -> Iterator[tuple[str, SourceRow]]:
    """The rows of FADE's human-verified file, given itself or by a folder above it; two turns for each row.

    Raises:
        InputError: the file is missing or lacks a column.
    """
    files = [path] if path.is_file() else find_files(path, {FADE_FILE}, "*.csv", lambda p: p.name.lower())
    for file in files:
        header, rows = read_table(file)
        reference = find_column(header, FADE_REFERENCE_COLUMNS, "the knowledge", file)
        history = find_column(header, HISTORY_COLUMNS, "the history", file)
        responses = {
            FADE_ORIGINAL: find_column(header, RESPONSE_COLUMNS, "the response", file),
            FADE_CORRUPTED: find_column(header, CORRUPTED_COLUMNS, "the corrupted response", file),
        }
        for row in rows:
            for source, column in responses.items():
                yield source, SourceRow(rendered(row[reference]), row[column], utterances(row[history]))


def _plain_rows(
    path: Path, source: str, table: tuple[list[str], list[list[str]]], responses: Sequence[str]
) -> Iterator[tuple[str, SourceRow]]:
    header, rows = table
    reference = find_column(header, REFERENCE_COLUMNS, "the knowledge", path)
    response = find_column(header, responses, "the response", path)
    history = find_column(header, HISTORY_COLUMNS, "the history", path)
    for row in rows:
        # One previous utterance, taken as it stands. A few cells read "[]": the labelled data have
        # them as an utterance too, and a join has to give the data that the adapters were trained on.
        previous = (row[history],) if row[history].strip() else ()
        yield source, SourceRow(row[reference], row[response], previous)
