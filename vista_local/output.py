"""Result lines: what a scored conversation looks like on disk, written and read back.

A line depends on its conversation, the models and the configuration alone: no timings, no host.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from vista_local import __version__
from vista_local.config import ScoreConfig
from vista_local.errors import InputError
from vista_local.labels import Label
from vista_local.schema import SCHEMA, ClaimResult, ConversationResult, Evidence, TurnResult, TurnStatus
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
    return data


def result_line(result: ConversationResult, run: dict[str, Any]) -> str:
    """One JSON line, without its line break."""
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
        }
        if turn.unscored is not None:
            data["unscored"] = turn.unscored
        turns.append(data)
    line: dict[str, Any] = {"schema": SCHEMA, "id": result.id, "turns": turns, "vista_score": score.vista_score}
    if result.error is not None:
        line["error"] = result.error
    line["run"] = run
    return json.dumps(line, ensure_ascii=False)


def parse_result_line(line: str, where: str = "") -> ConversationResult:
    """Read a result line back.

    Raises:
        InputError: it is no result line of this schema.
    """
    try:
        data = json.loads(line)
        if data.get("schema") != SCHEMA:
            raise InputError(f"schema {data.get('schema')!r}; accepted: {SCHEMA}", where)
        return ConversationResult(data["id"], tuple(_turn(t) for t in data["turns"]), data.get("error"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"not a result line: {error!r}", where) from error


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
    )
