"""Conversations with the teacher's claims, small enough to train a tiny model on."""

from __future__ import annotations

from typing import Any


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "text": text}


def reply(text: str, reference: Any, *claims: tuple[str, str]) -> dict[str, Any]:
    labelled = [{"claim": claim, "label": label, "evidence": []} for claim, label in claims]
    return {"role": "assistant", "text": text, "reference": reference, "claims": labelled}


CONVERSATIONS: list[dict[str, Any]] = [
    {
        "id": "mill",
        "turns": [
            user("Who built the old mill?"),
            reply(
                "I love mills! Anna Berg built it in 1912, and it burned down in 1930.",
                ["Anna Berg built the mill on the river in 1912.", "It burned down in the summer of 1921."],
                ("The assistant loves mills.", "OUT_OF_SCOPE"),
                ("Anna Berg built the mill in 1912.", "VERIFIED"),
                ("The mill burned down in 1930.", "CONTRADICTED"),
            ),
            user("Was she paid for it?"),
            reply(
                "I don't know. She had two sons.",
                [],
                ("The assistant doesn't know whether Anna Berg was paid.", "ABSTENTION"),
                ("Anna Berg had two sons.", "LACKING_EVIDENCE"),
            ),
            user("Thanks!"),
            reply("You're welcome.", None),
        ],
    },
    {
        "id": "harbour",
        "turns": [
            user("Is the harbour large?"),
            reply(
                "It has three piers, and the longest is 240 metres long.",
                "The harbour of the town has three piers. The longest pier is 240 metres long.",
                ("The harbour has three piers.", "VERIFIED"),
                ("The longest pier is 240 metres long.", "VERIFIED"),
            ),
            user("Open at night?"),
            reply(
                "No, it closes at nine.",
                ["The harbour is open to visitors until eleven in the evening."],
                ("The harbour closes at nine.", "CONTRADICTED"),
            ),
        ],
    },
    {
        "id": "lake",
        "turns": [
            user("Where is the lake?"),
            reply(
                "It lies north of the town. A great place, and full of trout.",
                ["The lake lies north of the town at 600 metres above the sea."],
                ("The lake lies north of the town.", "VERIFIED"),
                ("The assistant thinks that the lake is a great place.", "OUT_OF_SCOPE"),
                ("The lake is full of trout.", "LACKING_EVIDENCE"),
            ),
        ],
    },
    {
        "id": "museum",
        "turns": [
            user("When does the museum open?"),
            reply(
                "At ten. I can't tell you the price.",
                ["The museum of the town opens at ten in the morning, except on Mondays."],
                ("The museum opens at ten.", "VERIFIED"),
                ("The assistant can't tell the price.", "ABSTENTION"),
            ),
        ],
    },
]
