"""Result lines: what a scored conversation looks like on disk, written and read back.

A line depends on its conversation, the models and the configuration alone: no timings, no host.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vista_local import __version__
from vista_local.config import ScoreConfig
from vista_local.errors import InputError
from vista_local.formats import show
from vista_local.labels import Label
from vista_local.readers import parse_conversation
from vista_local.schema import (
    SCHEMA,
    ClaimResult,
    Conversation,
    ConversationResult,
    Corrected,
    Evidence,
    GivenClaim,
    TurnResult,
    TurnStatus,
)
from vista_local.scoring import score_conversation

#: How much larger a shard is than the one before it, from one conversation up to `shard_size`: a run's first
#: result comes as soon as it can, and few shards are small.
SHARD_GROWTH = 4


def run_record(config: ScoreConfig, models: dict[str, Any]) -> dict[str, Any]:
    """Everything that a result depends on; `id` is a digest of the rest.

    Args:
        config: the run's settings.
        models: `Backend.describe()`.
    """
    shards = {"shard_growth": SHARD_GROWTH}  # with `shard_size` it says where a resumed run begins
    record = {"vista_local": __version__, "config": config.model_dump(mode="json"), **shards, **models}
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]
    return {"id": digest, **record}


def _claim(claim: ClaimResult) -> dict[str, Any]:
    data: dict[str, Any] = {"text": claim.text, "label": claim.label and claim.label.value, "probs": claim.probs}
    # Indices that don't apply to a source are left out.
    data["evidence"] = [
        {k: v for k, v in asdict(e).items() if v is not None and v is not False} for e in claim.evidence
    ]
    if claim.unscored is not None:
        data["unscored"] = claim.unscored
    if claim.corrected is not None:
        data["corrected"] = asdict(claim.corrected)
    return data


def result_line(result: ConversationResult, run: dict[str, Any], scored: Conversation | None = None) -> str:
    """One JSON line, without its line break.

    Args:
        scored: the conversation as it was read; its digest lets a resumed run know its input again.
    """
    score = score_conversation(result)
    turns = []
    for turn, turn_score in zip(result.turns, score.turns, strict=True):
        data: dict[str, Any] = {
            "index": turn.index,
            "status": turn.status.value,
            "claims": [_claim(c) for c in turn.claims],
            "vista_score": turn_score.vista_score,
            "strict": turn_score.strict,
            "safe": turn_score.safe,
            "coverage": turn_score.coverage,
            "windows": turn.windows,
            "chunks": turn.chunks,
            "memory": [list(pair) for pair in turn.memory],
            "omitted_memory": turn.omitted_memory,
            "unsupported_extraction": list(turn.unsupported_extraction),
            "notes": list(turn.notes),
            "recomputed": turn.recomputed,
        }
        if turn.unscored is not None:
            data["unscored"] = turn.unscored
        if turn.reviewed:
            data["reviewed"] = True
        turns.append(data)
    line: dict[str, Any] = {"schema": SCHEMA, "id": result.id, "turns": turns, "vista_score": score.vista_score}
    if result.error is not None:
        line["error"] = result.error
    if scored is not None:
        line["input_sha256"] = conversation_digest(scored)
    if result.conversation is not None:
        line["input"] = native_form(result.conversation)
    line["run"] = run
    return json.dumps(line, ensure_ascii=False)


def conversation_digest(conversation: Conversation) -> str:
    """SHA-256 of all that scoring reads of a conversation."""
    text = json.dumps({"id": conversation.id, **native_form(conversation)}, sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def native_form(conversation: Conversation) -> dict[str, Any]:
    """A conversation in the native input form, but for its id; `parse_conversation` reads it back."""
    turns = []
    for turn in conversation.turns:
        data: dict[str, Any] = {"role": turn.role.value, "text": turn.text}
        if turn.reference is not None:
            data["reference"] = list(turn.reference)
        if turn.claims is not None:
            data["claims"] = [_given(claim) for claim in turn.claims]
        turns.append(data)
    return {"turns": turns, "background": list(conversation.background)}


def _given(claim: GivenClaim) -> dict[str, Any]:
    data: dict[str, Any] = {"claim": claim.text}
    if claim.label is not None:
        data["label"] = claim.label.value
    if claim.evidence:
        data["evidence"] = list(claim.evidence)
    return data


def parse_result_line(line: str, where: str = "") -> ConversationResult:
    """Read a result line back.

    Raises:
        InputError: it is no result line of this schema, or a field holds something of another type.
    """
    try:
        data = json.loads(line)
        if data.get("schema") != SCHEMA:
            raise InputError(f"schema {show(data.get('schema'))}; accepted: {SCHEMA}", where)
        given = data.get("input")
        conversation = parse_conversation({"id": data["id"], **given}, where) if given is not None else None
        turns = tuple(_turn(t) for t in _list(data, "turns", dict))
        return ConversationResult(_text(data, "id"), turns, _text_or_none(data, "error"), conversation)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"not a result line: {error!r}", where) from error


def read_results(path: Path) -> Iterator[ConversationResult]:
    """The results of a file, one at a time.

    Raises:
        InputError: the file can't be read, or a line is no result line; names file and line.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                yield parse_result_line(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", str(path)) from error


