"""Chunks of a turn and windows of a reference: whole sentences, within the limit, nothing lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local.chunking import chunk_turn, split_long, windows

UNHURRIED = settings(max_examples=50, deadline=None)


def by_word(text: str) -> int:
    return len(text.split())


def by_piece(text: str) -> int:
    """Like a subword tokenizer: long words take several tokens, and line breaks take one."""
    return len(re.findall(r"\n|\w{1,3}|[^\w\s]", text))


COUNTS = st.sampled_from([by_word, by_piece, len])
PROSE = st.text(st.sampled_from("abcde. !?\n。") | st.characters(exclude_categories=["Cs"]), max_size=150)


def bare(text: str) -> str:
    return "".join(text.split())


def test_a_short_turn_is_one_chunk_unchanged() -> None:
    text = "One two.  Three four.\n\nFive."
    assert chunk_turn(text, 5, by_word) == [text]
    assert chunk_turn("", 5, by_word) == [""]


def test_chunks_are_whole_sentences() -> None:
    text = "One two three. Four five six. Seven eight nine. Ten."
    assert chunk_turn(text, 8, by_word) == ["One two three.\nFour five six.", "Seven eight nine.\nTen."]


def test_a_long_sentence_becomes_chunks_at_word_boundaries() -> None:
    assert chunk_turn("One. Two three four five six seven. Eight.", 4, by_word) == [
        "One.", "Two three four five", "six seven.", "Eight.",
    ]  # fmt: skip


def test_an_unbroken_string_is_cut_inside() -> None:
    assert split_long("ab " + "x" * 25, 10, len)[0] == "ab"
    pieces = split_long("x" * 25, 10, len)
    assert "".join(pieces) == "x" * 25
    assert max(map(len, pieces)) <= 10


@pytest.mark.parametrize("limit", [0, -1])
def test_pieces_of_no_token_are_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"pieces of {limit} tokens: at least 1 is needed"):
        split_long("some words", limit, by_word)
    with pytest.raises(ValueError, match="at least 1"):
        chunk_turn("Some words.", limit, by_word)
    with pytest.raises(ValueError, match="at least 1"):
        windows(["Some words."], limit, by_word)


@given(PROSE, st.integers(1, 40), COUNTS)
@UNHURRIED
def test_chunks_fit_and_lose_nothing(text: str, limit: int, count: Callable[[str], int]) -> None:
    chunks = chunk_turn(text, limit, count)
    assert bare("".join(chunks)) == bare(text)
    if bare(text):
        assert all(bare(chunk) and count(chunk) <= limit for chunk in chunks)


@given(st.lists(PROSE, max_size=3), st.integers(1, 40), COUNTS)
@UNHURRIED
def test_windows_without_overlap_fit_and_lose_nothing(
    passages: list[str], limit: int, count: Callable[[str], int]
) -> None:
    found = windows(passages, limit, count, overlap=0)
    assert found
    assert bare("".join(found)) == bare("".join(passages))
    assert all(count(w) <= limit for w in found)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=25), st.integers(1, 30), st.integers(1, 3), COUNTS)
@UNHURRIED
def test_overlapping_windows_fit_go_forward_and_lose_nothing(
    lengths: list[int], limit: int, overlap: int, count: Callable[[str], int]
) -> None:
    # Every letter occurs once, so that the place of a window is known.
    letters = map(chr, range(0x4E00, 0x9000))
    sentences = [" ".join("".join(next(letters) for _ in range(n % 4 + 1)) for n in range(m)) + "." for m in lengths]
    whole = bare(" ".join(sentences)).replace(".", "")
    found = windows([" ".join(sentences)], limit, count, overlap)
    assert all(count(w) <= limit for w in found)
    covered = 0
    for window in filter(None, (bare(w).replace(".", "") for w in found)):
        start = whole.find(window)
        assert 0 <= start <= covered < start + len(window)
        covered = start + len(window)
    assert covered == len(whole)


def test_windows_share_two_sentences() -> None:
    sentences = [f"s{i} is here." for i in range(9)]
    found = [w.split("\n") for w in windows([" ".join(sentences)], 20, by_word)]
    assert len(found) > 1
    assert all(len(w) == 5 for w in found[:-1])
    assert all(earlier[-2:] == later[:2] for earlier, later in pairwise(found))
    assert list(dict.fromkeys(s for w in found for s in w)) == sentences


def test_overlap_gives_way_where_the_next_sentence_would_not_fit() -> None:
    long = "aa bb cc dd ee ff gg hh."
    assert windows([f"one two. three four. {long} five six."], 10, by_word) == [
        "one two.\nthree four.",
        long,
        "five six.",
    ]


@pytest.mark.parametrize("passages", [(), ("",), (" \n ",)])
def test_an_empty_reference_is_one_window(passages: tuple[str, ...]) -> None:
    assert [w.strip() for w in windows(passages, 1, len)] == [""]


def test_a_reference_that_fits_is_one_window_unchanged() -> None:
    assert windows(["A b.  C d.", "E f."], 6, by_word) == ["A b.  C d.\nE f."]


def test_a_window_may_span_passages() -> None:
    assert windows(["A b.", "C d.", "E f."], 6, by_word, overlap=0) == ["A b.\nC d.\nE f."]
    assert windows(["A b.", "C d.", "E f."], 5, by_word, overlap=0) == ["A b.", "C d.", "E f."]
    assert windows(["A b.", "C d.", "E f.", "G h."], 7, by_word, overlap=0) == ["A b.\nC d.", "E f.\nG h."]
