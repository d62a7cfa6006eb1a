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

# What tells a name at the start of a claim, where every word has a capital. English: of a claim in another language
# the first word is rarely taken for one.
#: Function words, and nouns that stand without article: never a name.
_OPENERS = frozenset(
    "a an the this that these those he it she they we you his her hers its our ours their theirs your yours my mine "
    "who whom whose what which when where why how whoever whatever whichever whenever wherever there here then now "
    "all another any both each either enough every few many more most much neither none one other others several some "
    "such anybody anyone anything everybody everyone everything nobody nothing somebody someone something not never "
    "always often sometimes only just even also still already again soon later earlier perhaps maybe today yesterday "
    "tomorrow about above across after against along among around as at before behind below beneath beside besides "
    "between beyond by despite during except for from in inside into like near of off on onto out outside over past "
    "per since through throughout till to toward towards under unlike until up upon via with within without according "
    "and because but or nor so yet if unless although though while whereas whether than thus therefore however instead "
    "first second third last next children men people women".split()
)
#: Endings of nouns that stand without article too, and of hardly any name.
_ORDINARY = re.compile(r"(?:ing|tion|sion|ment|ness|ity|ism|ship)$")
#: Verbs in the singular, which no plural has; and such as any subject has, with the regular past beside them.
_SINGULAR = (
    "is was has does isn't wasn't hasn't doesn't becomes begins believes belongs brings comes contains gets gives goes "
    "grows keeps knows likes lives makes owns says sells sits speaks stands studies takes teaches tells thinks wants "
    "wears writes"
)
_ANY_NUMBER = (
    "had did hadn't didn't will would won't wouldn't can cannot can't could couldn't may might must should beat became "
    "began bought brought built came chose died drew drove fell felt fought found gave got grew held kept knew laid "
    "led left lost made met paid ran rose said sang sat saw sent showed sold spent spoke stood swam taught thought "
    "threw told took used went won wore wrote"
)
_ADVERB = r"(?:(?:alone|also|always|first|just|later|never|no longer|now|often|once|only|still|then|[a-z]+ly) )?"
#: Behind two names any verb in the singular tells: "Anna Berg plays ...", and "Anna Berg's ..." does.
_MORE_NAMES = re.compile(rf"(?:(?:and )?[^\W\d_a-z][\w-]*(?P<possessive>'s)? (?P<verb>{_ADVERB}[a-z]{{3,}}s\b)?)+")
_SINGULAR_VERB = re.compile(rf"{_ADVERB}(?:{_SINGULAR.replace(' ', '|')})\b")
_ANY_VERB = re.compile(rf"{_ADVERB}(?:{_ANY_NUMBER.replace(' ', '|')}|[a-z]{{2,}}[^\We]ed)\b")


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
    word = word.lower().replace("’", "'").lstrip("'")
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


def _reads_as_name(word: str, rest: str) -> bool:
    """Whether a claim's first word is a name, by its form and by the `rest` of the claim.

    A false alarm loses a claim, so what may be an ordinary word is no name: only a possessive, and the subject of a
    verb that follows at once, or behind further names.
    """
    root, _, ending = word.lower().replace("’", "'").partition("'")
    if root in _OPENERS or root in _FREE_WORDS or root in _NUMBER_WORDS or _ORDINARY.search(root):
        return False
    following = rest.lstrip(" \"'”’»").replace("’", "'")
    if more := _MORE_NAMES.match(following):
        following = following[more.end() :]
    if ending == "s" or (more and (more["possessive"] or more["verb"])) or _SINGULAR_VERB.match(following):
        return True
    plural = root.endswith("s") and not root.endswith("ss")
    adverb = root.endswith("ly")  # "Newly opened shops ..."
    return not plural and not adverb and _ANY_VERB.match(following) is not None


def unsupported_details(claim: str, sources: Sequence[str | Details]) -> list[str]:
    """Numbers and capitalised words of a claim that occur in none of `sources` (turn and history).

    The first word of the claim has its capital from its place: it counts where it reads as a name and no source
    has a word that begins like it. Number words equal digits; case, plural and possessive endings don't matter.
    """
    known = [Details.of(source) if isinstance(source, str) else source for source in sources]

    def said(stem: str) -> bool:
        return any(stem in source.words for source in known)

    def begun(stem: str) -> bool:
        return len(stem) >= 4 and any(w.startswith(stem[:4]) for source in known for w in source.words)

    def counted(number: str) -> bool:
        return any(number in source.numbers for source in known)

    missing = [n for n in numbers(claim) if not counted(n) and not all(map(counted, re.split(r"[.,]", n)))]
    first = re.search(r"\w", claim)
    start = first.start() if first else 0
    for match in _CAPITALISED.finditer(claim):
        word = match.group()
        if word.lower() in _FREE_WORDS or any(c.isdigit() for c in word):
            continue
        if not word[0].isupper():  # "équipe", or a script without capitals
            continue
        initials = "".join(word.split("."))
        parts = [p for p in word.split("-") if p]
        if said(_stem(word)) or said(_stem(initials)) or all(said(_stem(p)) for p in parts):
            continue
        if match.start() == start and (not _reads_as_name(word, claim[match.end() :]) or begun(_stem(word))):
            continue
        missing.append(word)
    return missing
