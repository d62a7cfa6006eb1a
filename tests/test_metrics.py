"""Metrics: values by hand, and properties against scikit-learn and scipy."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest  # type: ignore[import-untyped]
from sklearn import metrics as sk  # type: ignore[import-untyped]

from vista_local.labels import LABELS, Label
from vista_local.metrics import (
    Confusion,
    accuracy,
    balanced_accuracy,
    boolean_macro_f1,
    bootstrap_interval,
    calibration,
    claim_confusion,
    cohen_kappa,
    confusion,
    expected_calibration_error,
    macro_f1,
    macro_f1_present,
    mcnemar_exact,
    pool,
    turn_confusion,
)

V, C, L, S, A = LABELS

# No deadline: on a busy machine a slow example is no failure.
UNHURRIED = settings(max_examples=60, deadline=None)

label_pairs = st.lists(
    st.tuples(st.sampled_from(LABELS), st.one_of(st.none(), st.sampled_from(LABELS))), min_size=1, max_size=40
)
boolean_pairs = st.lists(st.tuples(st.booleans(), st.sampled_from([True, False, None])), min_size=1, max_size=40)


def strings(values: Sequence[object]) -> list[str]:
    """Labels for scikit-learn: an unscored prediction is a sixth value, outside the `labels` argument."""
    return ["UNSCORED" if value is None else str(value) for value in values]


NAMES = [label.value for label in LABELS]


# --- labels ---------------------------------------------------------------------------------------


@UNHURRIED
@given(label_pairs)
def test_claim_figures_equal_sklearn(pairs: list[tuple[Label, Label | None]]) -> None:
    gold, predicted = [g for g, _ in pairs], [p for _, p in pairs]
    y, z = strings(gold), strings(predicted)
    assert accuracy(gold, predicted) == pytest.approx(sk.accuracy_score(y, z))
    assert macro_f1(gold, predicted) == pytest.approx(sk.f1_score(y, z, labels=NAMES, average="macro", zero_division=0))
    present = [name for name in NAMES if name in y]
    assert macro_f1_present(gold, predicted) == pytest.approx(
        sk.f1_score(y, z, labels=present, average="macro", zero_division=0)
    )
    matrix = claim_confusion(gold, predicted)
    expected = sk.confusion_matrix(y, z, labels=[*NAMES, "UNSCORED"])
    assert np.array_equal(np.array(matrix.counts), expected[:5, :5])
    assert np.array_equal(np.array(matrix.unscored), expected[:5, 5])
    precision, recall, f1, support = sk.precision_recall_fscore_support(y, z, labels=NAMES, zero_division=0)
    for i, score in enumerate(matrix.classes):
        assert score.support == support[i]
        assert (score.precision or 0.0) == pytest.approx(precision[i])
        assert (score.recall or 0.0) == pytest.approx(recall[i])
        assert (score.f1 or 0.0) == pytest.approx(f1[i])
        # scikit-learn's 0 and our None differ exactly where there is nothing to divide by.
        assert (score.precision is None) == (z.count(score.label) == 0)
        assert (score.recall is None) == (y.count(score.label) == 0)


@UNHURRIED
@given(boolean_pairs)
def test_turn_figures_equal_sklearn(pairs: list[tuple[bool, bool | None]]) -> None:
    gold, predicted = [g for g, _ in pairs], [p for _, p in pairs]
    y, z = strings(gold), strings(predicted)
    assert boolean_macro_f1(gold, predicted) == pytest.approx(
        sk.f1_score(y, z, labels=["False", "True"], average="macro", zero_division=0)
    )
    if len(set(gold)) == 2:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn warns about predictions outside gold's values
            assert balanced_accuracy(gold, predicted) == pytest.approx(sk.balanced_accuracy_score(y, z))
    else:
        assert balanced_accuracy(gold, predicted) is None


@UNHURRIED
@given(label_pairs)
@example([(V, V), (V, V)])
@example([(V, C), (V, C)])
@example([(V, None)])
def test_kappa_equals_sklearn(pairs: list[tuple[Label, Label | None]]) -> None:
    first, second = [g for g, _ in pairs], [p for _, p in pairs]
    value = cohen_kappa(first, second)
    if len({*first, *second}) == 1:
        assert value is None
    else:
        assert value == pytest.approx(sk.cohen_kappa_score(strings(first), strings(second)))


def test_constant_answers_have_the_published_figures() -> None:
    """Always VERIFIED on the paper's human set: 47.07 / 12.80; every turn unverifiable: 83.26 strict."""
    # 418 of 888 claims are VERIFIED; how the rest divide doesn't matter to either figure.
    gold = [V] * 418 + [C] * 8 + [L] * 213 + [S] * 200 + [A] * 49
    assert accuracy(gold, [V] * 888) == pytest.approx(0.4707, abs=5e-5)
    assert macro_f1(gold, [V] * 888) == pytest.approx(0.1280, abs=5e-5)
    turns = [True] * 38 + [False] * 189
    assert accuracy(turns, [False] * 227) == pytest.approx(0.8326, abs=5e-5)
    assert balanced_accuracy(turns, [False] * 227) == 0.5


