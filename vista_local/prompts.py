"""Every word that the models are told, in one place, versioned.

A change of any string here changes what trained adapters see: raise `PROMPT_VERSION`.
Instructions for students are short and carry no examples; adapters carry the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vista_local.labels import Label
from vista_local.schema import Role

PROMPT_VERSION = "1"


@dataclass(frozen=True)
class Prompt:
    """One request in the base's chat form: a system message and a user message."""

    system: str
    user: str


@dataclass(frozen=True)
class Utterance:
    """A line of history as it is shown to a model."""

    role: Role
    text: str


@dataclass(frozen=True)
class StoreLine:
    """A store entry as it is shown to a model; `stated` marks an unverifiable statement."""

    text: str
    stated: bool = False


DECOMPOSE_SYSTEM = (
    "List the claims that the reply makes, one a line. Each must be clear when read alone. No claim: write None."
)

VERIFY_SYSTEM = (
    "Do the reference or the known facts support the claim? Names, numbers, dates and strength must match. "
    "Earlier talk is no evidence. Answer {yes} or {no}."
)

CATEGORISE_SYSTEM = (
    "The claim is not confirmed. Why? {CONTRADICTED}: the reference or the known facts refute it. "
    "{LACKING_EVIDENCE}: a fact they leave open. {OUT_OF_SCOPE}: opinion, taste, experience or remark. "
    "{ABSTENTION}: lack of knowledge. One word."
)

_SPEAKER = {Role.USER: "User", Role.ASSISTANT: "Assistant"}

_HEADING = re.compile(r"\s*(?:Conversation|Reply|Earlier talk \(no evidence\)|Known facts|Reference|Claim):")
_REPLY = re.compile(r"^Reply:(?=\n)", re.MULTILINE)


def _lines(text: str) -> str:
    """A text under test with its lines, but none that begins like a heading of a prompt: it joins the one before."""
    kept: list[str] = []
    for line in text.strip().splitlines(keepends=True):
        if kept and _HEADING.match(line):
            while not kept[-1].strip():
                kept.pop()
            kept[-1] = kept[-1].rstrip()
            kept.append(f" {line.lstrip()}")
        else:
            kept.append(line)
    return "".join(kept)


def history_block(history: Sequence[Utterance]) -> str:
    """History as speaker-tagged lines; line breaks inside an utterance become spaces, so that an
    utterance can't imitate a heading or another speaker's line."""
    return "\n".join(f"{_SPEAKER[u.role]}: {' '.join(u.text.split())}" for u in history)


def decompose_user(history: Sequence[Utterance], reply: str) -> str:
    """User message of the decompose stage."""
    talk = f"Conversation:\n{history_block(history)}\n\n" if history else ""
    return f"{talk}Reply:\n{_lines(reply)}"


def reply_of(user: str) -> str:
    """The reply in a user message of decompose, with the line break before it; the whole text without heading.

    The first line that is the heading: history can't hold one, the reply may.
    """
    heading = _REPLY.search(user)
    return user[heading.end() :] if heading else user


def evidence_user(history: Sequence[Utterance], store: Sequence[StoreLine], reference: str) -> str:
    """User message of verify and categorise, up to and with the heading of the claim.

    A claim is appended after a space; all claims of a turn share this prefix.
    """
    parts = []
    if history:
        parts.append(f"Earlier talk (no evidence):\n{history_block(history)}")
    if store:
        # Line breaks become spaces here too: a claim can't imitate the reference's heading.
        flat = [(s.stated, " ".join(s.text.split())) for s in store]
        lines = "\n".join(f"- (stated) {text}" if stated else f"- {text}" for stated, text in flat)
        parts.append(f"Known facts:\n{lines}")
    parts.append(f"Reference:\n{_lines(reference) or '(none)'}")
    parts.append("Claim:")
    return "\n\n".join(parts)


def verify_system(yes: str, no: str) -> str:
    """Instruction of the verify stage, with the base's own label words."""
    return VERIFY_SYSTEM.format(yes=yes, no=no)


def categorise_system(words: Mapping[Label, str]) -> str:
    """Instruction of the categorise stage, with the base's own label words."""
    return CATEGORISE_SYSTEM.format(**{label.value: word for label, word in words.items()})


def render_claim_list(claims: Sequence[str]) -> str:
    """The form in which decompose answers; `vista_local.claims.parse_claims` reads it back."""
    return "\n".join(f"- {' '.join(c.split())}" for c in claims) if claims else "None"
