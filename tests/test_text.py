"""Sentences, words, numbers and normal forms."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local.text import counted, normal_form, numbers, split_sentences, words

UNHURRIED = settings(max_examples=50, deadline=None)
PROSE = st.text(st.sampled_from("abDr.!?…\"') \n。3i") | st.characters(exclude_categories=["Cs"]), max_size=80)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One came. Two left! Did three? Yes.", ["One came.", "Two left!", "Did three?", "Yes."]),
        ("Dr. Smith met Mrs. Jones. They spoke.", ["Dr. Smith met Mrs. Jones.", "They spoke."]),
        ("J. R. Tolkien wrote it. It sold.", ["J. R. Tolkien wrote it.", "It sold."]),
        ("So do I. Then we left.", ["So do I.", "Then we left."]),
        ("See fig. 3 and vol. 2. Done.", ["See fig. 3 and vol. 2.", "Done."]),
        ("It opens at 9 a.m. on Monday. Come.", ["It opens at 9 a.m. on Monday.", "Come."]),
        ("It costs 3.5 dollars. Cheap.", ["It costs 3.5 dollars.", "Cheap."]),
        ("1. Boil water. Add salt.\n2. Wait", ["1. Boil water.", "Add salt.", "2. Wait"]),
        ('He said "yes." Then he left.', ['He said "yes."', "Then he left."]),
        ("He paused... Then he spoke.", ["He paused...", "Then he spoke."]),
        ("巴黎很大。里昂很老！对吗？", ["巴黎很大。", "里昂很老！", "对吗？"]),
        ("Name | Age\nAnn | 30\n\nBob | 31", ["Name | Age", "Ann | 30", "Bob | 31"]),
        ("no end", ["no end"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_sentences(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


@given(PROSE)
@UNHURRIED
def test_sentences_keep_every_character_but_white_space(text: str) -> None:
    sentences = split_sentences(text)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(s == s.strip() and s and "\n" not in s for s in sentences)


def test_one_is_no_plural() -> None:
    assert [counted(n, "bad line") for n in (0, 1, 2)] == ["0 bad lines", "1 bad line", "2 bad lines"]


def test_words_are_lower_cased_and_keep_decimals() -> None:
    assert words("The Zürich-based firm paid 1,200.50 euros, twice.") == [
        "the", "zürich", "based", "firm", "paid", "1,200.50", "euros", "twice",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1,000 or 1,234,567 or 2,500.75", ["1000", "1234567", "2500.75"]),
        ("3.5 and 12,5", ["3.5", "12,5"]),
        ("In 1999, 20 came.", ["1999", "20"]),
        ("none at all", []),
    ],
)
def test_numbers_lose_thousands_separators_only(text: str, found: list[str]) -> None:
    assert numbers(text) == found


def test_normal_form_ignores_case_spacing_and_punctuation() -> None:
    assert normal_form("  Paris, is BIG. ") == normal_form("paris is big") == "paris is big"
    assert normal_form("Paris is big") != normal_form("Paris is big 2")
