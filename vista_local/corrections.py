"""What reviewers change about results: read, applied to a result file, and used as gold or training data.

A corrections file (the report's "export") has one line for each corrected conversation:

    {"schema": "vista-local-corrections/1", "run": "<id of the results' run>", "id": "c1", "input": {...},
     "turns": [{"index": 1, "was": [{"text", "label"}], "claims": [{"text", "label", "from": 0}]}]}

A turn that is listed was reviewed as a whole. `was` holds the claims as the reviewer found them, `claims` as the
reviewer left them, and `from` the number of the claim that one comes from: the same text and label is a claim that
was found right, two claims from one are a split, none a deletion, `null` an addition. So a line says the same
whatever order the changes were made in, and can be checked against the results it is applied to.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vista_local.errors import InputError
from vista_local.formats import show
from vista_local.labels import Label, parse_label
from vista_local.output import parse_result_line
from vista_local.readers import open_conversations, parse_conversation
from vista_local.schema import (
    SCHEMA,
    Conversation,
    ConversationResult,
    GivenClaim,
    Role,
)

CORRECTIONS_SCHEMA = "vista-local-corrections/1"

_SURROGATE = re.compile("[\ud800-\udfff]")

#: Gold claims by conversation and turn.
Gold = dict[str, dict[int, tuple[GivenClaim, ...]]]


@dataclass(frozen=True)
class CorrectedClaim:
    """A claim as the reviewer left it; `origin` is the number of the claim it comes from, `None` for a new one."""

    text: str
    label: Label | None
    origin: int | None


@dataclass(frozen=True)
class TurnCorrection:
    """A reviewed turn: its claims before (text and label) and after."""

    index: int
    was: tuple[GivenClaim, ...]
    claims: tuple[CorrectedClaim, ...]

    @property
    def given(self) -> tuple[GivenClaim, ...]:
        """The claims as the reviewer left them, in the form of an input."""
        return tuple(GivenClaim(c.text, c.label) for c in self.claims)


@dataclass(frozen=True)
class Correction:
    """The reviewed turns of one conversation. `where` is its place, for messages."""

    id: str
    run: str
    turns: tuple[TurnCorrection, ...]
    conversation: Conversation | None
    where: str


def json_line(value: object) -> str:
    """One JSON line that any encoding can hold: lone surrogates are written as escapes."""
    return escape_surrogates(json.dumps(value, ensure_ascii=False))


def escape_surrogates(text: str) -> str:
    """JSON text with lone surrogates, which no encoding can hold, as `\\uXXXX` escapes."""
    return _SURROGATE.sub(lambda m: f"\\u{ord(m.group()):04x}", text)


# --- reading --------------------------------------------------------------------------------------


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a UTF-8 file that are not blank, each with its place for messages.

    Raises:
        InputError: the file can't be read.
    """
    try:
        with open(path, encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield line, f"{path}, line {number}"
    except UnicodeDecodeError as error:
        raise InputError(f"is not UTF-8: {error.reason}", str(path)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from error


def read_corrections(path: Path) -> list[Correction]:
    """The corrections of a file.

    Raises:
        InputError: the file can't be read, a line is no correction, or two lines correct one turn; names the line.
    """
    corrections = [_correction(line, where) for line, where in text_lines(path)]
    if not corrections:
        raise InputError("there are no corrections in it", str(path))
    return corrections


def _correction(line: str, where: str) -> Correction:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"invalid JSON: {error}", where) from None
    if not isinstance(data, dict) or data.get("schema") != CORRECTIONS_SCHEMA:
        found = show(data.get("schema")) if isinstance(data, dict) else show(data)
        raise InputError(f"no correction: schema {found}; accepted: {CORRECTIONS_SCHEMA}", where)
    name, run = _field(data, "id", str, where), _field(data, "run", str, where)
    turns = tuple(_turn_correction(t, where) for t in _field(data, "turns", list, where))
    if len({t.index for t in turns}) != len(turns):
        raise InputError("a turn is corrected twice", f"{where}, field 'turns'")
    given = None if data.get("input") is None else _field(data, "input", dict, where)
    conversation = None if given is None else parse_conversation({"id": name, **given}, f"{where}, field 'input'")
    return Correction(name, run, turns, conversation, where)


def _turn_correction(data: object, where: str) -> TurnCorrection:
    if not isinstance(data, dict):
        raise InputError(f"an object is expected, not {show(data)}", f"{where}, field 'turns'")
    index = _field(data, "index", int, f"{where}, field 'turns'")
    at = f"{where}, turn {index}"
    was = tuple(_claim(c, f"{at}, field 'was', claim {k}") for k, c in enumerate(_field(data, "was", list, at)))
    claims = []
    for number, item in enumerate(_field(data, "claims", list, at)):
        here = f"{at}, claim {number}"
        claim = _claim(item, here)
        origin = item.get("from")
        if origin is not None and (type(origin) is not int or not 0 <= origin < len(was)):
            raise InputError(f"{show(origin)} is none of the {len(was)} claims in 'was'", f"{here}, field 'from'")
        if claim.label is None and (origin is None or was[origin] != claim):
            raise InputError("a label is missing", f"{here}, field 'label'")
        claims.append(CorrectedClaim(claim.text, claim.label, origin))
    return TurnCorrection(index, was, tuple(claims))


def _claim(data: object, where: str) -> GivenClaim:
    if not isinstance(data, dict):
        raise InputError(f"an object is expected, not {show(data)}", where)
    text = _field(data, "text", str, where)
    if not text.strip():
        raise InputError("the claim is empty", f"{where}, field 'text'")
    label = data.get("label")
    try:
        return GivenClaim(text, None if label is None else parse_label(label))
    except (ValueError, TypeError) as error:
        raise InputError(str(error)[:300], f"{where}, field 'label'") from None


def _field(data: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in data:
        raise InputError("this field is missing", f"{where}, field '{name}'")
    if type(data[name]) is not kind:
        raise InputError(f"{kind.__name__} is expected, not {show(data[name])}", f"{where}, field '{name}'")
    return data[name]


def collect(corrections: Iterable[Correction]) -> dict[str, list[Correction]]:
    """Corrections by conversation.

    Raises:
        InputError: two of them correct one turn differently.
    """
    by_id: dict[str, list[Correction]] = {}
    for correction in corrections:
        for other in by_id.setdefault(correction.id, []):
            theirs = {t.index: t for t in other.turns}
            for turn in correction.turns:
                if turn.index in theirs and theirs[turn.index] != turn:
                    message = f"turn {turn.index} of {show(correction.id)} is corrected differently in {other.where}"
                    raise InputError(message, correction.where)
        by_id[correction.id].append(correction)
    return by_id


# --- gold and training data -----------------------------------------------------------------------


def reviewed_claims(result: ConversationResult) -> dict[int, tuple[GivenClaim, ...]]:
    """Claims of the reviewed turns of a result, by turn; a turn with an unlabelled claim is no gold."""
    return {
        t.index: tuple(GivenClaim(c.text, c.label) for c in t.claims)
        for t in result.turns
        if t.reviewed and all(c.label is not None for c in t.claims)
    }


def labelled_claims(conversation: Conversation) -> dict[int, tuple[GivenClaim, ...]]:
    """Claims of those turns of an input on which every claim has a label, by turn."""
    return {
        i: t.claims
        for i, t in enumerate(conversation.turns)
        if t.claims is not None and all(c.label is not None for c in t.claims)
    }


def result_gold(result: ConversationResult) -> dict[int, tuple[GivenClaim, ...]]:
    """Gold that a result line carries itself: reviewed turns, and labels of the input on the others."""
    own = labelled_claims(result.conversation) if result.conversation else {}
    return own | reviewed_claims(result)


def with_claims(conversation: Conversation, claims: Mapping[int, tuple[GivenClaim, ...]]) -> Conversation:
    """The conversation with these claims on its turns, and none on the others."""
    turns = (replace(t, claims=claims.get(i)) for i, t in enumerate(conversation.turns))
    return replace(conversation, turns=tuple(turns))


def _gold_parts(path: Path) -> Iterator[tuple[str, Conversation | None, dict[int, tuple[GivenClaim, ...]]]]:
    """(id, conversation if it is there, gold claims by turn) from corrections, results or an input file."""
    try:
        with open(path, "rb") as stream:
            head = stream.readline(1 << 16)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", str(path)) from error
    if CORRECTIONS_SCHEMA.encode() in head:
        for name, corrections in collect(read_corrections(path)).items():
            claims = {t.index: t.given for c in corrections for t in c.turns}
            whole = {i: given for i, given in claims.items() if all(c.label is not None for c in given)}
            yield name, next((c.conversation for c in corrections if c.conversation), None), whole
    elif f'"schema": "{SCHEMA}"'.encode() in head:
        for line, where in text_lines(path):
            result = parse_result_line(line, where)
            yield result.id, result.conversation, result_gold(result)
    else:
        for conversation in open_conversations(path):
            yield conversation.id, conversation, labelled_claims(conversation)


def gold_claims(path: Path) -> Gold:
    """Gold labels of a file: corrections, results (merged, or of an input with labels), or conversations with labels.

    Raises:
        InputError: the file can't be read, or has no gold label.
    """
    gold = {name: claims for name, _, claims in _gold_parts(path) if claims}
    if not gold:
        raise _no_gold(path)
    return gold


def gold_conversations(path: Path) -> list[Conversation]:
    """The conversations of a gold file (see `gold_claims`) with labelled claims on the turns that have gold.

    Turns without gold have `claims=None`; conversations without any such turn are left out.

    Raises:
        InputError: the file can't be read, has no gold label, a line lacks its conversation (`--compact`), or
            has gold for a turn that isn't there.
    """
    conversations = []
    for name, conversation, claims in _gold_parts(path):
        if not claims:
            continue
        if conversation is None:
            raise InputError(
                f"{show(name)} lacks its conversation; score without --compact, or apply corrections to results that "
                "have it (vista-local merge ... --as-data)",
                str(path),
            )
        for index in claims:
            if not 0 <= index < len(conversation.turns) or conversation.turns[index].role is not Role.ASSISTANT:
                raise InputError(f"{show(name)} has no assistant turn {index}", str(path))
        conversations.append(with_claims(conversation, claims))
    if not conversations:
        raise _no_gold(path)
    return conversations


def _no_gold(path: Path) -> InputError:
    return InputError(
        "holds no gold label; accepted: exported corrections, a merged result file, or conversations whose claims "
        "have labels",
        str(path),
    )
