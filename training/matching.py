"""Agreement of a decomposition with the teacher's claims: one-to-one matching on token F1.

Contract: two claims may be paired if the F1 of their lower-cased words is at least `THRESHOLD` and
both name the same numbers equally often (a claim that says 1912 is not the claim that says 1921,
however alike the words). Each claim is paired at most once. Counts are pooled over turns; ratios
without a denominator are `None`. Needs scipy, from the [train] extra.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

from vista_local.text import numbers, words

#: Least token F1 of two claims that may be paired.
THRESHOLD = 0.6


def _overlap_f1(first: Counter[str], second: Counter[str]) -> float:
    size = first.total() + second.total()
    return 2 * (first & second).total() / size if size else 0.0


def token_f1(first: str, second: str) -> float:
    """F1 of the words of two claims as multisets: 2 |A and B| / (|A| + |B|).

    The measure of SQuAD (Rajpurkar et al. 2016, arXiv 1606.05250), with this project's words and
    without its removal of articles. Two texts without any word share none: 0.0.
    """
    return _overlap_f1(Counter(words(first)), Counter(words(second)))


@dataclass(frozen=True)
class Pair:
    """Claim number `predicted` of the one list goes with claim number `teacher` of the other."""

    predicted: int
    teacher: int
    f1: float


def match_claims(predicted: Sequence[str], teacher: Sequence[str], threshold: float = THRESHOLD) -> tuple[Pair, ...]:
    """The best one-to-one matching of two claim lists, in the order of `predicted`.

    Best means: as many pairs as possible, and among such matchings the largest total token F1. Both
    are had from one assignment problem. Admissible edges weigh B + F1 and all others 0, with B over
    the smaller list's length k. The F1 values of any matching add up to at most k < B, so one more
    pair outweighs whatever F1 it costs, and at equal numbers of pairs the F1 total decides.

    Args:
        predicted: the student's claims.
        teacher: the teacher's claims.
        threshold: least token F1, in (0, 1].

    Raises:
        ValueError: the threshold is outside (0, 1].
    """
    if not 0.0 < threshold <= 1.0:
        raise ValueError(f"threshold must be in (0, 1], not {threshold}")
    if not predicted or not teacher:
        return ()
    own = [(Counter(words(text)), Counter(numbers(text))) for text in predicted]
    theirs = [(Counter(words(text)), Counter(numbers(text))) for text in teacher]
    f1 = np.zeros((len(own), len(theirs)))  # token F1 of admissible edges, elsewhere 0
    for i, (own_words, own_numbers) in enumerate(own):
        for j, (their_words, their_numbers) in enumerate(theirs):
            if own_numbers == their_numbers:
                value = _overlap_f1(own_words, their_words)
                f1[i, j] = value if value >= threshold else 0.0
    bonus = min(len(own), len(theirs)) + 1.0
    rows, columns = linear_sum_assignment(np.where(f1 > 0.0, f1 + bonus, 0.0), maximize=True)
    # The solver fills every row or column; what it filled with inadmissible edges is no match.
    chosen = ((int(i), int(j), float(f1[i, j])) for i, j in zip(rows, columns, strict=True))
    return tuple(Pair(i, j, value) for i, j, value in chosen if value > 0.0)


@dataclass(frozen=True)
class Agreement:
    """Counts of matched, predicted and teacher claims. `a + b` pools two; `Agreement()` is neutral.

    A turn for which both lists are empty has nothing to match: it counts in `turns` only, so it
    moves no ratio.
    """

    matched: int = 0
    predicted: int = 0
    teacher: int = 0
    turns: int = 0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.matched + other.matched,
            self.predicted + other.predicted,
            self.teacher + other.teacher,
            self.turns + other.turns,
        )

    @property
    def precision(self) -> float | None:
        """Matched / predicted claims; `None` if nothing was predicted."""
        return self.matched / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        """Matched / teacher's claims; `None` if the teacher has none."""
        return self.matched / self.teacher if self.teacher else None

    @property
    def f1(self) -> float | None:
        """2 matched / (predicted + teacher's claims); `None` if both are zero."""
        total = self.predicted + self.teacher
        return 2 * self.matched / total if total else None

    @property
    def claims_ratio(self) -> float | None:
        """Predicted claims a turn over the teacher's claims a turn; `None` if the teacher has none."""
        return self.predicted / self.teacher if self.teacher else None

    def as_dict(self) -> dict[str, float | int | None]:
        """Counts and ratios as JSON values."""
        return {
            "matched": self.matched,
            "predicted": self.predicted,
            "teacher": self.teacher,
            "turns": self.turns,
            "precision": self.precision,
            "recall": self.recall,
            "f1": self.f1,
            "claims_ratio": self.claims_ratio,
        }


def agree(predicted: Sequence[str], teacher: Sequence[str], threshold: float = THRESHOLD) -> Agreement:
    """The counts of one turn; an empty list means that a side found no claims."""
    pairs = match_claims(predicted, teacher, threshold)
    return Agreement(len(pairs), len(predicted), len(teacher), 1)


def pooled_agreement(turns: Iterable[tuple[Sequence[str], Sequence[str]]], threshold: float = THRESHOLD) -> Agreement:
    """The counts over turns, each given as (predicted claims, teacher's claims)."""
    total = Agreement()
    for predicted, teacher in turns:
        total = total + agree(predicted, teacher, threshold)
    return total
