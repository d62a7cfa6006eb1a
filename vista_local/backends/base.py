"""What a backend is: two verbs, two ways to measure text, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest


@dataclass(frozen=True)
class Generation:
    """A generated answer; `cut` says what ended it early: the length limit, or a repeated claim."""

    text: str
    cut: Literal["length", "repeat"] | None = None


class Backend(Protocol):
    """Anything that can drive the pipeline."""

    @property
    def max_reference_tokens(self) -> int:
        """Longest reference that is shown in one piece; longer ones are windowed."""
        ...

    @property
    def chunk_tokens(self) -> int:
        """Longest turn that is decomposed in one piece."""
        ...

    def label_words(self, stage: str) -> Mapping[str, str]:
        """Answer words of a classifying stage by label name, in the order of its probabilities."""
        ...

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        """One answer a prompt, in order."""
        ...

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        """Calibrated log-probabilities [requests][branches][labels], in order."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text."""
        ...

    def tail(self, text: str, limit: int) -> str:
        """The end of a text, at most `limit` tokens long."""
        ...

    def describe(self) -> dict[str, Any]:
        """Everything about the models that a result depends on."""
        ...