def test_unscored_counts_as_wrong() -> None:
    gold, predicted = [V, V, C, L], [V, None, C, None]
    matrix = claim_confusion(gold, predicted)
    assert accuracy(gold, predicted) == matrix.accuracy == 0.5
    assert (matrix.n, matrix.correct, matrix.unscored) == (4, 2, (1, 0, 1, 0, 0))
    verified, contradicted, lacking, scope, _ = matrix.classes
    assert (verified.precision, verified.recall, verified.f1) == (1.0, 0.5, 2 / 3)
    assert contradicted.f1 == 1.0
    assert (lacking.precision, lacking.recall, lacking.f1, lacking.support) == (None, 0.0, 0.0, 1)
    assert (scope.precision, scope.recall, scope.f1, scope.support) == (None, None, None, 0)
    assert matrix.macro_f1 == pytest.approx((2 / 3 + 1 + 0) / 5)
    assert matrix.macro_f1_present == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert balanced_accuracy([True, True, False], [True, None, False]) == 0.75
    assert cohen_kappa([V, C], [V, None]) == pytest.approx((0.5 - 0.25) / 0.75)


def test_without_items_figures_are_none() -> None:
    matrix = claim_confusion([], [])
    assert (matrix.n, matrix.accuracy, matrix.macro_f1, matrix.macro_f1_present) == (0, None, None, None)
    assert accuracy([], []) is None
    assert macro_f1([], []) is None
    assert macro_f1_present([], []) is None
    assert balanced_accuracy([], []) is None
    assert boolean_macro_f1([], []) is None
    assert cohen_kappa([], []) is None
    assert expected_calibration_error([], [], []) is None
    assert mcnemar_exact([], []) is None


def test_malformed_input_is_refused() -> None:
    with pytest.raises(ValueError, match="2 gold values but 1 predictions"):
        accuracy([V, C], [V])
    with pytest.raises(ValueError, match="gold value 1 is None"):
        claim_confusion([V, None], [V, V])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="item 1: 'MAYBE' is not among"):
        claim_confusion([V, C], [V, "MAYBE"])
    with pytest.raises(ValueError, match="distinct"):
        confusion(["a"], ["a"], ["a", "a"])
    with pytest.raises(ValueError, match="first system"):
        mcnemar_exact([True], [])


@UNHURRIED
@given(st.lists(label_pairs, min_size=1, max_size=4))
def test_pooled_matrices_equal_the_matrix_of_all_items(parts: list[list[tuple[Label, Label | None]]]) -> None:
    matrices = [claim_confusion([g for g, _ in part], [p for _, p in part]) for part in parts]
    everything = [pair for part in parts for pair in part]
    assert pool(matrices) == claim_confusion([g for g, _ in everything], [p for _, p in everything])
    assert matrices[0] + matrices[-1] == pool([matrices[0], matrices[-1]])


