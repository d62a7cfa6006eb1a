"""The knowledge store: what a conversation has established so far.

Claims of a turn join only after the whole turn is labelled, so claims of one turn never support
each other. User statements are not facts and never enter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from vista_local.bm25 import bm25_scores
from vista_local.labels import STORED_LABELS, Label
from vista_local.prompts import StoreLine

#: Turn number of background facts, which were there before the first turn.
BACKGROUND_TURN = -1


class Kind(StrEnum):
    """`fact` was verified; `stated` is an out-of-scope statement that was made."""

    FACT = "fact"
    STATED = "stated"


@dataclass(frozen=True)
class Entry:
    """One established claim and where it was made; `turn` is the turn's index in the input."""

    text: str
    kind: Kind
    turn: int
    claim: int

    def line(self) -> StoreLine:
        """The entry as a prompt shows it."""
        return StoreLine(self.text, self.kind is Kind.STATED)


@dataclass(frozen=True)
class Selection:
    """Entries shown to a turn, in chronological order, and how many were left out."""

    entries: tuple[Entry, ...]
    omitted: int


def _key(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()


class KnowledgeStore:
    """Entries in the order in which they were made, exact duplicates merged.

    A duplicate keeps the earlier entry's place; a verified one makes a `stated` entry a `fact`.
    """

    def __init__(self, background: Sequence[str] = ()) -> None:
        self._entries: dict[str, Entry] = {}
        self._sizes: dict[str, int] = {}  # tokens of a text; every turn asks for every entry's
        for number, text in enumerate(background):
            self._add(Entry(text, Kind.FACT, BACKGROUND_TURN, number))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, oldest first."""
        return tuple(self._entries.values())

    def _add(self, entry: Entry) -> None:
        key = _key(entry.text)
        if not key:
            return
        earlier = self._entries.get(key)
        if earlier is None:
            self._entries[key] = entry
        elif entry.kind is Kind.FACT and earlier.kind is Kind.STATED:
            self._entries[key] = replace(earlier, kind=Kind.FACT)

    def add_turn(self, turn: int, claims: Sequence[tuple[str, Label | None]]) -> None:
        """Add a labelled turn's VERIFIED and OUT_OF_SCOPE claims; the others never enter."""
        for number, (text, label) in enumerate(claims):
            if label in STORED_LABELS:
                kind = Kind.FACT if label is Label.VERIFIED else Kind.STATED
                self._add(Entry(text, kind, turn, number))

    def trust_turn(self, turn: int, claims: Sequence[str]) -> None:
        """Add an unreferenced turn's claims unchecked (the paper's rule)."""
        for number, text in enumerate(claims):
            self._add(Entry(text, Kind.FACT, turn, number))

    def select(self, claims: Sequence[str], budget: int, count: Callable[[str], int]) -> Selection:
        """Entries to show for a turn with `claims`, within `budget` tokens.

        Everything, if it fits. Otherwise the best by BM25 against all claims of the turn, ties to
        the newer, as many as fit.
        """
        entries = self.entries
        for entry in entries:
            if entry.text not in self._sizes:
                self._sizes[entry.text] = count(entry.text)
        # Two tokens for the bullet and line break, six more for the "(stated)" mark.
        sizes = [self._sizes[e.text] + (8 if e.kind is Kind.STATED else 3) for e in entries]
        if sum(sizes) <= budget:
            return Selection(entries, 0)
        scores = bm25_scores([e.text for e in entries], " ".join(claims))
        chosen: list[int] = []
        left = budget
        for i in sorted(range(len(entries)), key=lambda i: (-scores[i], -i)):
            if sizes[i] <= left:
                chosen.append(i)
                left -= sizes[i]
        kept = tuple(entries[i] for i in sorted(chosen))
        return Selection(kept, len(entries) - len(kept))
