"""From one parsed JSON value to one `Conversation`: the three input forms, and nothing about files.

Forms: **native** (`turns` with `role`, `text`, `reference`, `claims`), **vista** (the VISTA repository's
lists of turns with `role`, `utterance`, `retrieved_document`, `human_claims`) and **chat** (`messages`
with `role`, `content`, and retrieved text in `context` or `documents` of message or record). Every
fault is an `InputError` whose `where` ends in turn and field; turns count from 1 in messages, like
lines. Nothing here recurses, so depth of nesting is harmless.

Rules that the forms themselves leave open:

- System (developer) messages, and assistant messages that only call tools (no content), are no
  turns: positions in `Conversation.turns` don't count them.
- A tool (function) message is retrieved text for the next assistant turn, and so is a `context` or
  `documents` field of a chat's user message. It is added to the turn's own or the record's text.
- A chat record's `context` or `documents` hold for each assistant turn without such a key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from vista_local.errors import InputError
from vista_local.labels import Label, parse_label
from vista_local.schema import Conversation, GivenClaim, Role, Turn, as_passages

JsonObject: TypeAlias = dict[str, object]
_Passages: TypeAlias = tuple[str, ...] | None

#: At most so many ignored fields are named; hostile input may have a new one in every line.
MAX_FIELDS = 50
_SURROGATE = re.compile("[\ud800-\udfff]")
_DOCUMENT_TEXT = ("text", "content", "page_content")


class Format(StrEnum):
    """The forms a conversation can have in the input."""

    NATIVE = "native"
    VISTA = "vista"
    CHAT = "chat"


class Speaker(StrEnum):
    """What a role name can stand for; `Role` has those of them that hold turns."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


_KNOWN_ROLES: dict[Speaker, str] = {
    Speaker.USER: "user human apprentice customer prompter client student",
    Speaker.ASSISTANT: "assistant gpt wizard agent bot ai model system-agent",
    Speaker.SYSTEM: "system developer",
    Speaker.TOOL: "tool function",
}


@dataclass(frozen=True)
class _Fields:
    """Names of the fields of one form. `rich`: texts may be lists of parts, passages may be objects."""

    turns: str
    text: str
    references: tuple[str, ...]
    claims: str
    shared: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()
    rich: bool = True


_CONTEXT, _TOOL_CALLS = ("context", "documents"), ("tool_calls", "function_call")
_FIELDS: dict[Format, _Fields] = {
    Format.NATIVE: _Fields("turns", "text", ("reference",), "claims", rich=False),
    Format.VISTA: _Fields("turns", "utterance", ("retrieved_document",), "human_claims"),
    Format.CHAT: _Fields(
        "messages", "content", (*_CONTEXT, "reference"), "claims", _CONTEXT, ("name", "tool_call_id", *_TOOL_CALLS)
    ),
}


class Notes:
    """What the reader passed over: said once for a whole input, not once a record."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._said: set[str] = set()
        self._fields: dict[str, None] = {}
        self._more_fields = False

    def once(self, key: str, message: str) -> None:
        """Pass on `message` unless one with this key was."""
        if key not in self._said and len(self._said) < MAX_FIELDS:
            self._said.add(key)
            self._warn(f"{message}, here and in what follows")

    def ignored(self, found: Collection[str], *known: str) -> None:
        """Remember the fields of an object that nothing reads."""
        for name in found:
            if name not in known and name not in self._fields:
                self._more_fields = len(self._fields) >= MAX_FIELDS
                if not self._more_fields:
                    self._fields[name] = None

    def finish(self) -> None:
        """Name the ignored fields, in one message."""
        if self._fields:
            names = ", ".join(_plain(name) for name in self._fields)
            self._warn(f"ignored fields: {names}{' and more' if self._more_fields else ''}")
            self._fields.clear()


def _plain(name: str) -> str:
    """A field's name for a terminal: short, and quoted with escapes where it holds control characters."""
    name = _SURROGATE.sub("\ufffd", name)[:60]
    return name if name.isprintable() else repr(name)


def role_table(extra: Mapping[str, str] | None = None) -> dict[str, Speaker]:
    """The known role names, with `extra` (role name -> user, assistant, system or tool) over them.

    Raises:
        InputError: `extra` maps to something else.
    """
    table = {name: speaker for speaker, names in _KNOWN_ROLES.items() for name in names.split()}
    for name, target in (extra or {}).items():
        try:
            table[_role_key(name)] = Speaker(_role_key(target))
        except ValueError:
            raise InputError(f"{name!r} is mapped to {target!r}; accepted: {', '.join(Speaker)}", "roles") from None
    return table


