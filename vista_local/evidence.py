"""Which piece of text decides a claim: a sentence of the reference, or an entry of the store.

Candidates are the best few by BM25; each is then judged alone, as if it were all there is to know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vista_local.bm25 import bm25_scores
from vista_local.labels import Label
from vista_local.memory import BACKGROUND_TURN, Entry, Kind
from vista_local.schema import Evidence
from vista_local.text import split_sentences, words

#: Pieces that are judged for a claim, and pieces that a result names at most.
CANDIDATES, NAMED = 8, 3

#: Labels that something must support or refute; the others have no evidence.
DECIDED_LABELS = frozenset({Label.VERIFIED, Label.CONTRADICTED})

#: Runs of scripts that put no spaces between words: Thai and Lao, Burmese, Khmer, kana, and Chinese characters.
_UNSPACED = re.compile(
    "[\u0e01-\u0e4e\u0e81-\u0ece\u1000-\u1049\u1780-\u17d3\u3005-\u3007\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]+"
)


@dataclass(frozen=True)
class Piece:
    """A reference sentence (`sentence` counts from 0 over all passages) or a store entry."""

    text: str
    sentence: int | None = None
    entry: Entry | None = None

    def named(self, score: float) -> Evidence:
        """The piece as a result names it."""
        if self.entry is None:
            return Evidence("reference", score, sentence=self.sentence)
        if self.entry.turn == BACKGROUND_TURN:
            return Evidence("background", score, claim=self.entry.claim)
        stated = self.entry.kind is Kind.STATED
        return Evidence("memory", score, turn=self.entry.turn, claim=self.entry.claim, stated=stated)


def pieces(passages: Sequence[str], entries: Sequence[Entry]) -> list[Piece]:
    """Everything that could decide a claim of a turn: its reference's sentences, then the store."""
    sentences = [s for passage in passages for s in split_sentences(passage)]
    return [Piece(s, sentence=i) for i, s in enumerate(sentences)] + [Piece(e.text, entry=e) for e in entries]


def _terms(text: str) -> list[str]:
    """What pieces are compared by: words, and pairs of characters where a script has no spaces between words."""
    pairs = [run[i : i + 2] for run in _UNSPACED.findall(text) for i in range(max(1, len(run) - 1))]
    return words(_UNSPACED.sub(" ", text)) + pairs if pairs else words(text)


def candidates(claim: str, among: Sequence[Piece], limit: int = CANDIDATES) -> list[int]:
    """Numbers of the pieces that are most like `claim` by BM25, best first, ties to the earlier."""
    scores = bm25_scores([p.text for p in among], claim, _terms)
    return sorted(range(len(among)), key=lambda i: (-scores[i], i))[:limit]


def piece_score(label: Label, p_verified: float, q_contradicted: float | None) -> float:
    """How clearly one piece decides a claim for `label`: p_v, or (1 - p_v) q(CONTRADICTED)."""
    if label is Label.VERIFIED:
        return p_verified
    if label is not Label.CONTRADICTED or q_contradicted is None:
        raise ValueError(f"no piece of evidence can decide {label}")
    return (1 - p_verified) * q_contradicted


def _stated(piece: Piece) -> bool:
    return piece.entry is not None and piece.entry.kind is Kind.STATED


def best(scored: Sequence[tuple[Piece, float]]) -> tuple[Evidence, ...]:
    """The clearest piece, and up to two others that decide the claim by themselves (from 0.5 on).

    A `stated` entry comes first only if nothing verified decides the claim: "said, not verified" in
    the first place means that there is no better evidence.
    """
    ranked = sorted(scored, key=lambda pair: -pair[1])  # stable: ties keep the order of BM25
    firm = next((pair for pair in ranked if pair[1] >= 0.5 and not _stated(pair[0])), None)
    if firm is not None and _stated(ranked[0][0]):
        ranked.remove(firm)
        ranked.insert(0, firm)
    kept = ranked[:1] + [pair for pair in ranked[1:NAMED] if pair[1] >= 0.5]
    return tuple(piece.named(round(score, 6)) for piece, score in kept)
