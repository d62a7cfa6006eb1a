"""Predictions against gold: claim figures and turn figures, each with its interval by conversation or cluster.

A prediction that is missing or `None` is wrong, never left out. Figures are shares in [0, 1], rounded
to four places; `None` where there is nothing to divide by.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from vista_local.errors import VistaError
from vista_local.labels import LABELS, SAFE_LABELS, Label
from vista_local.metrics import Confusion, bootstrap_interval, calibration, claim_confusion, pool, turn_confusion
from vista_local.schema import ConversationResult
from vista_local.scoring import score_conversation

SEED = 17
Rule = Literal["strict", "safe", "original"]
L = TypeVar("L", bound=Hashable)


@dataclass(frozen=True)
class GoldTurn:
    """What is known of a turn: labelled claims (`None` for none), and the benchmark's own verdict.

    `original` says whether the turn is faithful by the strict rule; `None` where the label doesn't say.
    """

    claims: tuple[str, ...] | None
    labels: tuple[Label, ...]
    original: bool | None

    @property
    def strict(self) -> bool | None:
        """Every claim is VERIFIED; `None` without labelled claims."""
        return None if self.claims is None else all(label is Label.VERIFIED for label in self.labels)

    @property
    def safe(self) -> bool | None:
        """Every claim is safe; `None` without labelled claims."""
        return None if self.claims is None else all(label in SAFE_LABELS for label in self.labels)

    def verdict(self, rule: Rule) -> bool | None:
        """The turn's verdict under a rule; "original" is the benchmark's own, compared with strict."""
        return self.original if rule == "original" else self.safe if rule == "safe" else self.strict


@dataclass(frozen=True)
class TurnPrediction:
    """What a method says of a turn.

    `claims` and `labels` are `None` for a method that judges turns without labelling claims; a
    label of `None` is an unscored claim, a verdict of `None` an unscored turn.
    """

    strict: bool | None
    safe: bool | None
    claims: tuple[str, ...] | None = None
    labels: tuple[Label | None, ...] | None = None
    confidence: tuple[float | None, ...] = ()


Gold = Mapping[int, GoldTurn]
Predictions = Mapping[int, TurnPrediction]


def predictions(result: ConversationResult) -> dict[int, TurnPrediction]:
    """The pipeline's result of a conversation as predictions, by turn."""
    scores = score_conversation(result).turns
    return {
        turn.index: TurnPrediction(
            score.strict,
            score.safe,
            tuple(c.text for c in turn.claims),
            tuple(c.label for c in turn.claims),
            tuple(c.probs.get(c.label.value) if c.label else None for c in turn.claims),
        )
        for turn, score in zip(result.turns, scores, strict=True)
    }


def rounded(value: float | None) -> float | None:
    """Four places."""
    return None if value is None else round(value, 4)


def interval(items: Sequence[Any], statistic: Callable[[Sequence[Any]], float | None]) -> list[float] | None:
    """Ends of the 95 % bootstrap interval of a figure over conversations, or over clusters of them."""
    found = bootstrap_interval(items, statistic, seed=SEED)
    return None if found is None else [round(found.low, 4), round(found.high, 4)]


def _clustered(matrices: Sequence[Confusion[L]], clusters: Sequence[Hashable] | None) -> list[Confusion[L]]:
    """One matrix for each cluster, in the order of their first conversations."""
    if clusters is None:
        return list(matrices)
    members: dict[Hashable, list[Confusion[L]]] = {}
    for cluster, matrix in zip(clusters, matrices, strict=True):
        members.setdefault(cluster, []).append(matrix)
    return [pool(parts) for parts in members.values()]


