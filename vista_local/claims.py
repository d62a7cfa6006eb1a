"""Claim lists as models write them, read back; and the guards on what decompose makes up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vista_local.text import numbers, words

_BULLET = re.compile(r"^\s*(?:[-*•‣–—·](?:\s+|$)|\(?\d{1,3}[.):](?:\s+|$)|[-•‣](?=\S))")
_EMPTY = re.compile(r"^\W*(?:none|no claims?|n/?a|nothing|there are no claims)\W*$", re.IGNORECASE)
_FENCE = re.compile(r"^\s*```")

_NUMBER_WORDS = {
    w: str(n)
    for n, w in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty".split()
    )
} | {w: str(10 * n) for n, w in enumerate("thirty forty fifty sixty seventy eighty ninety".split(), start=3)}
_NUMBER_WORDS |= {"hundred": "100", "thousand": "1000", "once": "1", "twice": "2", "dozen": "12", "half": "50"}
_CAPITALISED = re.compile(r"\b[^\W\d_a-z][\w'’-]*")
#: Capitalised by convention, or part of how claims name the speakers.
_FREE_WORDS = frozenset("i assistant user yes no ok mr mrs ms dr".split())


@dataclass(frozen=True)
class ParsedClaims:
    """Claims in order, without duplicates; `unfinished` is a last line that was cut off."""

    claims: tuple[str, ...]
    duplicates: int = 0
    unfinished: str | None = None


def parse_claims(text: str, finished: bool = True) -> ParsedClaims:
    """Read a claim list.

    Understands bullets, "10." and "(3)" numbering, a preamble before the list, a claim that runs
    over two lines, code fences, and "None". Text without any bullet is read line by line.

    Args:
        text: the model's answer.
        finished: false if the answer was cut at a limit: then its last line is not a claim.
    """
    lines = [line.rstrip() for line in text.splitlines() if not _FENCE.match(line)]
    bulleted = any(_BULLET.match(line) for line in lines)
    items: list[str] = []
    in_list = after_blank = False  # whether the last line belongs to an item; whether a blank one precedes
    for line in lines:
        if not line:
            after_blank = True
            continue
        bullet = _BULLET.match(line)
        body = line[bullet.end() :].strip() if bullet else line.strip()
        in_list = True
        if bulleted and not bullet:
            if items and not after_blank and not re.search(r"[.!?:]$", items[-1]):
                items[-1] = f"{items[-1]} {body}".strip()  # a claim on two lines
            else:
                in_list = False  # a preamble, or a remark after the list
        elif not bulleted and body.endswith(":"):
            in_list = False  # preamble of a list without bullets
        else:
            items.append(body)
        after_blank = False
    unfinished = None
    last = text.rpartition("\n")[2]
    if not finished and last.strip() and not _FENCE.match(last):
        unfinished = (items.pop() if in_list else last.strip()) or None
    claims: list[str] = []
    seen: set[str] = set()
    duplicates = 0
    for item in items:
        # A claim in quotes as a whole, but not one that begins and ends with two quotations.
        claim = item.strip('"“” ') if item.count('"') == 2 and item[:1] == '"' == item[-1:] else item
        if not re.search(r"\w", claim) or _EMPTY.match(claim):
            continue
        key = " ".join(claim.split()).rstrip(".").casefold()
        if key in seen:
            duplicates += 1
            continue
        seen.add(key)
        claims.append(" ".join(claim.split()))
    return ParsedClaims(tuple(claims), duplicates, unfinished)


def is_claim_list(text: str) -> bool:
    """Whether an answer keeps to the form that was asked for: some bulleted line, or None alone.

    `parse_claims` is lenient for the sake of small models; a sentence without a bullet from a large
    one is a refusal or a remark, and no claim.
    """
    return bool(_EMPTY.match(text.strip())) or any(_BULLET.match(line) for line in text.splitlines())


def repeats_earlier_line(text: str) -> bool:
    """Whether the last complete line of a growing answer repeats an earlier one (a loop)."""
    lines = [_BULLET.sub("", line).strip().rstrip(".").casefold() for line in text.split("\n")[:-1] if line.strip()]
    return len(lines) > 1 and lines[-1] in lines[:-1]


def _stem(word: str) -> str:
    word = word.lower().replace("’", "'")
    word = word.removesuffix("'s").removesuffix("'")
    return word.removesuffix("s") if len(word) > 3 else word


@dataclass(frozen=True)
class Details:
    """What a text can support in a claim: its words, stemmed, and its numbers, as digits."""

    words: frozenset[str]
    numbers: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Details:
        """The details of one utterance; worked out once, however many claims are held against it."""
        stems = (_stem(part) for word in re.findall(r"[\w'’-]+", text) for part in (word, *word.split("-")))
        found: set[str] = set()
        for number in numbers(text):
            found.add(number)
            found.update(re.split(r"[.,]", number))
        for word in words(text):
            if word in _NUMBER_WORDS:
                found.add(_NUMBER_WORDS[word])
            if digits := re.sub(r"\D+", " ", word).split():
                found.update(digits)
        return cls(frozenset(stems), frozenset(found))


def unsupported_details(claim: str, sources: Sequence[str | Details]) -> list[str]:
    """Numbers and capitalised words of a claim that occur in none of `sources` (turn and history).

    The first word of the claim is exempt, since every sentence starts with a capital. Number words
    equal digits; case, plural and possessive endings don't matter.
    """
    known = [Details.of(source) if isinstance(source, str) else source for source in sources]

    def said(stem: str) -> bool:
        return any(stem in source.words for source in known)

    def counted(number: str) -> bool:
        return any(number in source.numbers for source in known)

    missing = [n for n in numbers(claim) if not counted(n) and not all(map(counted, re.split(r"[.,]", n)))]
    first = re.search(r"\w", claim)
    start = first.start() if first else 0
    for match in _CAPITALISED.finditer(claim):
        word = match.group()
        if match.start() == start or word.lower() in _FREE_WORDS or any(c.isdigit() for c in word):
            continue
        if not word[0].isupper():  # "équipe", or a script without capitals
            continue
        initials = "".join(word.split("."))
        parts = [p for p in word.split("-") if p]
        if said(_stem(word)) or said(_stem(initials)) or all(said(_stem(p)) for p in parts):
            continue
        missing.append(word)
    return missing