def _turn(data: dict[str, Any]) -> TurnResult:
    return TurnResult(
        index=_count(data, "index"),
        status=TurnStatus(data["status"]),
        claims=tuple(_claim_result(c) for c in _list(data, "claims", dict)),
        unsupported_extraction=tuple(_list(data, "unsupported_extraction", str)),
        notes=tuple(_list(data, "notes", str)),
        windows=_count(data, "windows"),
        chunks=_count(data, "chunks"),
        omitted_memory=_count(data, "omitted_memory"),
        memory=tuple(_place(pair) for pair in _list(data, "memory", list)),
        unscored=_text_or_none(data, "unscored"),
        recomputed=_count(data, "recomputed") if "recomputed" in data else 0,  # files from before it was counted
        reviewed=_flag(data, "reviewed"),
    )


def _claim_result(data: dict[str, Any]) -> ClaimResult:
    probs = data["probs"]
    if not isinstance(probs, dict):
        raise _unexpected("probs", "an object of numbers", probs)
    for name in probs:
        _check_number(probs, name)
    evidence = tuple(_evidence(e) for e in _list(data, "evidence", dict))
    corrected = None if data.get("corrected") is None else _corrected(data["corrected"])
    return ClaimResult(_text(data, "text"), _label(data), probs, _text_or_none(data, "unscored"), evidence, corrected)


def _evidence(data: dict[str, Any]) -> Evidence:
    if data["source"] not in ("reference", "memory", "background"):
        raise _unexpected("source", "reference, memory or background", data["source"])
    _check_number(data, "score")
    _flag(data, "stated")
    for name in ("sentence", "turn", "claim"):
        if data.get(name) is not None:
            _count(data, name)
    return Evidence(**data)


def _corrected(data: dict[str, Any]) -> Corrected:
    if data["action"] not in ("label", "edit", "split", "add"):
        raise _unexpected("action", "label, edit, split or add", data["action"])
    return Corrected(data["action"], _text_or_none(data, "text"), _label(data))


# ---- fields of a line, each of its type: what reads results doesn't look again


_KINDS: dict[type, str] = {dict: "objects", str: "texts", list: "pairs"}


def _unexpected(name: str, accepted: str, found: object) -> ValueError:
    return ValueError(f"field {name!r}: {accepted} is expected, not {show(found)}")


def _text(data: dict[str, Any], name: str) -> str:
    if not isinstance(data[name], str):
        raise _unexpected(name, "text", data[name])
    return str(data[name])


def _text_or_none(data: dict[str, Any], name: str) -> str | None:
    return None if data.get(name) is None else _text(data, name)


def _label(data: dict[str, Any]) -> Label | None:
    return None if data["label"] is None else Label(data["label"])


def _count(data: dict[str, Any], name: str) -> int:
    if type(data[name]) is not int or data[name] < 0:
        raise _unexpected(name, "a whole number from 0 on", data[name])
    return int(data[name])


def _flag(data: dict[str, Any], name: str) -> bool:
    if not isinstance(data.get(name, False), bool):
        raise _unexpected(name, "true or false", data[name])
    return bool(data.get(name, False))


def _list(data: dict[str, Any], name: str, kind: type) -> list[Any]:
    """A list whose items are all of `kind`."""
    accepted = f"a list of {_KINDS[kind]}"
    if not isinstance(data[name], list):
        raise _unexpected(name, accepted, data[name])
    for item in data[name]:
        if not isinstance(item, kind):
            raise _unexpected(name, accepted, item)
    return list(data[name])


def _place(pair: list[Any]) -> tuple[int, int]:
    """A turn and a claim of the store; background facts are of turn -1."""
    turn, claim = pair
    for number in pair:
        if type(number) is not int:
            raise _unexpected("memory", "a list of pairs of whole numbers", number)
    return turn, claim


def _check_number(data: dict[str, Any], name: str) -> None:
    """NaN and its like, which Python's parser takes for JSON, are none."""
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _unexpected(name, "a number", value)
