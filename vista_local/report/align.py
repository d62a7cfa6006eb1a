"""Claims of two sources are the same claim if they stand on one turn and have one text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

from vista_local.labels import Label
from vista_local.schema import ClaimResult, GivenClaim


def text_key(text: str) -> str:
    """A claim's text as it is compared: white space, case and the final full stop don't matter."""
    return " ".join(text.split()).rstrip(".").casefold()


def numbered(keys: Iterable[Hashable]) -> list[tuple[Hashable, int]]:
    """Each key with how often it came before, so that repeated claims are told apart."""
    seen: dict[Hashable, int] = defaultdict(int)
    result = []
    for key in keys:
        result.append((key, seen[key]))
        seen[key] += 1
    return result


def aligned(texts: Sequence[str], gold: Sequence[GivenClaim]) -> list[Label | None]:
    """Gold label of each claim of a turn by its text, `None` where gold has none; repeated texts go in order."""
    keys = numbered(text_key(g.text) for g in gold)
    by_key = {key: g.label for key, g in zip(keys, gold, strict=True)}
    return [by_key.get(key) for key in numbered(text_key(t) for t in texts)]


def as_the_model_had_it(claims: Iterable[ClaimResult]) -> list[tuple[ClaimResult, Label | None]]:
    """The claims whose text is the model's own, each with the label that the model gave it."""
    return [
        (c, c.label if c.corrected is None else c.corrected.label)
        for c in claims
        if c.corrected is None or c.corrected.action == "label"
    ]
