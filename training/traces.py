"""What one side of a comparison says of each turn: teacher traces, student results and gold labels in one form.

Read are result lines of `vista-local score` and conversations in the native form with labelled
`claims`. A conversation may carry both the labels that a teacher gave to somebody else's claims
(`teacher_labels`, beside `claims`) and the claims that it found itself (`teacher_claims`). Turns are
named by conversation id and position in the input's turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training.trace_form import check_trace
from vista_local.errors import InputError
from vista_local.formats import show
from vista_local.labels import SAFE_LABELS, Label, parse_label
from vista_local.output import parse_result_line
from vista_local.schema import SCHEMA, TurnResult, TurnStatus

#: A claim and its label; `None` where it could not be labelled.
LabelledClaim = tuple[str, Label | None]
Claims = tuple[LabelledClaim, ...]


def strict(claims: Claims) -> bool:
    """Every claim is VERIFIED (true without claims)."""
    return all(label is Label.VERIFIED for _, label in claims)


def safe(claims: Claims) -> bool:
    """Every claim is harmless (true without claims)."""
    return all(label in SAFE_LABELS for _, label in claims)


@dataclass(frozen=True)
class SideTurn:
    """One turn as one side judged it.

    `own` are the claims that this side found, `given` the labels that it gave to given claims; a
    file that doesn't tell them apart holds the same in both. `failed` says why the turn has no verdict.
    """

    own: Claims
    given: Claims
    failed: str | None = None


@dataclass
class Side:
    """One file: its turns by conversation, and what making each of them took as far as it says.

    `given_claims`: whether its claims were given to it, where its lines say so.
    """

    path: str
    conversations: dict[str, dict[int, SideTurn]] = field(default_factory=dict)
    usage_of: dict[str, dict[str, float]] = field(default_factory=dict)
    given_claims: bool | None = None

    @property
    def turns(self) -> int:
        """Number of judged turns."""
        return sum(map(len, self.conversations.values()))

    def usage(self, conversations: Iterable[str] | None = None) -> dict[str, float]:
        """What these conversations took, added up; by default all."""
        total: dict[str, float] = {}
        for name in self.usage_of if conversations is None else conversations:
            for key, value in self.usage_of.get(name, {}).items():
                total[key] = total.get(key, 0.0) + value
        return total


#: Fields of a record's `usage`, as `training.collect` writes them, that are added up, and what they are called
#: here: calls run side by side, so the sum of their times is no time by the clock.
USAGE_FIELDS = {
    "calls": "calls",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost",
    "seconds": "seconds_of_calls",
}


def read_side(path: Path, *, gold: bool = False) -> Side:
    """Read one side's file.

    Args:
        path: JSON Lines of result lines or conversations.
        gold: whether the labels under `claims` are wanted even where a teacher's labels stand beside them.

    Raises:
        InputError: the file can't be read, a line is cut off or of neither form, an id occurs twice, a
            label is unknown or missing (in gold also an unscored claim or turn), or traces were made with
            another prompt version; names the line.
    """
    side = Side(str(path))
    try:
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    _add(side, line, f"{path}, line {number}", gold)
    except OSError as error:
        raise InputError(f"cannot be read: {error}", str(path)) from error
    if not side.turns:
        raise InputError("no turn with labelled claims", str(path))
    return side


def _add(side: Side, data: bytes, where: str, gold: bool) -> None:
    try:
        line = data.decode("utf-8")
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"no JSON (is the line cut off?): {error}", where) from error
    if not isinstance(record, dict) or "id" not in record:
        raise InputError("a result line or a conversation with an id is expected", where)
    identifier = str(record["id"])
    if identifier in side.conversations:
        raise InputError(f"conversation {identifier!r} is there twice", where)
    check_trace(record, where)
    if record.get("schema") == SCHEMA:
        result = parse_result_line(line, where)
        scored = (t for t in result.turns if t.status is TurnStatus.SCORED)
        turns = {t.index: _result_turn(t, f"{where}, turn {t.index + 1}", gold) for t in scored}
    else:
        turns = _conversation_turns(record, where, gold)
    side.conversations[identifier] = turns
    side.usage_of[identifier] = _usage(record.get("usage"))
    config = _config(record)
    if config.get("oracle_memory") and not gold:
        raise InputError("scored with oracle_memory: its memory held the gold labels, so it shows nothing", where)
    if isinstance(config.get("given_claims"), bool):
        side.given_claims = config["given_claims"]


def _result_turn(turn: TurnResult, at: str, gold: bool) -> SideTurn:
    if gold and turn.unscored is not None:
        raise InputError(f"a turn that could not be scored is no gold: {turn.unscored}", at)
    for number, claim in enumerate(turn.claims, 1):
        if gold and claim.label is None:
            raise InputError(f"gold needs a label, {show(claim.text)} is unscored", f"{at}, claim {number}")
    claims = tuple((c.text, c.label) for c in turn.claims)
    return SideTurn(claims, claims, turn.unscored)


def _conversation_turns(record: Mapping[str, Any], where: str, gold: bool) -> dict[int, SideTurn]:
    turns = record.get("turns")
    if not isinstance(turns, list):
        raise InputError("a list of turns is expected under 'turns'", where)
    judged: dict[int, SideTurn] = {}
    for index, turn in enumerate(turns):
        at = f"{where}, turn {index + 1}"
        if not isinstance(turn, dict):
            raise InputError(f"an object is expected, not {turn!r}", at)
        if turn.get("claims") is None:
            continue
        claims = _claims(turn["claims"], f"{at}, field 'claims'", gold)
        if gold:
            judged[index] = SideTurn(claims, claims)
            continue
        given, own = claims, claims
        if "teacher_labels" in turn:
            given = _relabelled(claims, turn["teacher_labels"], f"{at}, field 'teacher_labels'")
            own = given
        if "teacher_claims" in turn:
            own = _claims(turn["teacher_claims"], f"{at}, field 'teacher_claims'", gold)
        judged[index] = SideTurn(own, given, turn.get("unscored"))
    return judged


def _label(value: object, at: str, *, needed: bool) -> Label | None:
    if value is None and not needed:
        return None
    if not isinstance(value, str):
        raise InputError(f"a label is expected, not {value!r}", at)
    try:
        return parse_label(value)
    except ValueError as error:
        raise InputError(str(error), at) from error


def _claims(value: object, at: str, needed: bool) -> Claims:
    if not isinstance(value, list):
        raise InputError(f"a list of claims is expected, not {value!r}", at)
    claims: list[LabelledClaim] = []
    for number, claim in enumerate(value, 1):
        here = f"{at}, claim {number}"
        if not isinstance(claim, dict) or not isinstance(claim.get("claim"), str):
            raise InputError("an object with 'claim' and 'label' is expected", here)
        claims.append((claim["claim"], _label(claim.get("label"), here, needed=needed)))
    return tuple(claims)


def _relabelled(claims: Claims, labels: object, at: str) -> Claims:
    if not isinstance(labels, list) or len(labels) != len(claims):
        raise InputError(f"a label for each of the {len(claims)} claims is expected, not {labels!r}", at)
    return tuple((text, _label(label, at, needed=False)) for (text, _), label in zip(claims, labels, strict=True))


def _config(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings that a result line or a trace was made with; empty where it doesn't say."""
    trace = record.get("trace")
    run = trace.get("run") if isinstance(trace, dict) else record.get("run")
    config = run.get("config") if isinstance(run, dict) else None
    return config if isinstance(config, dict) else {}


def _usage(usage: object) -> dict[str, float]:
    """A record's usage; what is no number is not counted."""
    if not isinstance(usage, dict):
        return {}
    return {
        name: float(usage[key])
        for key, name in USAGE_FIELDS.items()
        if isinstance(usage.get(key), int | float) and not isinstance(usage[key], bool)
    }
