"""The module for `evaluate`: loaded by path without a connection, equal to scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("evaluate", reason="needs the [bench] extra")

import evaluate
import numpy as np
from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score

from vista_local.labels import LABELS
from vista_local.offline import offline
from vista_local.vista_metric import PATH

NAMES = [label.value for label in LABELS]


@pytest.fixture(scope="module")
def metric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # evaluate copies the module into its cache; the guard refuses any connection on the way.
    with offline():
        yield evaluate.load(PATH, cache_dir=str(tmp_path_factory.mktemp("evaluate")))


@settings(max_examples=15)
@given(
    pairs=st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from([*NAMES, None])),
        min_size=1,
        max_size=20,
    )
)
@example(pairs=[(NAMES[0], None), (NAMES[0], NAMES[0])])
@example(pairs=[(NAMES[0], None)])
def test_figures_equal_sklearn(metric: Any, pairs: list[tuple[str, str | None]]) -> None:
    gold, predicted = [g for g, _ in pairs], [f for _, f in pairs]
    figures = metric.compute(predictions=predicted, references=gold)
    assert figures["coverage"] == pytest.approx(1 - predicted.count(None) / len(predicted))
    found = ["unscored" if f is None else f for f in predicted]
    assert figures["accuracy"] == pytest.approx(accuracy_score(gold, found))
    assert figures["macro_f1"] == pytest.approx(f1_score(gold, found, labels=NAMES, average="macro", zero_division=0))
    by_label = f1_score(gold, found, labels=NAMES, average=None, zero_division=0)
    assert [figures[f"f1_{n.lower()}"] or 0.0 for n in NAMES] == pytest.approx(list(by_label))
    if figures["kappa"] is not None:
        assert figures["kappa"] == pytest.approx(cohen_kappa_score(gold, found))


def test_unscored_claims_are_wrong_and_turns_are_judged_whole(metric: Any) -> None:
    figures = metric.compute(
        predictions=["VERIFIED", None, "subjective", "OUT_OF_SCOPE"],
        references=["VERIFIED", "VERIFIED", "ABSTAIN", "OUT-OF-SCOPE"],
        turns=["a", "a", "b", "c"],
    )
    assert figures["accuracy"] == 0.5 and figures["coverage"] == 0.75 and figures["turns"] == 3
    # Strict: gold T F F, said F F F; safe: gold T T T, said F T T.
    assert figures["strict_accuracy"] == pytest.approx(2 / 3) and figures["safe_accuracy"] == pytest.approx(2 / 3)
    assert figures["f1_contradicted"] is None


def test_unscored_claims_may_stand_anywhere_however_they_are_added(metric: Any) -> None:
    found, gold = [None, "VERIFIED", None, "ABSTAIN", None], ["VERIFIED"] * 5
    wanted = metric.compute(predictions=found, references=gold)
    assert (wanted["accuracy"], wanted["coverage"]) == (0.2, 0.4)
    for prediction, reference in zip(found, gold, strict=True):
        metric.add(prediction=prediction, reference=reference)
    assert metric.compute() == wanted
    for prediction, reference in zip(found, gold, strict=True):
        metric.add(predictions=prediction, references=reference)  # as combined metrics call it
    assert metric.compute() == wanted
    for part in (slice(0, 1), slice(1, 3), slice(3, 5)):
        metric.add_batch(predictions=np.array(found[part], dtype=object), references=gold[part])
    assert metric.compute() == wanted


def test_an_unknown_label_and_missing_turns_are_refused(metric: Any) -> None:
    with pytest.raises(ValueError, match="unknown label 'MAYBE'"):
        metric.compute(predictions=["MAYBE"], references=["VERIFIED"])
    with pytest.raises(ValueError, match="unknown label ''"):
        metric.compute(predictions=[""], references=["VERIFIED"])
    with pytest.raises(ValueError, match="1 claims but 2 turns"):
        metric.compute(predictions=["VERIFIED"], references=["VERIFIED"], turns=["a", "b"])