def test_pooling_needs_one_label_set() -> None:
    with pytest.raises(ValueError, match="nothing"):
        pool([])
    with pytest.raises(ValueError, match="different labels"):
        pool([confusion(["a"], ["a"], ["a", "b"]), confusion(["a"], ["a"], ["a", "c"])])


def test_as_dict_is_json() -> None:
    loaded = json.loads(json.dumps(claim_confusion([V, C], [V, None]).as_dict()))
    assert loaded["classes"]["VERIFIED"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1, "predicted": 1}
    assert loaded["classes"]["ABSTENTION"]["f1"] is None
    assert (loaded["n"], loaded["unscored"], loaded["accuracy"]) == (2, 1, 0.5)
    assert loaded["confusion"]["counts"][0] == [1, 0, 0, 0, 0]
    assert json.loads(json.dumps(turn_confusion([True], [True]).as_dict()))["confusion"]["labels"] == ["False", "True"]


# --- calibration ----------------------------------------------------------------------------------


def test_ece_by_hand() -> None:
    gold = [V, V, V, V, V]
    predicted = [V, C, V, V, None]
    confidence = [0.95, 0.95, 0.55, 0.40, None]
    result = calibration(gold, predicted, confidence, bins=2)
    # (0, 0.5]: 0.40, right: gap 0.60. (0.5, 1]: mean confidence 2.45 / 3, accuracy 2 / 3: gap 0.15.
    assert result.ece == pytest.approx(1 / 4 * 0.60 + 3 / 4 * 0.15)
    assert (result.n, result.unscored) == (4, 1)
    assert [b.n for b in result.bins] == [1, 3]
    assert result.bins[1].accuracy == pytest.approx(2 / 3)
    assert result.bins[1].confidence == pytest.approx(2.45 / 3)


def test_ece_edges() -> None:
    assert calibration([V], [V], [1.0]).bins[14].n == 1
    assert calibration([V], [V], [0.0]).bins[0].n == 1
    assert calibration([V], [V], [0.5], bins=2).bins[0].n == 1  # bins are closed on the right
    assert calibration([V], [V], [1.0 + 1e-7]).ece == 0.0
    assert len(calibration([V], [V], [0.3]).bins) == 15
    assert calibration([V], [None], [None]).ece is None
    empty = calibration([V], [V], [0.3]).bins[-1]
    assert (empty.n, empty.confidence, empty.accuracy) == (0, None, None)
    for bad in (None, float("nan"), 1.1, -0.1):
        with pytest.raises(ValueError, match="confidence must be in"):
            calibration([V], [V], [bad])
    with pytest.raises(ValueError, match="1 gold values but 2 confidences"):
        calibration([V], [V], [0.1, 0.2])
    with pytest.raises(ValueError, match="bin"):
        calibration([V], [V], [0.1], bins=0)


@UNHURRIED
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), min_size=1, max_size=60))
def test_ece_equals_numpy_digitize(items: list[tuple[bool, int]]) -> None:
    # Multiples of 1/1000 never lie on an edge of the 15 bins except multiples of 1/5, where
    # rounding could decide the bin: leave these out.
    assume(all(k % 200 for _, k in items))
    right = np.array([hit for hit, _ in items], dtype=float)
    sure = np.array([k / 1000 for _, k in items])
    which = np.digitize(sure, np.linspace(0, 1, 16))
    expected = sum(
        (which == b).mean() * abs(right[which == b].mean() - sure[which == b].mean()) for b in np.unique(which)
    )
    value = expected_calibration_error([V] * len(items), [V if hit else C for hit, _ in items], sure.tolist())
    assert value == pytest.approx(expected)


# --- bootstrap ------------------------------------------------------------------------------------


def mean(sample: Sequence[float]) -> float | None:
    return sum(sample) / len(sample) if sample else None


