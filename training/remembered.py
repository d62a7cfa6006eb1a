"""Answers of a local backend kept on disk: measurements that ask the same thing ask the model once.

The methods, ablations and modes that are measured on a file share most of their prompts (the claims
of a turn are the same with and without a memory, given claims are verified by several scripts), and a
measurement that was stopped goes on where it was. Not for scoring: an answer is kept by adapter, base
and prompt, but not by the code that asked, so remove the file after a change of that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from vista_local.answer_cache import AnswerCache, request_key
from vista_local.backends.base import Backend, Generation, Row, Said, Unanswered
from vista_local.errors import VistaError
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest


class _Asked(Protocol):
    def __call__(self, stage: str, requests: Sequence[ClassifyRequest]) -> Sequence[Sequence[Row]]: ...


class RememberingBackend:
    """A backend that asks another one only what it has no answer to yet.

    Args:
        backend: a local model; everything but its answers is taken from it as it is.
        path: SQLite file of answers, made if it is missing. Holds prompts as digests, claims as text.
        parts: how many requests are asked for at once; each part is on disk before the next is asked for.

    Raises:
        VistaError: the file can't be used.
    """

    def __init__(self, backend: Backend, path: Path, parts: int = 128) -> None:
        self._backend, self._cache, self._parts = backend, AnswerCache(path), parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _key(self, verb: str, stage: str, request: Any) -> str:
        said = self._backend.describe()
        by_stage = {k: said[k].get(stage) for k in ("adapters", "calibration") if said.get(k)}
        model = {k: said.get(k) for k in ("base_sha256", "prompt_version", "dtype", "device")}
        return request_key({"verb": verb, "stage": stage, "request": request, **by_stage, **model})

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        """As the backend's, with the answers on file."""
        keys = [self._key("generate", stage, asdict(p)) for p in prompts]
        missing = self._missing(keys)
        for start in range(0, len(missing), self._parts):
            part = missing[start : start + self._parts]
            for i, answer in zip(part, self._backend.generate(stage, [prompts[i] for i in part]), strict=True):
                self._cache.put(keys[i], asdict(answer))
        return [Generation(**self._known(key)) for key in keys]

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[Row]]:
        """As the backend's, with the answers on file."""
        return self._classified("classify", self._backend.classify, stage, requests)

    def classify_alone(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[Row]]:
        """As the backend's, with the answers on file."""
        return self._classified("classify_alone", self._backend.classify_alone, stage, requests)

    def _classified(self, verb: str, ask: _Asked, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[Row]]:
        keys = [self._key(verb, stage, asdict(r)) for r in requests]
        missing = self._missing(keys)
        for start in range(0, len(missing), self._parts):
            part = missing[start : start + self._parts]
            for i, rows in zip(part, ask(stage, [requests[i] for i in part]), strict=True):
                self._cache.put(keys[i], {"rows": [_plain(row) for row in rows]})
        return [[_row(plain) for plain in self._known(key)["rows"]] for key in keys]

    def _missing(self, keys: Sequence[str]) -> list[int]:
        """Places of the requests without an answer, each request once."""
        first = {key: i for i, key in reversed(list(enumerate(keys)))}
        return sorted(i for key, i in first.items() if self._cache.get(key) is None)

    def _known(self, key: str) -> dict[str, Any]:
        answer = self._cache.get(key)
        if answer is None:
            raise VistaError(f"{self._cache.path}: an answer that was just written is gone")
        return answer


def _plain(row: Row) -> Any:
    """A row as JSON: log-probabilities as a list, less than that as an object."""
    if isinstance(row, Said):
        return {"label": row.label}
    if isinstance(row, Unanswered):
        return {"reason": row.reason}
    return [float(p) for p in row]


def _row(plain: Any) -> Row:
    if isinstance(plain, dict):
        return Said(plain["label"]) if "label" in plain else Unanswered(plain["reason"])
    return list(plain)
