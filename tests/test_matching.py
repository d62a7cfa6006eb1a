"""Matching of claim lists: values by hand, and the optimum against brute force."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.matching import THRESHOLD, Agreement, agree, match_claims, pooled_agreement, token_f1
from vista_local.text import numbers


def test_token_f1_counts_words_as_a_multiset_without_case() -> None:
    assert token_f1("Paris is big.", "paris IS big") == 1.0
    assert token_f1("Paris is big", "Paris is very big") == pytest.approx(6 / 7)
    assert token_f1("very very big", "very big") == pytest.approx(4 / 5)
    assert token_f1("a b", "c d") == 0.0
    assert token_f1("?!", "?!") == 0.0


def test_threshold_is_reached_at_exactly_three_fifths() -> None:
    assert token_f1("a b c d e", "a b c x y") == THRESHOLD
    assert agree(["a b c d e"], ["a b c x y"]).matched == 1
    assert agree(["a b c d e f"], ["a b c x y"]).matched == 0
    assert agree(["a b c d e f"], ["a b c x y"], threshold=0.5).matched == 1
    with pytest.raises(ValueError, match="threshold"):
        match_claims(["a"], ["a"], threshold=0.0)


@pytest.mark.parametrize(
    ("predicted", "teacher", "matched"),
    [
        ("The ship sank in 1912.", "The ship sank in 1912", 1),
        ("The ship sank in 1912.", "The ship sank in 1921.", 0),
        ("The ship sank in 1912.", "The ship sank.", 0),
        ("It has 1,500 rooms in total", "It has 1500 rooms in total", 1),
        ("It rose from 3 to 4 and 4 again", "It rose from 3 to 4 and 3 again", 0),
    ],
)
def test_numbers_must_be_equal_as_multisets(predicted: str, teacher: str, matched: int) -> None:
    assert token_f1(predicted, teacher) >= THRESHOLD
    assert agree([predicted], [teacher]).matched == matched


def test_a_claim_is_matched_once() -> None:
    assert agree(["cats purr"] * 3, ["cats purr"]) == Agreement(matched=1, predicted=3, teacher=1, turns=1)


def test_more_pairs_come_before_closer_pairs() -> None:
    # Two perfect pairs (total 2.0) leave the third predicted claim without a partner; giving both up
    # makes three pairs of 0.6 (total 1.8). A matching by total F1 alone would stop at two.
    predicted = ["a b c d e", "c d e f g", "a b c x y"]
    teacher = ["a b c d e", "c d e f g", "e f g h i"]
    assert token_f1(predicted[0], teacher[0]) == token_f1(predicted[1], teacher[1]) == 1.0
    assert token_f1(predicted[2], teacher[2]) < THRESHOLD
    pairs = match_claims(predicted, teacher)
    assert [(p.predicted, p.teacher, p.f1) for p in pairs] == [(0, 1, 0.6), (1, 2, 0.6), (2, 0, 0.6)]


def test_among_equal_numbers_of_pairs_the_closest_win() -> None:
    pairs = match_claims(["a b c d", "a b c e"], ["a b c e", "a b c d"])
    assert [(p.predicted, p.teacher, p.f1) for p in pairs] == [(0, 1, 1.0), (1, 0, 1.0)]


def test_counts_are_pooled_over_turns() -> None:
    turns = [
        (["the sky is blue", "grass is green", "I am lost"], ["the sky is blue", "grass is green"]),
        ([], ["snow is white"]),
        ([], []),
    ]
    total = pooled_agreement(turns)
    assert total == Agreement(matched=2, predicted=3, teacher=3, turns=3)
    assert (total.precision, total.recall, total.f1, total.claims_ratio) == (2 / 3, 2 / 3, 2 / 3, 1.0)
    assert total.as_dict()["f1"] == 2 / 3


def test_ratios_without_a_denominator_are_none() -> None:
    nothing = agree([], [])
    assert nothing == Agreement(0, 0, 0, 1)
    assert (nothing.precision, nothing.recall, nothing.f1, nothing.claims_ratio) == (None, None, None, None)
    missed = agree([], ["snow is white"])
    assert (missed.precision, missed.recall, missed.f1) == (None, 0.0, 0.0)
    invented = agree(["snow is white"], [])
    assert (invented.precision, invented.recall, invented.f1, invented.claims_ratio) == (0.0, None, 0.0, None)


def brute_force(predicted: list[str], teacher: list[str]) -> tuple[int, float]:
    """The best (number of pairs, total F1) over all ways to give each predicted claim a partner."""
    if len(predicted) > len(teacher):
        predicted, teacher = teacher, predicted
    best = (0, 0.0)
    for order in permutations(range(len(teacher)), len(predicted)):
        edges = [(predicted[i], teacher[j]) for i, j in enumerate(order)]
        values = [token_f1(a, b) for a, b in edges if sorted(numbers(a)) == sorted(numbers(b))]
        admissible = [value for value in values if value >= THRESHOLD]
        best = max(best, (len(admissible), round(sum(admissible), 9)))
    return best


# No deadline: on a busy machine a slow example is no failure.
UNHURRIED = settings(max_examples=200, deadline=None)

# Few words, so that many edges are admissible and compete.
claim = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "7"]), min_size=0, max_size=6).map(" ".join)
claim_list = st.lists(claim, max_size=5)


@UNHURRIED
@given(claim_list, claim_list)
def test_matching_equals_brute_force(predicted: list[str], teacher: list[str]) -> None:
    pairs = match_claims(predicted, teacher)
    number, total = brute_force(predicted, teacher)
    assert len(pairs) == number
    assert sum(p.f1 for p in pairs) == pytest.approx(total, abs=1e-8)
    assert len({p.predicted for p in pairs}) == len({p.teacher for p in pairs}) == number
    for p in pairs:
        assert p.f1 == token_f1(predicted[p.predicted], teacher[p.teacher]) >= THRESHOLD
        assert sorted(numbers(predicted[p.predicted])) == sorted(numbers(teacher[p.teacher]))