def test_bootstrap_of_a_mean_matches_the_normal_interval() -> None:
    items = np.random.default_rng(7).normal(10.0, 2.0, 400).tolist()
    interval = bootstrap_interval(items, mean, resamples=2000)
    assert interval is not None
    half = 1.96 * np.std(items) / 20
    assert interval.point == pytest.approx(np.mean(items))
    assert interval.low == pytest.approx(interval.point - half, abs=0.15 * half)
    assert interval.high == pytest.approx(interval.point + half, abs=0.15 * half)
    assert (interval.resamples, interval.undefined, interval.level) == (2000, 0, 0.95)


def test_bootstrap_is_seeded_and_level_widens() -> None:
    items = np.random.default_rng(1).normal(size=30).tolist()
    assert bootstrap_interval(items, mean, seed=3) == bootstrap_interval(items, mean, seed=3)
    assert bootstrap_interval(items, mean, seed=3) != bootstrap_interval(items, mean, seed=4)
    wide, narrow = bootstrap_interval(items, mean, level=0.99), bootstrap_interval(items, mean, level=0.5)
    assert wide is not None
    assert narrow is not None
    assert wide.low < narrow.low < narrow.high < wide.high


def test_bootstrap_resamples_whole_conversations() -> None:
    # Ten claims that stand or fall together: resampled one by one the interval would be far narrower.
    matrices = [claim_confusion([V] * 10, [V if i % 2 else C] * 10) for i in range(20)]

    def pooled_accuracy(sample: Sequence[Confusion[str]]) -> float | None:
        return pool(sample).accuracy

    interval = bootstrap_interval(matrices, pooled_accuracy)
    assert interval is not None
    assert interval.point == 0.5
    half = 1.96 * 0.5 / 20**0.5  # 0.22 by conversation; by claim it would be 0.07
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.2)


def test_bootstrap_counts_undefined_draws_and_refuses_nan() -> None:
    def of_positive(sample: Sequence[int]) -> float | None:
        positive = [x for x in sample if x > 0]
        return mean(positive)

    interval = bootstrap_interval([0, 3], of_positive, resamples=400)
    assert interval is not None
    assert (interval.point, interval.low, interval.high) == (3.0, 3.0, 3.0)
    assert 60 < interval.undefined < 140  # both draws are 0 in a quarter of the resamples
    assert bootstrap_interval([], mean) is None
    assert bootstrap_interval([0, 0], of_positive) is None
    with pytest.raises(ValueError, match="NaN"):
        bootstrap_interval([1.0], lambda sample: float("nan"), resamples=2)
    with pytest.raises(ValueError, match="level"):
        bootstrap_interval([1.0], mean, level=1.0)
    with pytest.raises(ValueError, match="resamples"):
        bootstrap_interval([1.0], mean, resamples=0)


# --- McNemar --------------------------------------------------------------------------------------


def test_mcnemar_by_hand() -> None:
    first = [True] * 5 + [False] * 1 + [True] * 3 + [False] * 2
    second = [False] * 5 + [True] * 1 + [True] * 3 + [False] * 2
    result = mcnemar_exact(first, second)
    assert result is not None
    assert (result.only_first, result.only_second) == (5, 1)
    assert result.p_value == 2 * (1 + 6) / 64
    same = mcnemar_exact(first, first)
    assert same is not None
    assert (same.only_first, same.only_second, same.p_value) == (0, 0, 1.0)


@UNHURRIED
@given(st.integers(0, 300), st.integers(0, 300))
@example(150, 150)
@example(0, 1)
def test_mcnemar_equals_binomtest(b: int, c: int) -> None:
    assume(b + c > 0)
    result = mcnemar_exact([True] * b + [False] * c, [False] * b + [True] * c)
    assert result is not None
    assert (result.only_first, result.only_second) == (b, c)
    assert result.p_value == pytest.approx(binomtest(b, b + c, 0.5).pvalue, rel=1e-9)
