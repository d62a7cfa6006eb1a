"""Which earlier utterances a stage is shown. History helps to read a claim; it is never evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vista_local.prompts import Utterance

ContextMode = Literal["none", "recent", "full"]


@dataclass(frozen=True)
class HistoryLimits:
    """How much history is shown: the last `utterances`, at most `tokens` tokens of them."""

    utterances: int
    tokens: int


#: History of verify and categorise under `context: recent`.
RECENT = HistoryLimits(utterances=2, tokens=100)

#: History of decompose, which needs more of it to resolve pronouns.
DECOMPOSE_HISTORY = HistoryLimits(utterances=3, tokens=100)


def recent_history(
    earlier: Sequence[Utterance],
    limits: HistoryLimits | None,
    tail: Callable[[str, int], str],
    count: Callable[[str], int],
) -> list[Utterance]:
    """The newest of `earlier` within `limits`, in chronological order; `None` means all of it.

    The newest utterance is served first; the one that no longer fits is shown by its end,
    with an ellipsis.
    """
    if limits is None:
        return list(earlier)
    kept: list[Utterance] = []
    left = limits.tokens
    for utterance in reversed(earlier[-limits.utterances :] if limits.utterances else []):
        if left < 8:  # a shorter remnant says nothing
            break
        shown = tail(utterance.text, left)
        if shown:
            kept.append(Utterance(utterance.role, shown))
            left -= count(shown)
    return kept[::-1]
