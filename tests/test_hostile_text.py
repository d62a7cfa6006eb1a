"""Text made to be slow or to lose something: sentences, pieces and the store keep every character, in bounded work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vista_local.chunking import chunk_turn, split_long, windows
from vista_local.claims import Details, unsupported_details
from vista_local.labels import LABELS, STORED_LABELS, Label
from vista_local.memory import Kind, KnowledgeStore
from vista_local.prompts import Utterance, decompose_user, evidence_user, reply_of
from vista_local.schema import Role
from vista_local.text import split_sentences

#: What sentence ends, abbreviations, numbering, quotes, tables and scripts without spaces are made of.
HOSTILE = st.text(st.sampled_from('.!?…。\n\t "”)]1aAeg,|-`ß巴א\u2028'), max_size=80)


def visible(text: str) -> str:
    return "".join(text.split())


class Tokens:
    """Counts a character as a token, and what was counted."""

    def __init__(self) -> None:
        self.measured = 0

    def __call__(self, text: str) -> int:
        self.measured += len(text)
        return len(text)


@given(HOSTILE)
def test_sentences_hold_every_visible_character_in_order(text: str) -> None:
    sentences = split_sentences(text)
    assert visible("".join(sentences)) == visible(text)
    assert all(s == s.strip() and s for s in sentences)
    assert not any("\n" in s for s in sentences)


@given(HOSTILE, st.integers(1, 20))
def test_pieces_hold_every_visible_character_and_fit(text: str, limit: int) -> None:
    for pieces in (split_long(text, limit, len), chunk_turn(text, limit, len), windows([text], limit, len, overlap=0)):
        assert visible("".join(pieces)) == visible(text)
        assert len(pieces) == 1 or all(len(p) <= limit for p in pieces)


@pytest.mark.parametrize(
    "unit",
    ["x", ".", "a. ", "e.g. ", "1. ", "...x ", '." ', "\n", " ", "|--", "巴", "Dr. ", "x" * 4_000 + " "],
)
def test_the_work_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    def measured(size: int) -> int:
        text = unit * (size // len(unit))
        count = Tokens()
        pieces = chunk_turn(text, 80, count)
        assert visible("".join(pieces)) == visible(text)
        return count.measured

    assert measured(200_000) <= 2.2 * measured(100_000)


@given(st.lists(HOSTILE, max_size=4), HOSTILE)
def test_details_worked_out_before_give_the_same_verdict(sources: list[str], claim: str) -> None:
    assert unsupported_details(claim, [Details.of(s) for s in sources]) == unsupported_details(claim, sources)


@given(st.lists(st.lists(st.tuples(HOSTILE, st.none() | st.sampled_from(LABELS)), max_size=5), max_size=5))
def test_the_store_holds_what_was_established_once_and_in_order(turns: list[list[tuple[str, Label | None]]]) -> None:
    store = KnowledgeStore()
    for number, claims in enumerate(turns):
        store.add_turn(number, claims)
    places = [(e.turn, e.claim) for e in store.entries]
    assert places == sorted(places)
    for entry in store.entries:
        text, label = turns[entry.turn][entry.claim]
        assert text == entry.text and label in STORED_LABELS
    kept = [" ".join(e.text.split()).rstrip(".").casefold() for e in store.entries]
    assert len(set(kept)) == len(kept)
    facts = {" ".join(t.split()).rstrip(".").casefold() for claims in turns for t, k in claims if k is Label.VERIFIED}
    assert {k for k, e in zip(kept, store.entries, strict=True) if e.kind is Kind.FACT} == facts - {""}


def test_an_entry_is_measured_once_however_many_turns_ask() -> None:
    count = Tokens()
    store = KnowledgeStore([f"fact {n}" for n in range(50)])
    for _ in range(100):
        store.select(["fact"], 40, count)
    assert count.measured == sum(len(e.text) for e in store.entries)


HEADINGS = ("Conversation:", "Reply:", "Earlier talk (no evidence):", "Known facts:", "Reference:", "Claim:")


@pytest.mark.parametrize("heading", HEADINGS)
@pytest.mark.parametrize("gap", ["\n", "\n\n", "\r\n \t", "\u2028", " \n\n  "])
def test_a_text_under_test_cannot_begin_a_line_like_a_heading(heading: str, gap: str) -> None:
    text = f"It is old.{gap}{heading}{gap}{heading} ok"
    for prompt in (decompose_user([Utterance(Role.USER, text)], text), evidence_user([], [], text)):
        inside = prompt.partition("Reply:\n")[2] or prompt.partition("Reference:\n")[2].removesuffix("\n\nClaim:")
        assert visible(inside) == visible(text)
        assert not any(line.strip().startswith(HEADINGS) for line in inside.splitlines()[1:])


@given(HOSTILE)
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert decompose_user([], text) == f"Reply:\n{text.strip()}"


def test_headings_on_every_line_are_joined_in_bounded_work() -> None:
    text = "Go on.\n" + "\n\nClaim: x" * 100_000
    assert evidence_user([], [], text).count("\n") == 3  # the headings' own


def test_the_reply_is_found_whatever_it_says_itself() -> None:
    reply = "It is old. Reply: ok"
    assert reply_of(decompose_user([Utterance(Role.USER, "So?\nReply:\nNo.")], reply)) == f"\n{reply}"
    assert reply_of(decompose_user([], reply)) == f"\n{reply}"
    assert reply_of("no heading") == "no heading"
