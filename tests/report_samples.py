"""Results for the tests of report, corrections and comparison: two small conversations, written here."""

from __future__ import annotations

from pathlib import Path

from vista_local.corrections import escape_surrogates
from vista_local.labels import LABELS, Label
from vista_local.output import result_line
from vista_local.schema import (
    ClaimResult,
    Conversation,
    ConversationResult,
    Evidence,
    Role,
    Turn,
    TurnResult,
    TurnStatus,
)

V, C, L, S, A = LABELS
RUN = {"id": "00ff00ff00ff00ff", "base_name": "scripted"}


def claim(text: str, label: Label | None, p: float = 0.9, *evidence: Evidence, why: str | None = None) -> ClaimResult:
    """A claim whose label has probability `p`."""
    if label is None:
        return ClaimResult(text, None, {}, why or "too long")
    probs = (
        {V.value: p, "UNVERIFIABLE": 1 - p} if label is V else {x.value: (1 - p) / 4 for x in LABELS} | {label.value: p}
    )
    return ClaimResult(text, label, probs, evidence=evidence)


MILL = ConversationResult(
    "mill",
    (
        TurnResult(
            1,
            TurnStatus.SCORED,
            (
                claim("The mill is old.", V, 0.93, Evidence("reference", 0.9, 1)),
                claim("The mill is red.", C, 0.6),
                claim("The miller likes rain.", S, 0.7),
            ),
            windows=1,
            chunks=1,
        ),
        TurnResult(
            3,
            TurnStatus.SCORED,
            (
                claim("The mill, as said, is old.", V, 0.8, Evidence("memory", 0.8, turn=1, claim=0)),
                claim("The mill is loud.", None, why="too long"),
            ),
            unsupported_extraction=("The mill has 4 wings.",),
            notes=("decompose: stopped at a repeated claim",),
            omitted_memory=2,
            memory=((-1, 0), (1, 0), (1, 2)),
        ),
        TurnResult(5, TurnStatus.UNREFERENCED),
    ),
    conversation=Conversation(
        "mill",
        (
            Turn(Role.USER, "How old is the mill?"),
            Turn(
                Role.ASSISTANT,
                "It is old and red. The miller likes rain.",
                ("Rain fell. The mill is old.", "It is white."),
            ),
            Turn(Role.USER, "Really?"),
            Turn(Role.ASSISTANT, "As I said, it is old. And loud.", ()),
            Turn(Role.USER, "Thanks."),
            Turn(Role.ASSISTANT, "Anything else?"),
        ),
        ("The hill is high.",),
    ),
)
LAKE = ConversationResult(
    "lake",
    (
        TurnResult(
            1,
            TurnStatus.SCORED,
            (
                claim("The lake is deep.", V, 0.99, Evidence("reference", 0.9, 0)),
                claim("The depth is not known.", A, 0.55),
            ),
        ),
    ),
    conversation=Conversation(
        "lake",
        (Turn(Role.USER, "Is the lake deep?"), Turn(Role.ASSISTANT, "It is, but how deep?", ("The lake is deep.",))),
    ),
)


def write_results(path: Path, *results: ConversationResult, run: dict[str, str] = RUN) -> Path:
    """A result file."""
    lines = (escape_surrogates(result_line(r, run)) + "\n" for r in results or (MILL, LAKE))
    path.write_text("".join(lines), encoding="utf-8")
    return path