def detect(value: object) -> Format | None:
    """The form of a record, or `None` where it has no sign of any."""
    if isinstance(value, dict):
        if "turns" not in value:
            return Format.CHAT if "messages" in value else None
        first = _first_object(value["turns"])
        return Format.VISTA if "utterance" in first and "text" not in first else Format.NATIVE
    if isinstance(value, list) and value:
        first = _first_object(value)
        return next((form for form in Format if _FIELDS[form].text in first), Format.VISTA)
    return None


def is_list_of_turns(value: object) -> bool:
    """Whether a list is one conversation (its items are turns) rather than a list of conversations."""
    first = _first_object(value)
    return any(n in first for n in ("role", "text", "utterance", "content")) and detect(first) is None


def convert(
    value: object, form: Format, where: str, number: int, roles: Mapping[str, Speaker], notes: Notes
) -> Conversation:
    """Read one record (an object, or a list of turns) of the given form.

    `where` is its place, for messages; `number` makes the id of one without; `roles` comes
    from `role_table`; what is passed over goes to `notes`.

    Raises:
        InputError: a field is missing, of the wrong type, or holds an unknown role or label.
    """
    fields = _FIELDS[form]
    record = _object({fields.turns: value} if isinstance(value, list) else value, where)
    notes.ignored(record, "id", "background", fields.turns, *fields.shared)
    items = _need(record, fields.turns, where)
    shared = _reference(record, fields.shared, fields, where, notes)
    at = f"{where}, field '{fields.turns}'"
    if not isinstance(items, list):
        raise InputError(f"a list of turns is expected, not {show(items)}", at)
    if not (turns := _turns(items, fields, where, roles, notes, shared)):
        raise InputError("the conversation has no turns", at)
    background = _passages(record.get("background"), False, f"{where}, field 'background'", notes)
    return Conversation(_identifier(record.get("id"), number, where, notes), turns, background)


def _turns(
    items: list[object], fields: _Fields, where: str, roles: Mapping[str, Speaker], notes: Notes, shared: _Passages
) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    waiting: list[str] = []  # retrieved text on its way to the next assistant turn
    for number, item in enumerate(items, 1):
        at = f"{where}, turn {number}"
        message = _object(item, at)
        notes.ignored(message, "role", fields.text, fields.claims, *fields.references, *fields.protocol)
        speaker = _speaker(_need(message, "role", at), roles, f"{at}, field 'role'", notes)
        if speaker is Speaker.SYSTEM:
            notes.once("system", f"{at}: system messages are no turns and are left out")
            continue
        calls_tools = bool(fields.protocol) and any(message.get(name) for name in _TOOL_CALLS)
        if calls_tools and speaker is Speaker.ASSISTANT and message.get(fields.text) is None:
            continue
        text = _text(_need(message, fields.text, at), fields, f"{at}, field '{fields.text}'", notes)
        reference = _reference(message, fields.references, fields, at, notes)
        claims = _claims(message.get(fields.claims), f"{at}, field '{fields.claims}'", notes)
        if speaker is Speaker.TOOL:
            waiting += [*as_passages(text), *(reference or ())]
        elif speaker is Speaker.USER:
            waiting += (reference or ()) if fields.shared else ()
            if claims or (reference and not fields.shared):
                notes.once("user", f"{at}: references and claims of user turns are left out")
            turns.append(Turn(Role.USER, text))
        else:
            if not any(name in message for name in fields.references):
                reference = shared
            if waiting:
                reference = (*(reference or ()), *waiting)
                waiting = []
            turns.append(Turn(Role.ASSISTANT, text, reference, claims))
    return tuple(turns)


def _speaker(role: object, roles: Mapping[str, Speaker], at: str, notes: Notes) -> Speaker:
    if speaker := roles.get(_role_key(_string(role, at, notes))):
        return speaker
    remedy = "map others by option: --role moderator=assistant, or roles={'moderator': 'assistant'}"
    raise InputError(f"unknown role {show(role)}; accepted: {', '.join(sorted(roles))}; {remedy}", at)


def _text(content: object, fields: _Fields, at: str, notes: Notes) -> str:
    """A turn's text; where the form allows it, the text parts of a list, one below the other."""
    if not (isinstance(content, list) and fields.rich):
        return _string(content, at, notes)
    pieces: list[str] = []
    for number, part in enumerate(content, 1):
        here = f"{at}, part {number}"
        if isinstance(part, dict) and (kind := part.get("type", "text")) != "text":
            notes.once(f"part {show(kind)}", f"{here}: content of type {show(kind)} is left out")
            continue
        pieces.append(_string(_need(part, "text", here) if isinstance(part, dict) else part, here, notes))
    return "\n".join(pieces)


