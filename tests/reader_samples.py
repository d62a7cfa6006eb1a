"""Records in the three forms, and short ways to read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vista_local.errors import InputError
from vista_local.readers import parse_conversation, read_conversations
from vista_local.schema import Conversation, Role, Turn

Json = Any
Write = Callable[..., Path]

USER = {"role": "user", "text": "Is the bridge open?"}
ANSWER = {"role": "assistant", "text": "Yes, since May.", "reference": "The bridge opened in May."}
NATIVE = {"id": "a", "turns": [USER, ANSWER]}
READ = (
    Turn(Role.USER, "Is the bridge open?"),
    Turn(Role.ASSISTANT, "Yes, since May.", ("The bridge opened in May.",)),
)
TWO = [NATIVE, NATIVE | {"id": "b"}]
Q = {"role": "user", "content": "q"}
VISTA = [
    {"role": "apprentice", "utterance": "Who built it?"},
    {
        "role": "wizard",
        "utterance": "Ana Reyes, I like it.",
        "retrieved_document": "Ana Reyes built it.",
        "human_claims": [
            "Ana Reyes built it.",
            {"claim": "The wizard likes it.", "label": "Subjective"},
            ["It stands.", "VERIFIED"],
        ],
    },
    {"role": "wizard", "utterance": "Bye.", "retrieved_document": "N/A"},
]


def with_answer(**fields: Json) -> Json:
    return {"id": "a", "turns": [{"role": "assistant", "text": "Yes."} | fields]}


def chat(*messages: Json, **fields: Json) -> Json:
    return {"id": "a", "messages": list(messages)} | fields


def one(record: Json, **options: Json) -> Conversation:
    return parse_conversation(record, **options)


def references(record: Json) -> list[tuple[str, ...] | None]:
    return [turn.reference for turn in one(record).turns if turn.role is Role.ASSISTANT]


def fault(source: Any, **options: Json) -> InputError:
    with pytest.raises(InputError) as caught:
        list(read_conversations(source, **options))
    str(caught.value).encode()  # printable
    return caught.value
