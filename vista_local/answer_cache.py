"""Answers of an endpoint on disk, keyed by the whole request: what was paid for once is never asked again.

One SQLite file. A write is a transaction in a write-ahead log, so a process that is killed at any
moment leaves either the whole answer or none, and several processes may share the file. Requests
are kept as digests only; answers are kept as text, readable by the user alone (mode 600).
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vista_local.errors import VistaError


def request_key(request: Mapping[str, Any]) -> str:
    """SHA-256 of a request: endpoint and everything that is sent to it."""
    text = json.dumps(request, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class AnswerCache:
    """A map from request digests to answers (JSON objects).

    Raises:
        VistaError: the file can't be made or read, or is no cache; names it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._database = sqlite3.connect(path, timeout=60, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("CREATE TABLE IF NOT EXISTS answers (request TEXT PRIMARY KEY, answer TEXT) STRICT")
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from error

    def _unusable(self, error: Exception) -> VistaError:
        return VistaError(f"{self.path}: the cache of answers can't be used ({error}); move it away or name another")

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer of a request."""
        with self._lock:
            try:
                row = self._database.execute("SELECT answer FROM answers WHERE request = ?", (key,)).fetchone()
                return None if row is None else dict(json.loads(row[0]))
            except (sqlite3.Error, ValueError) as error:
                raise self._unusable(error) from error

    def put(self, key: str, answer: Mapping[str, Any]) -> None:
        """Store an answer; on disk when this returns."""
        text = json.dumps(answer, ensure_ascii=True)
        with self._lock:
            try:
                self._database.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, text))
            except sqlite3.Error as error:
                raise self._unusable(error) from error

    def close(self) -> None:
        """Release the file."""
        with self._lock:
            self._database.close()