def _reference(holder: JsonObject, names: tuple[str, ...], fields: _Fields, at: str, notes: Notes) -> _Passages:
    """Passages of all `names` in `holder`; `None` where each of them is missing or "N/A"."""
    found: _Passages = None
    for name in names:
        value = holder.get(name)
        if name in holder and not (isinstance(value, str) and value.strip().upper() == "N/A"):
            found = (*(found or ()), *_passages(value, fields.rich, f"{at}, field '{name}'", notes))
    return found


def _passages(value: object, rich: bool, at: str, notes: Notes) -> tuple[str, ...]:
    if value is None or isinstance(value, str):
        return as_passages(value if value is None else _string(value, at, notes))
    items = [value] if isinstance(value, dict) and rich else value
    if not isinstance(items, list):
        raise InputError(f"text, a list of texts or null is expected, not {show(value)}", at)
    passages: list[str] = []
    for number, item in enumerate(items, 1):
        here = f"{at}, passage {number}"
        if isinstance(item, dict) and rich:
            if (name := next((n for n in _DOCUMENT_TEXT if n in item), None)) is None:
                raise InputError(f"a document needs one of {', '.join(_DOCUMENT_TEXT)}; {found_fields(item)}", here)
            notes.ignored(item, name)
            item = item[name]
        passages.append(_string(item, here, notes))
    return as_passages(passages)


def _claims(value: object, at: str, notes: Notes) -> tuple[GivenClaim, ...] | None:
    """Claims as texts, as objects, or (tolerated) as [text, label] pairs; `None` where there is no list."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise InputError(f"a list of claims is expected, not {show(value)}", at)
    claims: list[GivenClaim] = []
    for number, item in enumerate(value, 1):
        here = f"{at}, claim {number}"
        claim: JsonObject = {"claim": item}
        if isinstance(item, dict):
            claim = item
        elif isinstance(item, list) and len(item) == 2:
            claim = {"claim": item[0], "label": item[1]}
        notes.ignored(claim, "claim", "label", "evidence")
        text = _string(_need(claim, "claim", here), here, notes)
        if not text.strip():
            raise InputError("the claim is empty", here)
        label = _label(claim.get("label"), f"{here}, field 'label'", notes)
        claims.append(GivenClaim(text, label, _evidence(claim.get("evidence"), f"{here}, field 'evidence'", notes)))
    return tuple(claims)


def _label(value: object, at: str, notes: Notes) -> Label | None:
    try:
        return None if value is None else parse_label(_string(value, at, notes))
    except ValueError as error:
        raise InputError(str(error)[:300], at) from None


def _evidence(value: object, at: str, notes: Notes) -> tuple[int | str, ...]:
    if value is not None and not isinstance(value, list):
        raise InputError(f"a list of sentence numbers or names is expected, not {show(value)}", at)
    # bool is an int to Python; it is no sentence number.
    return tuple(piece if type(piece) is int else _string(piece, at, notes) for piece in value or ())


def _identifier(value: object, number: int, where: str, notes: Notes) -> str:
    if value is None:
        return f"conv-{number:06d}"
    identifier = str(value) if type(value) is int else _string(value, f"{where}, field 'id'", notes)
    if identifier.strip():
        return identifier
    raise InputError("the id is empty", f"{where}, field 'id'")


def _object(value: object, where: str) -> JsonObject:
    if isinstance(value, dict):
        return value
    raise InputError(f"an object is expected, not {show(value)}", where)


def _need(holder: JsonObject, name: str, where: str) -> object:
    if name not in holder:
        raise InputError(f"this field is missing; {found_fields(holder)}", f"{where}, field '{name}'")
    return holder[name]


def _string(value: object, at: str, notes: Notes) -> str:
    """`value` if it is text; lone surrogates, which JSON can write but no encoding can, are replaced."""
    if not isinstance(value, str):
        raise InputError(f"text is expected, not {show(value)}", at)
    if not _SURROGATE.search(value):
        return value
    notes.once("surrogates", f"{at}: lone surrogates are replaced by U+FFFD")
    return _SURROGATE.sub("\ufffd", value)


def _first_object(value: object) -> JsonObject:
    """The first item of a list if it is an object, otherwise an empty one."""
    return value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else {}


def _role_key(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def found_fields(holder: JsonObject) -> str:
    """Field names for a message; few and short, since they are the user's."""
    names = (repr(name[:40]) if isinstance(name, str) else show(name) for name in list(holder)[:8])
    return "found " + (", ".join(names) or "no fields")


def show(value: object) -> str:
    """A value for a message: never long, and never deep (a repr of nested lists could overflow the stack)."""
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    try:
        return json.dumps(value)[:60]
    except (TypeError, ValueError, RecursionError):  # from Python, not from JSON: bytes, a pandas Timestamp
        return f"a value of type {type(value).__name__}"
