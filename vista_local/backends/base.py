"""What a backend is: two verbs, two ways to measure text, and what it says of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest


@dataclass(frozen=True)
class Generation:
    """A generated answer.

    `cut` says what ended it early: the length limit, or a repeated claim. `unscored` says why there
    is no usable answer; then `text` isn't read.
    """

    text: str
    cut: Literal["length", "repeat"] | None = None
    unscored: str | None = None


@dataclass(frozen=True)
class Said:
    """A label that a backend said without probabilities, as its place in the stage's label order."""

    label: int


@dataclass(frozen=True)
class Unanswered:
    """Why a backend has no label for a claim."""

    reason: str


#: What a backend knows of one claim: log-probabilities in the stage's label order, or less than that.
Row = Sequence[float] | Said | Unanswered


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

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> Sequence[Sequence[Row]]:
        """What is known of each claim, [requests][branches], in order: calibrated log-probabilities, or less."""
        ...

    @property
    def tie_margin(self) -> float:
        """How far, in log-odds, an answer of `classify` may lie from the one of `classify_alone`.

        Answers this close to a decision's threshold are asked for again, alone, so that no label
        depends on the batch. 0 for a backend whose answers depend on nothing but the request.
        """
        ...

    def classify_alone(self, stage: str, requests: Sequence[ClassifyRequest]) -> Sequence[Sequence[Row]]:
        """As `classify`, each branch computed by itself and as exactly as the backend can: slow."""
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
