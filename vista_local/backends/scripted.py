"""A backend that answers from functions: for tests of the pipeline, and to show what a backend must do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vista_local.backends.base import Generation
from vista_local.chat import LABEL_WORD_CANDIDATES, STAGE_LABELS
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest

Decompose = Callable[[Prompt], str]
Classify = Callable[[str, Prompt, str], Sequence[float]]


class ScriptedBackend:
    """Answers come from two functions; a token is a word.

    Args:
        decompose: prompt to claim list.
        classify: (stage, prefix, claim) to probabilities in the stage's label order.
    """

    def __init__(
        self, decompose: Decompose, classify: Classify, *, max_reference_tokens: int = 400, chunk_tokens: int = 80
    ) -> None:
        self._decompose, self._classify = decompose, classify
        self._max_reference_tokens, self._chunk_tokens = max_reference_tokens, chunk_tokens
        self.calls: list[tuple[str, int]] = []

    @property
    def max_reference_tokens(self) -> int:
        """See `Backend`."""
        return self._max_reference_tokens

    @property
    def chunk_tokens(self) -> int:
        """See `Backend`."""
        return self._chunk_tokens

    def label_words(self, stage: str) -> Mapping[str, str]:
        """The first candidate of each label."""
        return {label: LABEL_WORD_CANDIDATES[label][0] for label in STAGE_LABELS[stage]}

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        """See `Backend`."""
        self.calls.append((stage, len(prompts)))
        return [Generation(self._decompose(p)) for p in prompts]

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        """See `Backend`."""
        self.calls.append((stage, sum(len(r.branches) for r in requests)))
        return [
            [[math.log(max(p, 1e-12)) for p in self._classify(stage, r.prefix, b)] for b in r.branches]
            for r in requests
        ]

    @property
    def tie_margin(self) -> float:
        """None: an answer depends on its request alone."""
        return 0.0

    def classify_alone(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        """See `Backend`."""
        return self.classify(stage, requests)

    def count(self, text: str) -> int:
        """Words of a text."""
        return len(text.split())

    def tail(self, text: str, limit: int) -> str:
        """The last words of a text."""
        return " ".join(text.split()[-limit:]) if limit else ""

    def describe(self) -> dict[str, Any]:
        """See `Backend`."""
        return {"backend": "scripted"}
