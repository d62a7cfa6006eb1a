"""Okapi BM25 over a handful of short texts, for choosing what to show a model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from vista_local.text import words

#: The usual constants (Robertson and Zaragoza, 2009, "The Probabilistic Relevance Framework").
K1, B = 1.5, 0.75


def bm25_scores(documents: Sequence[str], query: str, terms: Callable[[str], list[str]] = words) -> list[float]:
    """Score of every document for `query`; higher is more relevant, 0 shares no term of those that `terms` gives.

    score = sum over query terms of ln(1 + (N - df + 0.5) / (df + 0.5)) * tf (k1 + 1) / (tf + k1 (1 - b + b |d| / avg)).
    """
    bags = [Counter(terms(d)) for d in documents]
    lengths = [sum(bag.values()) for bag in bags]
    if not documents or not sum(lengths):
        return [0.0] * len(documents)
    average = sum(lengths) / len(lengths)
    scores = [0.0] * len(documents)
    for term in sorted(set(terms(query))):  # sorted: floating-point sums don't depend on hash order
        df = sum(term in bag for bag in bags)
        if not df:
            continue
        idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
        for i, bag in enumerate(bags):
            if tf := bag[term]:
                scores[i] += idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * lengths[i] / average))
    return scores
