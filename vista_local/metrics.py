"""Comparison of predictions with gold labels, with intervals and tests. No model, no scipy, no sklearn.

Contract, the same for all functions:

- Sequences of gold and predicted values have one length; another length, a gold value of `None`, or
  a value outside the label set is a `ValueError` that says which.
- A prediction of `None` means *unscored*. It is wrong: it stays in the denominator, misses its gold
  label, and counts as a prediction of no label.
- A figure that isn't defined (no items, a class that does not occur) is `None`, never 0, 1 or NaN.
  The one exception is inside a macro average over a fixed label set, where an F1 without a value
  counts as 0, as scikit-learn's `zero_division=0` and the published figures have it.

`Confusion` holds integer counts and adds up, so figures of a corpus are computed from the sum of its
conversations' matrices; that makes the bootstrap over conversations cheap too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from vista_local.labels import LABELS

L = TypeVar("L", bound=Hashable)
T = TypeVar("T")

_BOOLEANS = (False, True)


def _check_lengths(gold: Sequence[object], predicted: Sequence[object]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold values but {len(predicted)} predictions")
    for i, value in enumerate(gold):
        if value is None:
            raise ValueError(f"gold value {i} is None; only predictions may be unscored")


# --- labels ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassScore(Generic[L]):
    """Figures of one label.

    With tp = items of this label predicted as such: precision = tp / predicted, recall = tp /
    support, F1 = 2 tp / (predicted + support), the harmonic mean of the two (van Rijsbergen 1979).
    Each is `None` where its denominator is zero.
    """

    label: L
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    predicted: int


@dataclass(frozen=True)
class Confusion(Generic[L]):
    """Confusion matrix: `counts[g][p]` items have gold label `labels[g]` and prediction `labels[p]`.

    Shapes: `counts` [labels, labels], `unscored` [labels] (items without a prediction, by gold
    label). `a + b` pools two matrices over the same labels.
    """

    labels: tuple[L, ...]
    counts: tuple[tuple[int, ...], ...]
    unscored: tuple[int, ...]

    def __add__(self, other: Confusion[L]) -> Confusion[L]:
        return pool([self, other])

    @property
    def n(self) -> int:
        """Number of items, unscored ones included."""
        return sum(map(sum, self.counts)) + sum(self.unscored)

    @property
    def correct(self) -> int:
        """Number of items whose prediction is the gold label."""
        return sum(self.counts[i][i] for i in range(len(self.labels)))

    @property
    def accuracy(self) -> float | None:
        """Correct / items; `None` without items."""
        return self.correct / self.n if self.n else None

    @property
    def support(self) -> tuple[int, ...]:
        """Items per gold label, unscored ones included."""
        return tuple(sum(row) + missing for row, missing in zip(self.counts, self.unscored, strict=True))

    @property
    def classes(self) -> tuple[ClassScore[L], ...]:
        """Precision, recall, F1 and support of each label, in the order of `labels`."""
        scores = []
        for i, (label, support) in enumerate(zip(self.labels, self.support, strict=True)):
            hits = self.counts[i][i]
            predicted = sum(row[i] for row in self.counts)
            scores.append(
                ClassScore(
                    label,
                    hits / predicted if predicted else None,
                    hits / support if support else None,
                    2 * hits / (predicted + support) if predicted + support else None,
                    support,
                    predicted,
                )
            )
        return tuple(scores)

    @property
    def macro_f1(self) -> float | None:
        """Mean F1 over all of `labels`, one without a value counting as 0; `None` without items."""
        return math.fsum(c.f1 or 0.0 for c in self.classes) / len(self.labels) if self.n else None

    @property
    def macro_f1_present(self) -> float | None:
        """Mean F1 over the labels that occur in gold; `None` without items."""
        present = [c.f1 or 0.0 for c in self.classes if c.support]
        return math.fsum(present) / len(present) if present else None

    @property
    def balanced_accuracy(self) -> float | None:
        """Mean recall over all of `labels` (Brodersen et al. 2010); `None` if a label isn't in gold.

        scikit-learn leaves absent labels out of the mean; for one class that is left over this would
        report its recall under a name that promises two.
        """
        recalls = [c.recall for c in self.classes if c.recall is not None]
        return math.fsum(recalls) / len(recalls) if recalls and len(recalls) == len(self.labels) else None

    def as_dict(self) -> dict[str, object]:
        """Matrix and figures as JSON values; labels become strings."""
        return {
            "n": self.n,
            "unscored": sum(self.unscored),
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "macro_f1_present": self.macro_f1_present,
            "classes": {
                str(c.label): {
                    "precision": c.precision,
                    "recall": c.recall,
                    "f1": c.f1,
                    "support": c.support,
                    "predicted": c.predicted,
                }
                for c in self.classes
            },
            "confusion": {
                "labels": [str(label) for label in self.labels],
                "counts": [list(row) for row in self.counts],
                "unscored": list(self.unscored),
            },
        }


def confusion(gold: Sequence[L], predicted: Sequence[L | None], labels: Sequence[L]) -> Confusion[L]:
    """Count (gold, predicted) pairs over a fixed label set. Empty input gives a matrix of zeros.

    Raises:
        ValueError: lengths differ, gold holds `None`, or a value is not among `labels`.
    """
    _check_lengths(gold, predicted)
    position = {label: i for i, label in enumerate(labels)}
    if len(position) != len(labels) or not labels:
        raise ValueError(f"labels must be distinct and at least one: {list(labels)}")
    counts = [[0] * len(labels) for _ in labels]
    unscored = [0] * len(labels)
    for i, (truth, guess) in enumerate(zip(gold, predicted, strict=True)):
        for value in (truth, guess):
            if value is not None and value not in position:
                raise ValueError(f"item {i}: {value!r} is not among the labels {[str(x) for x in labels]}")
        if guess is None:
            unscored[position[truth]] += 1
        else:
            counts[position[truth]][position[guess]] += 1
    return Confusion(tuple(labels), tuple(map(tuple, counts)), tuple(unscored))


def pool(matrices: Iterable[Confusion[L]]) -> Confusion[L]:
    """The sum of one or more matrices over the same labels.

    Raises:
        ValueError: no matrices (there would be no label set), or their labels differ.
    """
    parts = list(matrices)
    if not parts:
        raise ValueError("nothing to pool")
    labels = parts[0].labels
    if any(part.labels != labels for part in parts):
        raise ValueError("matrices over different labels cannot be pooled")
    counts = (tuple(map(sum, zip(*rows, strict=True))) for rows in zip(*(p.counts for p in parts), strict=True))
    return Confusion(labels, tuple(counts), tuple(map(sum, zip(*(p.unscored for p in parts), strict=True))))


def claim_confusion(gold: Sequence[str], predicted: Sequence[str | None]) -> Confusion[str]:
    """Confusion matrix of claim labels, in the order of `LABELS`."""
    return confusion(gold, predicted, LABELS)


def turn_confusion(gold: Sequence[bool], predicted: Sequence[bool | None]) -> Confusion[bool]:
    """Confusion matrix of turn verdicts (strict or safe), in the order False, True."""
    return confusion(gold, predicted, _BOOLEANS)


def accuracy(gold: Sequence[L], predicted: Sequence[L | None]) -> float | None:
    """Share of items whose prediction equals gold; `None` without items."""
    _check_lengths(gold, predicted)
    return sum(g == p for g, p in zip(gold, predicted, strict=True)) / len(gold) if gold else None


def macro_f1(gold: Sequence[str], predicted: Sequence[str | None]) -> float | None:
    """Mean F1 over the five claim labels (those that never occur count as 0); `None` without items."""
    return claim_confusion(gold, predicted).macro_f1


def macro_f1_present(gold: Sequence[str], predicted: Sequence[str | None]) -> float | None:
    """Mean F1 over those claim labels that occur in gold; `None` without items."""
    return claim_confusion(gold, predicted).macro_f1_present


def balanced_accuracy(gold: Sequence[bool], predicted: Sequence[bool | None]) -> float | None:
    """(recall of True + recall of False) / 2; `None` if gold lacks one of the two."""
    return turn_confusion(gold, predicted).balanced_accuracy


def boolean_macro_f1(gold: Sequence[bool], predicted: Sequence[bool | None]) -> float | None:
    """(F1 of True + F1 of False) / 2, a verdict that never occurs counting as 0; `None` without items."""
    return turn_confusion(gold, predicted).macro_f1


# --- calibration ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class CalibrationBin:
    """Items whose confidence is in (low, high] (the first bin holds 0 too); means are `None` if empty."""

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """Expected calibration error over `n` scored items, with the bins of the reliability diagram.

    `unscored` items have no confidence. They cannot be in a bin and are left out of `ece`; their
    number stands here, since a model that refuses its hard cases looks better calibrated.
    """

    ece: float | None
    n: int
    unscored: int
    bins: tuple[CalibrationBin, ...]


def calibration(
    gold: Sequence[L], predicted: Sequence[L | None], confidence: Sequence[float | None], bins: int = 15
) -> Calibration:
    """Expected calibration error in equal-width bins of the predicted label's probability.

    ECE = sum over bins b of n_b / n * |accuracy_b - mean confidence_b| (Naeini et al. 2015; Guo et
    al. 2017, arXiv 1706.04599, with 15 bins). `ece` is `None` without scored items.

    Args:
        gold: gold labels.
        predicted: predicted labels, `None` for unscored.
        confidence: probability of the predicted label, in [0, 1]; ignored where unscored.
        bins: number of bins.

    Raises:
        ValueError: lengths differ, a scored item's confidence is missing or outside [0, 1], or there
            is no bin.
    """
    _check_lengths(gold, predicted)
    if len(confidence) != len(gold):
        raise ValueError(f"{len(gold)} gold values but {len(confidence)} confidences")
    if bins < 1:
        raise ValueError(f"at least one bin is needed, not {bins}")
    members: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for i, (truth, guess, sure) in enumerate(zip(gold, predicted, confidence, strict=True)):
        if guess is None:
            continue
        # A softmax in single precision may end a little over 1; anything further is a caller's mistake.
        if sure is None or not 0.0 <= sure <= 1.0 + 1e-6:
            raise ValueError(f"item {i}: confidence must be in [0, 1], not {sure}")
        sure = min(sure, 1.0)
        # Bins are open on the left: 1.0 belongs to the last one, 0.0 is put into the first.
        members[max(0, math.ceil(sure * bins) - 1)].append((sure, truth == guess))
    n = sum(map(len, members))
    gap = 0.0
    filled = []
    for b, items in enumerate(members):
        mean_confidence = math.fsum(sure for sure, _ in items) / len(items) if items else None
        mean_accuracy = sum(hit for _, hit in items) / len(items) if items else None
        if mean_confidence is not None and mean_accuracy is not None:
            gap += len(items) / n * abs(mean_accuracy - mean_confidence)
        filled.append(CalibrationBin(b / bins, (b + 1) / bins, len(items), mean_confidence, mean_accuracy))
    return Calibration(gap if n else None, n, len(gold) - n, tuple(filled))


def expected_calibration_error(
    gold: Sequence[L], predicted: Sequence[L | None], confidence: Sequence[float | None], bins: int = 15
) -> float | None:
    """`calibration(...).ece`."""
    return calibration(gold, predicted, confidence, bins).ece


# --- uncertainty and comparison -------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A statistic on all items (`point`) and its bootstrap interval [low, high].

    `undefined` of the `resamples` gave no value (for instance because a class was missing) and are
    not in the percentiles.
    """

    point: float
    low: float
    high: float
    level: float
    resamples: int
    undefined: int


