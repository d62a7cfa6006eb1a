"""What a conversation is, and what comes back for it. Plain frozen data; no model, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from vista_local.labels import Label

if TYPE_CHECKING:
    import pandas
    from datasets import Dataset

SCHEMA = "vista-local/1"


class Role(StrEnum):
    """Who speaks. Only assistant turns are scored; other roles are history."""

    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True)
class GivenClaim:
    """A claim that the input carries, with its label where one was given."""

    text: str
    label: Label | None = None
    evidence: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One utterance.

    `reference` is a tuple of passages. An empty tuple means that the turn is judged by the
    store alone; `None` means that the turn is *unreferenced* (the key was missing, or "N/A").
    `claims` is `None` where the input has no such key, and empty for a turn without claims.
    """

    role: Role
    text: str
    reference: tuple[str, ...] | None = None
    claims: tuple[GivenClaim, ...] | None = None


@dataclass(frozen=True)
class Conversation:
    """A conversation in the order in which it was held."""

    id: str
    turns: tuple[Turn, ...]
    background: tuple[str, ...] = ()


class TurnStatus(StrEnum):
    """Whether a turn counts. Unreferenced turns are in no denominator."""

    SCORED = "scored"
    UNREFERENCED = "unreferenced"


@dataclass(frozen=True)
class Evidence:
    """A piece of text that decides a claim, and how clearly it does so alone (0 to 1).

    `source` is "reference" (with `sentence`, counted from 0 over all passages), "memory" (with the
    `turn` and `claim` that established it) or "background" (with `claim`, the fact's number).
    `stated` marks a memory entry that was itself only stated, never verified.
    """

    source: Literal["reference", "memory", "background"]
    score: float
    sentence: int | None = None
    turn: int | None = None
    claim: int | None = None
    stated: bool = False


@dataclass(frozen=True)
class Corrected:
    """What a reviewer did to a claim, and the text and label that it had before (`None` for an added one)."""

    action: Literal["label", "edit", "split", "add"]
    text: str | None = None
    label: Label | None = None


@dataclass(frozen=True)
class ClaimResult:
    """A labelled claim. Exactly one of `label` and `unscored` is set.

    `probs` maps label names to probabilities: {VERIFIED, UNVERIFIABLE} where categorise was not
    run on the claim, the five labels where it was; empty without a label, and where the label was
    only said (a prompted teacher). `corrected` is set where a reviewer changed the
    claim; `probs` then still are the model's.
    """

    text: str
    label: Label | None
    probs: dict[str, float] = field(default_factory=dict)
    unscored: str | None = None
    evidence: tuple[Evidence, ...] = ()
    corrected: Corrected | None = None


@dataclass(frozen=True)
class TurnResult:
    """All that is known of one assistant turn; `index` is its position in the input's turns.

    `recomputed` counts claims that were near-ties and were labelled again, each alone. `reviewed`
    says that a person has corrected the turn's claims or found them right.
    """

    index: int
    status: TurnStatus
    claims: tuple[ClaimResult, ...] = ()
    unsupported_extraction: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    windows: int = 0
    chunks: int = 0
    omitted_memory: int = 0
    memory: tuple[tuple[int, int], ...] = ()
    unscored: str | None = None
    recomputed: int = 0
    reviewed: bool = False


@dataclass(frozen=True)
class ConversationResult:
    """The assistant turns of one conversation, in order; `conversation` is what was scored, where kept.

    `error` says why the conversation could not be scored; its turns are then unscored.
    """

    id: str
    turns: tuple[TurnResult, ...]
    error: str | None = None
    conversation: Conversation | None = None

    def _repr_html_(self) -> str:
        """The conversation with its claims, in a notebook."""
        from vista_local.notebook import conversation_html

        return conversation_html(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row for each claim; see `notebook.Results.to_pandas`."""
        from vista_local.notebook import Results

        return Results([self]).to_pandas()

    def to_dataset(self) -> Dataset:
        """One row for each claim; see `notebook.Results.to_dataset`."""
        from vista_local.notebook import Results

        return Results([self]).to_dataset()


def as_passages(reference: str | Sequence[str] | None) -> tuple[str, ...]:
    """Normalise a reference as users write it: `null`, `[]` and `""` all become `()`."""
    if reference is None:
        return ()
    passages = (reference,) if isinstance(reference, str) else tuple(reference)
    return tuple(p for p in passages if p.strip())
