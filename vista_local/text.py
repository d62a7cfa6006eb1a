"""Text helpers that know no model: sentences, words, numbers, and normal forms for comparison."""

from __future__ import annotations

import re

_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr vs etc e.g i.e cf no nos vol fig approx dept est inc ltd co corp "
    "jan feb mar apr jun jul aug sep sept oct nov dec mt ft gen col lt sgt rev hon a.m p.m u.s u.k".split()
)
_END = re.compile(r"(?:[.!?…]+[\"'”’)\]]*(?=\s|$))|[。！？]+|\n+")
_WORD = re.compile(r"\w+(?:[.,]\d+)*", re.UNICODE)
_NEXT = re.compile(r"\s*\S")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def split_sentences(text: str) -> list[str]:
    """Split `text` into sentences, without losing a character that is not white space.

    Line breaks always end a sentence (list items and table rows stay apart). Abbreviations,
    initials and list numbers ("3.") don't. Works for CJK punctuation too.
    """
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(text):
        piece = text[start : match.end()]
        if match.group().startswith("."):
            last = piece.rstrip(".…\"'”’)] ").rsplit(None, 1)
            word = last[-1].lower() if last else ""
            initial = len(word) == 1 and word.isalpha() and word != "i"
            list_number = word.isdigit() and piece.strip().rstrip(".") == word
            following = _NEXT.match(text, match.end())
            abbreviated = word.lstrip("(\"'") in _ABBREVIATIONS and following is not None
            if (initial and following) or list_number or abbreviated:
                continue
        if piece.strip():
            sentences.append(piece.strip())
        start = match.end()
    rest = text[start:].strip()
    if rest:
        sentences.append(rest)
    return sentences


def words(text: str) -> list[str]:
    """Lower-cased words and numbers of `text`, in order."""
    return [w.lower() for w in _WORD.findall(text)]


def numbers(text: str) -> list[str]:
    """Numbers written with digits, thousands separators removed, in order."""
    found = []
    for number in _NUMBER.findall(text):
        plain = re.sub(r",(?=\d{3}(?:\D|$))", "", number)
        found.append(plain)
    return found


def normal_form(text: str) -> str:
    """Text reduced to its words: two claims with one normal form are duplicates."""
    return " ".join(words(text))
