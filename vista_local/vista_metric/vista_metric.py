"""Claim and turn figures as a module of Hugging Face's `evaluate`.

    import evaluate
    from vista_local.vista_metric import PATH

    evaluate.load(PATH).compute(
        predictions=["VERIFIED", None], references=["VERIFIED", "SUBJECTIVE"], turns=["c1/1", "c1/3"]
    )

A prediction of `None` is unscored: wrong, and in every denominator. Labels are read in any spelling that
vista-local accepts. The figures are `vista_local.metrics`', which agree with scikit-learn's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate

from vista_local.labels import SAFE_LABELS, Label, parse_label
from vista_local.metrics import claim_confusion, cohen_kappa, turn_confusion

_DESCRIPTION = (
    "Claim accuracy, macro-F1 over the five claim labels of VISTA (arXiv 2510.27052), F1 of each label and Cohen's "
    "kappa; with `turns`, also strict and safe turn accuracy."
)
_CITATION = "VISTA: Verification In Sequential Turn-based Assessment. arXiv:2510.27052"
#: Stands for `None` in what `evaluate` stores, which refuses `None` as the first string. No spelling of a label.
_UNSCORED = "\0"

_INPUTS = """
Args:
    predictions: claim labels, None for a claim without one.
    references: gold claim labels.
    turns: for each claim, which turn it belongs to (any string); optional.
Returns:
    accuracy, macro_f1 (an absent label counts as 0), macro_f1_present, kappa, coverage, f1 by label;
    with turns: strict_accuracy, safe_accuracy, turns. A figure without a denominator is None.
"""


class VistaMetric(evaluate.Metric):  # type: ignore[misc,unused-ignore]
    """The module that `evaluate.load` finds."""

    def _info(self) -> evaluate.MetricInfo:
        features = datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")})
        return evaluate.MetricInfo(
            description=_DESCRIPTION, citation=_CITATION, inputs_description=_INPUTS, features=features
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """As the library's; predictions may be `None` at any place."""
        if predictions is not None:
            predictions = [_stored(label) for label in predictions]
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """As the library's, whose combined metrics say `predictions` here; the prediction may be `None`."""
        prediction = kwargs.pop("predictions", prediction)
        super().add(prediction=_stored(prediction), reference=reference, **kwargs)

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str],
        turns: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        gold = [parse_label(label) for label in references]
        found = [None if label == _UNSCORED else parse_label(label) for label in predictions]
        matrix = claim_confusion(gold, found)
        figures: dict[str, Any] = {
            "accuracy": matrix.accuracy,
            "macro_f1": matrix.macro_f1,
            "macro_f1_present": matrix.macro_f1_present,
            "kappa": cohen_kappa(gold, found),
            "coverage": sum(label is not None for label in found) / len(found) if found else None,
            **{f"f1_{c.label.lower()}": c.f1 for c in matrix.classes},
        }
        return figures if turns is None else figures | _turn_figures(gold, found, turns)


def _stored(label: Any) -> Any:
    return _UNSCORED if label is None else label


def _turn_figures(gold: Sequence[Label], found: Sequence[Label | None], turns: Sequence[str]) -> dict[str, Any]:
    if len(turns) != len(gold):
        raise ValueError(f"{len(gold)} claims but {len(turns)} turns; name the turn of every claim")
    of_turn: dict[str, list[int]] = {}
    for number, turn in enumerate(turns):
        of_turn.setdefault(turn, []).append(number)
    figures: dict[str, Any] = {"turns": len(of_turn)}
    for rule, passing in (("strict", {Label.VERIFIED}), ("safe", set(SAFE_LABELS))):
        truth = [all(gold[i] in passing for i in claims) for claims in of_turn.values()]
        said = [all(found[i] in passing for i in claims) for claims in of_turn.values()]
        figures[f"{rule}_accuracy"] = turn_confusion(truth, said).accuracy
    return figures
