"""Result lines: what a scored conversation looks like on disk, written and read back.

A line depends on its conversation, the models and the configuration alone: no timings, no host.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vista_local import __version__
from vista_local.config import ScoreConfig
from vista_local.errors import InputError
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


def run_record(config: ScoreConfig, models: dict[str, Any]) -> dict[str, Any]:
    """Everything that a result depends on; `id` is a digest of the rest.

    Args:
        config: the run's settings.
        models: `Backend.describe()`.
    """
    record = {"vista_local": __version__, "config": config.model_dump(mode="json"), **models}
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
        InputError: it is no result line of this schema.
    """
    try:
        data = json.loads(line)
        if data.get("schema") != SCHEMA:
            raise InputError(f"schema {data.get('schema')!r}; accepted: {SCHEMA}", where)
        given = data.get("input")
        conversation = parse_conversation({"id": data["id"], **given}, where) if given is not None else None
        return ConversationResult(data["id"], tuple(_turn(t) for t in data["turns"]), data.get("error"), conversation)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
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
        index=data["index"],
        status=TurnStatus(data["status"]),
        claims=tuple(
            ClaimResult(
                c["text"],
                Label(c["label"]) if c["label"] else None,
                c["probs"],
                c.get("unscored"),
                tuple(Evidence(**e) for e in c["evidence"]),
                _corrected(c.get("corrected")),
            )
            for c in data["claims"]
        ),
        unsupported_extraction=tuple(data["unsupported_extraction"]),
        notes=tuple(data["notes"]),
        windows=data["windows"],
        chunks=data["chunks"],
        omitted_memory=data["omitted_memory"],
        memory=tuple((turn, claim) for turn, claim in data["memory"]),
        unscored=data.get("unscored"),
        recomputed=data.get("recomputed", 0),  # files from before it was counted
        reviewed=data.get("reviewed", False),
    )


def _corrected(data: dict[str, Any] | None) -> Corrected | None:
    if data is None:
        return None
    return Corrected(data["action"], data["text"], Label(data["label"]) if data["label"] else None)
