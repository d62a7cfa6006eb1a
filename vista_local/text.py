"""Text helpers that know no model: sentences, words, numbers, and normal forms for comparison."""

from __future__ import annotations

import re
from collections.abc import Callable

_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr vs etc e.g i.e cf no nos vol fig approx dept est inc ltd co corp "
    "jan feb mar apr jun jul aug sep sept oct nov dec mt ft gen col lt sgt rev hon a.m p.m u.s u.k".split()
)
# A run of stops is tried from its beginning only and given back to nobody: else "....x" takes quadratic time.
_END = re.compile(r"(?:(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s|$))|[。！？]+|\n+")
#: Longest word before a full stop that is looked at: no abbreviation or list number is longer.
_LAST_WORD = 32
_WORD = re.compile(r"\w+(?:[.,]\d+)*", re.UNICODE)
_NEXT = re.compile(r"\s*\S")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def counted(number: int, noun: str) -> str:
    """A number and what it counts: "1 claim", "2 claims"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def split_sentences(text: str) -> list[str]:
    """Split `text` into sentences, without losing a character that is not white space.

    Line breaks always end a sentence (list items and table rows stay apart). Abbreviations,
    initials and list numbers ("3.") don't. Works for CJK punctuation too.
    """
    sentences: list[str] = []
    start = 0
    for match in _END.finditer(text):
        if match.group().startswith("."):
            # Only the end of the sentence: it may be a megabyte long, with a stop every other character.
            before = text[max(start, match.start() - _LAST_WORD) : match.start()]
            last = before.rstrip(".…\"'”’)] ").rsplit(None, 1)
            word = last[-1].lower() if last else ""
            initial = len(word) == 1 and word.isalpha() and word != "i"
            list_number = word.isdigit() and match.start() - start <= _LAST_WORD and before.strip() == word
            following = _NEXT.match(text, match.end())
            abbreviated = word.lstrip("(\"'") in _ABBREVIATIONS and following is not None
            if (initial and following) or list_number or abbreviated:
                continue
        if piece := text[start : match.end()].strip():
            sentences.append(piece)
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


def tail_words(text: str, limit: int, count: Callable[[str], int]) -> str:
    """The last words of `text` that fit into `limit` tokens by `count`, behind an ellipsis where cut."""
    if count(text) <= limit:
        return text
    kept = text.split()
    # More words than tokens allowed can't fit: a long text is not measured again for each cut.
    while kept and (len(kept) > limit or count("… " + " ".join(kept)) > limit):
        kept = kept[max(1, len(kept) // 8) :]
    return "… " + " ".join(kept) if kept else ""