def bootstrap_interval(
    items: Sequence[T],
    statistic: Callable[[Sequence[T]], float | None],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """Percentile bootstrap interval of a statistic of conversations (Efron 1979; Efron & Tibshirani 1993, ch. 13).

    Draws len(items) items with replacement, `resamples` times; the interval's ends are the
    (1 - level) / 2 and (1 + level) / 2 quantiles (linear interpolation) of the statistic. Items must
    be whole conversations, because claims of one conversation aren't independent. With the same
    `seed` and number of items the same draws are made, so intervals of several statistics belong
    together.

    Example: `bootstrap_interval(matrices, lambda sample: pool(sample).macro_f1)` with one `Confusion`
    for each conversation.

    Args:
        items: one item for each conversation.
        statistic: from a list of items to a figure, or `None` where it isn't defined.
        resamples: number of draws.
        level: coverage of the interval, in (0, 1).
        seed: seed of the draws.

    Returns:
        `None` if there are no items, or the statistic isn't defined on all of them or on any draw.

    Raises:
        ValueError: `resamples` or `level` is out of range, or the statistic returned NaN.
    """
    if resamples < 1 or not 0.0 < level < 1.0:
        raise ValueError(f"resamples must be positive and level in (0, 1): {resamples}, {level}")
    point = statistic(items) if items else None
    if point is None:
        return None
    generator = np.random.default_rng(seed)
    values: list[float] = []
    for _ in range(resamples):
        value = statistic([items[i] for i in generator.integers(0, len(items), len(items))])
        if value is not None:
            values.append(value)
    if math.isnan(point) or any(map(math.isnan, values)):
        raise ValueError("the statistic returned NaN; an undefined figure must be None")
    if not values:
        return None
    ends = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(point, float(ends[0]), float(ends[1]), level, resamples, resamples - len(values))


def cohen_kappa(first: Sequence[L], second: Sequence[L | None]) -> float | None:
    """Agreement beyond chance: (p_o - p_e) / (1 - p_e) (Cohen 1960).

    p_o is the share of equal labels, p_e the sum over labels of the product of both raters' shares.
    An unscored label of `second` agrees with nothing. `None` without items, and where p_e = 1 (both
    raters gave one and the same label throughout), for which kappa has no value.

    Raises:
        ValueError: lengths differ or `first` holds `None`.
    """
    _check_lengths(first, second)
    n = len(first)
    agreed = sum(a == b for a, b in zip(first, second, strict=True))
    # n^2 p_e: for every item of `first`, how often `second` gave that label. Integers, hence exact.
    frequency: dict[L, int] = {}
    for label in second:
        if label is not None:
            frequency[label] = frequency.get(label, 0) + 1
    chance = sum(frequency.get(label, 0) for label in first)
    return (n * agreed - chance) / (n * n - chance) if n * n != chance else None


@dataclass(frozen=True)
class McNemar:
    """Items that only the first or only the second system has right, and the exact two-sided p-value."""

    only_first: int
    only_second: int
    p_value: float


def mcnemar_exact(first: Sequence[bool], second: Sequence[bool]) -> McNemar | None:
    """Exact McNemar test: are two systems right equally often on the same items?

    With b and c items that only one of them has right and n = b + c, under the hypothesis b is
    Binomial(n, 1/2), so p = min(1, 2 sum over i <= min(b, c) of C(n, i) / 2^n) (McNemar 1947; exact
    form: Agresti, Categorical Data Analysis, 11.1). Where the systems never differ (n = 0) that sum
    is 1 and so is p: no evidence of a difference.

    Args:
        first: for each item, whether the first system is right (unscored: not right).
        second: the same for the second system.

    Returns:
        `None` without items.

    Raises:
        ValueError: lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} results of the first system but {len(second)} of the second")
    if not first:
        return None
    only_first = sum(a and not b for a, b in zip(first, second, strict=True))
    only_second = sum(b and not a for a, b in zip(first, second, strict=True))
    n = only_first + only_second
    tail, term = 0, 1
    for i in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (n - i) // (i + 1)  # C(n, i + 1), always whole
    return McNemar(only_first, only_second, min(1.0, 2 * tail / 2**n))