def turn_figures(
    predicted: Sequence[Predictions], gold: Sequence[Gold], rule: Rule, clusters: Sequence[Hashable] | None = None
) -> dict[str, Any]:
    """Accuracy, balanced accuracy and macro-F1 of a turn rule against gold.

    Args:
        predicted, gold: one mapping for each conversation, in the same order.
        rule: "strict" or "safe" against the gold claims' verdict, or "original": the strict verdict
            against the benchmark's own label. Turns whose gold doesn't say are left out.
        clusters: for each conversation, what it is resampled with; by default each stands alone.
    """
    matrices: list[Confusion[bool]] = []
    for found, turns in zip(predicted, gold, strict=True):
        truth: list[bool] = []
        said: list[bool | None] = []
        for index, turn in turns.items():
            if (expected := turn.verdict(rule)) is None:
                continue
            truth.append(expected)
            prediction = found.get(index)
            said.append(None if prediction is None else prediction.safe if rule == "safe" else prediction.strict)
        matrices.append(turn_confusion(truth, said))
    total, units = pool(matrices), _clustered(matrices, clusters)
    return {
        "turns": total.n,
        "accuracy": rounded(total.accuracy),
        "accuracy_95": interval(units, lambda sample: pool(sample).accuracy),
        "balanced_accuracy": rounded(total.balanced_accuracy),
        "macro_f1": rounded(total.macro_f1),
    }


def coverage_figures(predicted: Sequence[Predictions], gold: Sequence[Gold]) -> dict[str, float | None]:
    """How much of what the other figures are over has an answer, in their denominators.

    Claims that are labelled over claims (`None` for a method that labels none), and turns that have a verdict over
    turns: claim coverage can't see a turn that failed before it had claims.
    """
    labels: list[Label | None] = []
    scored = turns = 0
    for found, expected in zip(predicted, gold, strict=True):
        for index in expected:
            prediction = found.get(index)
            turns += 1
            scored += prediction is not None and prediction.strict is not None
            labels += (prediction.labels or ()) if prediction is not None else ()
    labelled = sum(label is not None for label in labels)
    return {
        "coverage": rounded(labelled / len(labels)) if labels else None,
        "turn_coverage": rounded(scored / turns) if turns else None,
    }


def claim_figures(
    names: Sequence[str],
    predicted: Sequence[Predictions],
    gold: Sequence[Gold],
    clusters: Sequence[Hashable] | None = None,
) -> dict[str, Any]:
    """Figures over given claims: labels side by side, in the input's order.

    Args:
        names: the conversations' ids, for messages.
        clusters: as for `turn_figures`.

    Raises:
        VistaError: a turn's predicted claims aren't the given ones.
    """
    matrices: list[Confusion[str]] = []
    truth: list[str] = []
    said: list[str | None] = []
    confidence: list[float | None] = []
    for name, found, turns in zip(names, predicted, gold, strict=True):
        expected, labels = [], []
        for index, turn in turns.items():
            if turn.claims is None:
                continue
            prediction = found[index]
            if prediction.claims != turn.claims or prediction.labels is None:
                raise VistaError(f"{name}, turn {index}: the result's claims are not the given ones")
            expected += [label.value for label in turn.labels]
            labels += [label.value if label else None for label in prediction.labels]
            confidence += prediction.confidence or [None] * len(turn.labels)
        matrices.append(claim_confusion(expected, labels))
        truth += expected
        said += labels
    total, units = pool(matrices), _clustered(matrices, clusters)
    probable = all(value is not None for value, label in zip(confidence, said, strict=True) if label is not None)
    return {
        "claims": total.n,
        "claim_accuracy": rounded(total.accuracy),
        "claim_accuracy_95": interval(units, lambda sample: pool(sample).accuracy),
        "macro_f1": rounded(total.macro_f1),
        "macro_f1_95": interval(units, lambda sample: pool(sample).macro_f1),
        "macro_f1_present": rounded(total.macro_f1_present),
        # A method that gives labels without probabilities has no calibration.
        "ece": rounded(calibration(truth, said, confidence).ece) if probable else None,
        "per_class": total.as_dict(),
        "label_order": [label.value for label in LABELS],
    }
