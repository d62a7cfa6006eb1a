"""The five claim labels: their meaning, their spellings, and which scoring rules they obey.

This is the only place where the meaning of a label is stated; prompts, reports and
documentation read it from here.
"""

from __future__ import annotations

import re
from enum import StrEnum


class Label(StrEnum):
    """What a claim is, judged against the turn's reference and the knowledge store."""

    VERIFIED = "VERIFIED"
    CONTRADICTED = "CONTRADICTED"
    LACKING_EVIDENCE = "LACKING_EVIDENCE"
    OUT_OF_SCOPE = "OUT_OF_SCOPE"
    ABSTENTION = "ABSTENTION"

    @property
    def letter(self) -> str:
        """One-letter code, used beside colour so that colour is never the only sign."""
        return self.value[0]


#: Order of labels in tables, confusion matrices and probability vectors.
LABELS: tuple[Label, ...] = tuple(Label)

#: The four reasons for which a claim can be unverifiable, in the order of `LABELS`.
UNVERIFIABLE_LABELS: tuple[Label, ...] = LABELS[1:]

#: Name of the verify stage's negative outcome; not a final label.
UNVERIFIABLE = "UNVERIFIABLE"

#: Labels of claims that do no harm (the rule of VISTA's released scorer).
SAFE_LABELS = frozenset({Label.VERIFIED, Label.OUT_OF_SCOPE, Label.ABSTENTION})

#: Labels of claims that join the knowledge store once their turn is labelled.
STORED_LABELS = frozenset({Label.VERIFIED, Label.OUT_OF_SCOPE})

MEANING: dict[Label, str] = {
    Label.VERIFIED: "the reference or an established fact supports the claim, details included",
    Label.CONTRADICTED: "the reference or an established fact refutes the claim",
    Label.LACKING_EVIDENCE: "a factual statement that the evidence neither supports nor refutes",
    Label.OUT_OF_SCOPE: "an opinion, feeling, experience or remark that no reference could settle",
    Label.ABSTENTION: "the assistant says that it does not know, is unsure, or declines",
}

_ALIASES = {
    "VERIFIED": Label.VERIFIED,
    "VERIFIABLE": Label.VERIFIED,
    "CONTRADICTED": Label.CONTRADICTED,
    "CONTRADICTION": Label.CONTRADICTED,
    "LACKINGEVIDENCE": Label.LACKING_EVIDENCE,
    "OUTOFSCOPE": Label.OUT_OF_SCOPE,
    "SUBJECTIVE": Label.OUT_OF_SCOPE,
    "ABSTENTION": Label.ABSTENTION,
    "ABSTAIN": Label.ABSTENTION,
}


def parse_label(text: str) -> Label:
    """Read a label in any spelling in use: case, spaces, hyphens and underscores don't matter.

    Raises:
        ValueError: `text` is no label; the message lists what is accepted.
    """
    key = re.sub(r"[\s_\-]+", "", text).upper()
    if key not in _ALIASES:
        accepted = ", ".join(label.value for label in LABELS)
        raise ValueError(f"unknown label {text!r}; accepted: {accepted} (also SUBJECTIVE, ABSTAIN, VERIFIABLE)")
    return _ALIASES[key]
