"""Claims that stand word for word in a text, stored as a place in it instead of as its words.

A place counts letters and digits only (a-z, 0-9, case ignored, as the public ids do), so that it
holds in a copy with other quotes or white space.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """From the `start`-th to before the `end`-th letter or digit of `of`, between `head` and `tail`.

    `head` and `tail` are the claim's own punctuation at its ends; they hold no letter or digit.
    """

    of: str
    start: int
    end: int
    head: str
    tail: str

    def record(self) -> dict[str, object]:
        """JSON form."""
        return {"of": self.of, "span": [self.start, self.end], "head": self.head, "tail": self.tail}


def _places(text: str) -> list[int]:
    """Offsets of the ASCII letters and digits of a text."""
    return [i for i, c in enumerate(text) if c.isascii() and c.isalnum()]


def _key(text: str, places: list[int]) -> str:
    return "".join(text[i] for i in places).lower()


def locate(claim: str, texts: dict[str, str]) -> Span | None:
    """The place of a claim in the first of `texts` that gives it back letter by letter; None if there is none."""
    own = _places(claim)
    if not own:
        return None
    key = _key(claim, own)
    head, tail = claim[: own[0]], claim[own[-1] + 1 :]
    for name, text in texts.items():
        whole = _key(text, _places(text))
        start = whole.find(key)
        while start >= 0:
            span = Span(name, start, start + len(key), head, tail)
            if cut(span, texts) == claim:
                return span
            start = whole.find(key, start + 1)
    return None


def cut(span: Span, texts: dict[str, str]) -> str:
    """The claim that a span stands for.

    Raises:
        ValueError: the text is shorter than the span's end.
        KeyError: there is no such text.
    """
    text = texts[span.of]
    places = _places(text)
    if not 0 <= span.start < span.end <= len(places):
        raise ValueError(f"{span.of} has {len(places)} letters and digits; the span is {span.start} to {span.end}")
    return span.head + text[places[span.start] : places[span.end - 1] + 1] + span.tail
