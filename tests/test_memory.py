"""The knowledge store: what joins, what merges, and what is shown when not all fits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local.bm25 import K1, B, bm25_scores
from vista_local.labels import LABELS, Label
from vista_local.memory import BACKGROUND_TURN, Entry, Kind, KnowledgeStore

UNHURRIED = settings(max_examples=50, deadline=None)
V, C, L, S, A = LABELS


def count(text: str) -> int:
    return len(text.split())


def stored(store: KnowledgeStore) -> list[tuple[str, Kind, int, int]]:
    return [(e.text, e.kind, e.turn, e.claim) for e in store.entries]


def test_only_verified_and_out_of_scope_claims_join() -> None:
    store = KnowledgeStore()
    store.add_turn(3, [("v", V), ("c", C), ("l", L), ("s", S), ("a", A), ("unscored", None)])
    assert stored(store) == [("v", Kind.FACT, 3, 0), ("s", Kind.STATED, 3, 3)]


def test_background_facts_come_first() -> None:
    store = KnowledgeStore(["Paris is big", " ", "Lyon is old"])
    store.add_turn(1, [("Nice is warm", V)])
    assert stored(store) == [
        ("Paris is big", Kind.FACT, BACKGROUND_TURN, 0),
        ("Lyon is old", Kind.FACT, BACKGROUND_TURN, 2),
        ("Nice is warm", Kind.FACT, 1, 0),
    ]


def test_trusted_turns_join_as_facts() -> None:
    store = KnowledgeStore()
    store.trust_turn(0, ["Paris is big", "Lyon is old"])
    assert stored(store) == [("Paris is big", Kind.FACT, 0, 0), ("Lyon is old", Kind.FACT, 0, 1)]


@pytest.mark.parametrize("again", ["Paris is big", "paris is  BIG.", " Paris is big. "])
def test_duplicates_merge_and_keep_the_earlier_place(again: str) -> None:
    store = KnowledgeStore()
    store.add_turn(1, [("Paris is big", V), ("Lyon is old", V)])
    store.add_turn(3, [(again, V), ("Nice is warm", V)])
    assert [(e.text, e.turn) for e in store.entries] == [("Paris is big", 1), ("Lyon is old", 1), ("Nice is warm", 3)]
    assert len(store) == 3


@pytest.mark.parametrize(("first", "second"), [(S, V), (V, S), (V, V)])
def test_a_duplicate_is_a_fact_once_it_was_verified(first: Label, second: Label) -> None:
    store = KnowledgeStore()
    store.add_turn(1, [("x", first)])
    store.add_turn(3, [("x", second)])
    assert stored(store) == [("x", Kind.FACT, 1, 0)]


def test_stated_entries_are_marked() -> None:
    assert Entry("x", Kind.STATED, 1, 0).line().stated
    assert not Entry("x", Kind.FACT, 1, 0).line().stated


def filled(*texts: str) -> KnowledgeStore:
    store = KnowledgeStore()
    for turn, text in enumerate(texts):
        store.add_turn(turn, [(text, V)])
    return store


def test_everything_is_shown_in_order_where_it_fits() -> None:
    store = filled("alpha one", "beta two", "gamma three")
    shown = store.select(["nothing in common"], 15, count)  # three entries of 2 + 3 tokens
    assert shown.entries == store.entries
    assert shown.omitted == 0


def test_past_the_budget_the_relevant_are_shown_in_order() -> None:
    store = filled("gamma ray", "alpha one", "beta two", "epsilon three", "delta four")
    shown = store.select(["about beta", "about gamma"], 14, count)
    assert [e.text for e in shown.entries] == ["gamma ray", "beta two"]
    assert shown.omitted == 3


def test_ranking_uses_all_claims_of_the_turn() -> None:
    store = filled("alpha one", "beta two", "gamma three", "delta four")
    shown = store.select(["first alpha", "then beta"], 10, count)
    assert [e.text for e in shown.entries] == ["alpha one", "beta two"]


def test_ties_go_to_the_newer() -> None:
    store = filled("alpha one", "beta two", "gamma three", "delta four")
    shown = store.select(["unrelated"], 10, count)
    assert [e.text for e in shown.entries] == ["gamma three", "delta four"]
    assert shown.omitted == 2


def test_an_entry_that_is_too_long_gives_way_to_the_next_best() -> None:
    store = filled("alpha alpha alpha alpha alpha alpha alpha alpha", "beta one", "gamma two")
    shown = store.select(["alpha"], 10, count)
    assert [e.text for e in shown.entries] == ["beta one", "gamma two"]


@given(
    st.lists(st.text("ab ", min_size=1, max_size=12), max_size=12),
    st.text("ab ", max_size=8),
    st.integers(0, 40),
    st.sampled_from([V, S]),
)
@UNHURRIED
def test_selection_fits_keeps_order_and_counts_what_is_left_out(
    texts: list[str], claim: str, budget: int, label: Label
) -> None:
    store = KnowledgeStore()
    store.add_turn(1, [(t, label) for t in texts])
    shown = store.select([claim], budget, count)
    assert len(shown.entries) + shown.omitted == len(store)
    assert [e for e in store.entries if e in shown.entries] == list(shown.entries)
    lines = "\n".join(("- (stated) " if e.kind is Kind.STATED else "- ") + e.text for e in shown.entries)
    assert count(lines) <= budget


def test_bm25_by_hand() -> None:
    documents = ["the cat sat", "the dog sat down here", "a bird"]
    lengths, average = [3, 5, 2], 10 / 3

    def term(df: int, tf: int, length: int) -> float:
        idf = math.log(1 + (3 - df + 0.5) / (df + 0.5))
        return idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / average))

    scores = bm25_scores(documents, "Sat cat?")
    assert scores == pytest.approx([term(2, 1, lengths[0]) + term(1, 1, lengths[0]), term(2, 1, lengths[1]), 0.0])


def test_bm25_prefers_rare_words_and_counts_query_words_once() -> None:
    documents = ["common rare", "common other", "common third"]
    scores = bm25_scores(documents, "common common common rare")
    assert scores[0] > scores[1] == scores[2] > 0
    assert scores == bm25_scores(documents, "rare common")


def test_bm25_without_words() -> None:
    assert bm25_scores([], "x") == []
    assert bm25_scores(["", "..."], "x") == [0.0, 0.0]
    assert bm25_scores(["x"], "") == [0.0]
