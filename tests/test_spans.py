"""Claims kept as places in their turn's text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.spans import Span, cut, locate


def test_a_sentence_of_the_turn_is_a_place_in_it() -> None:
    texts = {"response": 'Yes. "Goats mow", they say!', "reference": "Goats eat grass."}
    assert locate("Goats mow.", texts) == Span("response", 3, 11, "", ".")
    assert locate("Goats eat grass.", texts) == Span("reference", 0, 13, "", ".")
    assert locate("Sheep mow.", texts) is None
    assert locate("goats mow.", texts) is None  # would come back with another capital
    assert locate("...", texts) is None


def test_a_place_holds_in_a_copy_with_other_quotes_and_spaces() -> None:
    span = locate("Goats mow.", {"response": "Yes. Goats mow"})
    assert span is not None
    assert cut(span, {"response": "  Yes.\n“Goats mow”"}) == "Goats mow."


def test_a_place_outside_the_text_is_refused() -> None:
    with pytest.raises(ValueError, match="3 letters and digits; the span is 0 to 4"):
        cut(Span("response", 0, 4, "", ""), {"response": "abc"})


@given(st.text(max_size=40), st.integers(0, 40), st.integers(0, 40), st.sampled_from(["", ".", "!"]))
def test_what_is_located_comes_back(text: str, start: int, length: int, end: str) -> None:
    claim = text[start : start + length] + end
    texts = {"response": text}
    span = locate(claim, texts)
    if span is not None:
        assert cut(span, texts) == claim
    elif any(c.isascii() and c.isalnum() for c in claim) and not end:
        raise AssertionError(f"{claim!r} stands in {text!r} and was not located")
