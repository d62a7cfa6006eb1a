"""A scripted backend that reads its prompts, and short ways to write conversations for it.

The script verifies a claim that stands word for word in the reference or the known facts, calls it
CONTRADICTED if "not <claim>" stands there, and otherwise goes by the words love (out of scope) and
unsure (abstention). A reply's claims are separated by " | ".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from hypothesis import settings

from vista_local.backends.base import Generation
from vista_local.backends.scripted import ScriptedBackend
from vista_local.config import ScoreConfig
from vista_local.labels import LABELS, Label
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt, render_claim_list
from vista_local.readers import parse_conversation
from vista_local.schema import Conversation, ConversationResult, TurnResult
from vista_local.stages import ClassifyRequest

UNHURRIED = settings(max_examples=50, deadline=None)
V, C, L, S, A = LABELS
CERTAIN = {
    C: [0.97, 0.01, 0.01, 0.01],
    L: [0.01, 0.97, 0.01, 0.01],
    S: [0.01, 0.01, 0.97, 0.01],
    A: [0.01] * 3 + [0.97],
}


def part(prompt: Prompt, heading: str) -> str:
    """What stands under a heading of a prompt."""
    blocks = prompt.user.split("\n\n")
    return next((b.partition("\n")[2] for b in blocks if b.startswith(heading)), "")


def decompose(prompt: Prompt) -> str:
    return render_claim_list([c for c in part(prompt, "Reply:").split(" | ") if c.strip()])


def judge(stage: str, prompt: Prompt, claim: str) -> Sequence[float]:
    evidence = f"{part(prompt, 'Known facts:')}\n{part(prompt, 'Reference:')}"
    if stage == "verify":
        known = claim in evidence and f"not {claim}" not in evidence
        return [0.9, 0.1] if known else [0.2, 0.8]
    if f"not {claim}" in evidence:
        return CERTAIN[C]
    return CERTAIN[S if "love" in claim else A if "unsure" in claim else L]


class Recorder(ScriptedBackend):
    """Keeps what it was asked."""

    def __init__(self, decompose: Any = decompose, classify: Any = judge, **options: Any) -> None:
        super().__init__(decompose, classify, **options)
        self.replies: list[Prompt] = []
        self.batches: list[tuple[str, list[ClassifyRequest]]] = []
        self.cuts: dict[str, Literal["length", "repeat"]] = {}

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        self.replies.extend(prompts)
        answers = super().generate(stage, prompts)
        return [Generation(a.text, self.cuts.get(part(p, "Reply:"))) for a, p in zip(answers, prompts, strict=True)]

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        self.batches.append((stage, list(requests)))
        return super().classify(stage, requests)

    def asked(self, stage: str, claim: str) -> list[Prompt]:
        """The prefixes under which a claim was put to a stage."""
        return [r.prefix for s, requests in self.batches if s == stage for r in requests if claim in r.branches]


def settings_of(unreferenced: str = "skip", budget: int = 512, **options: Any) -> ScoreConfig:
    return ScoreConfig.model_validate({"memory": {"unreferenced": unreferenced, "budget_tokens": budget}, **options})


def conversation(*turns: Any, id: str = "c", **fields: Any) -> Conversation:
    """Turns are the user's texts, or (assistant's text, reference), or whole objects."""
    native = [
        {"role": "user", "text": t}
        if isinstance(t, str)
        else {"role": "assistant", "text": t[0], "reference": t[1]}
        if isinstance(t, tuple)
        else t
        for t in turns
    ]
    return parse_conversation({"id": id, "turns": native, **fields})


def assistant(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "text": text, **fields}


def score(
    *conversations: Conversation, backend: ScriptedBackend | None = None, config: ScoreConfig | None = None
) -> list[ConversationResult]:
    return Pipeline(backend or Recorder(), config).score_shard(conversations)


def turns_of(c: Conversation, backend: ScriptedBackend | None = None, config: ScoreConfig | None = None) -> Any:
    return score(c, backend=backend, config=config)[0].turns


def labels(turn: TurnResult) -> list[Label | None]:
    return [c.label for c in turn.claims]
