"""The prompted pipeline on the student's base, without adapters: what the method costs as published.

A backend for the same `Pipeline`, so that memory, waves and scores are the student's. Different is
what the method's prompted form does: long instructions with examples, one call a claim, answers
decoded, references and turns in one piece. Batches have the student's token budget.

For measuring speed only: an unreadable answer, which a real run would record as unscored, is
counted and taken for the commonest label, because a backend has no third answer to give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch

from vista_local.backends.base import Generation
from vista_local.backends.transformers_backend import GENERATE_ROWS, TransformersBackend
from vista_local.errors import VistaError
from vista_local.fewshot import (
    FEWSHOT_VERSION,
    Shots,
    Stage,
    parse_categorise_answer,
    parse_verify_answer,
    stage_messages,
)
from vista_local.labels import UNVERIFIABLE_LABELS, Label
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest

#: Longest label answer, in tokens.
ANSWER_TOKENS = 8

_BODY = "\u2402BODY\u2403"


class PromptedBackend(TransformersBackend):
    """The base alone under `vista_local.fewshot`'s prompts.

    Args:
        base, adapters: as for `TransformersBackend`; adapters are loaded and switched off.
        shots: "few" or "zero".
        options: the other arguments of `TransformersBackend`.

    Raises:
        VistaError: base or adapters can't be loaded, or a prompt doesn't fit the base.
    """

    def __init__(self, base: str | Path, adapters: str | Path, *, shots: Shots = "few", **options: Any) -> None:
        super().__init__(base, adapters, **options)
        self.shots: Shots = shots
        self.unreadable = {"verify": 0, "categorise": 0}
        self.calls = {"decompose": 0, "verify": 0, "categorise": 0}
        self._frames = {stage: self._frame(stage) for stage in self.calls}

    def _frame(self, stage: str) -> tuple[list[int], list[int]]:
        """Token ids before and after the body, which is the same in every prompt of a stage."""
        messages = stage_messages(cast(Stage, stage), _BODY, self.shots)
        text = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        if text.count(_BODY) != 1:
            raise VistaError("the base model's chat template does not render the last user message once")
        head, tail = text.split(_BODY)
        before, after = (list(self.tokenizer(t, add_special_tokens=False).input_ids) for t in (head, tail))
        return before, after

    def prompt_tokens(self) -> dict[str, int]:
        """Tokens of instructions and examples by stage: the part that every call repeats."""
        return {stage: len(before) + len(after) for stage, (before, after) in self._frames.items()}

    @property
    def _room(self) -> int:
        """Tokens that are left for a turn's own text, with a quarter of the base's length to spare."""
        limit: int = self.model.config.max_position_embeddings
        return max(64, limit * 3 // 4 - max(self.prompt_tokens().values()))

    @property
    def max_reference_tokens(self) -> int:
        """References are shown whole as far as the base can read them."""
        return self._room

    @property
    def chunk_tokens(self) -> int:
        """Turns are decomposed whole; an answer takes up to twice the turn's tokens."""
        return self._room // 3

    def describe(self) -> dict[str, Any]:
        """As the student's, and which prompts were used."""
        return {**super().describe(), "adapters": None, "fewshot_version": FEWSHOT_VERSION, "shots": self.shots}

    def _answers(self, stage: str, bodies: Sequence[str], limits: Sequence[int]) -> list[Generation]:
        """Greedy answers of the base alone, in order, batched like the student's."""
        before, after = self._frames[stage]
        encoded = [before + self.encoder.plain(body) + after for body in bodies]
        lengths = [len(e) + n for e, n in zip(encoded, limits, strict=True)]
        most = self.model.config.max_position_embeddings
        if lengths and max(lengths) > most:
            raise VistaError(f"a prompt and its answer of {max(lengths)} tokens do not fit this base's {most}")
        self.calls[stage] += len(bodies)
        results: dict[int, Generation] = {}
        with self.model.disable_adapter():
            for batch in self._batches(lengths, GENERATE_ROWS):
                answers = self._generate_batch(stage, [encoded[i] for i in batch], [limits[i] for i in batch])
                results.update(zip(batch, answers, strict=True))
        return [results[i] for i in range(len(bodies))]

    @torch.inference_mode()
    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        """Claim lists under the student's length limits and loop guard."""
        # The same rule as TransformersBackend.generate, so that both may write equally much.
        limits = [48 + 2 * self.encoder.count(p.user.rsplit("Reply:", 1)[-1]) for p in prompts]
        return self._answers(stage, [p.user for p in prompts], limits)

    @torch.inference_mode()
    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        """One call a claim; the answer read from the text becomes a distribution with all mass on it."""
        bodies = [f"{r.prefix.user} {' '.join(branch.split())}" for r in requests for branch in r.branches]
        answers = iter(self._answers(stage, bodies, [ANSWER_TOKENS] * len(bodies)))
        return [[self._log_probs(stage, next(answers).text) for _ in r.branches] for r in requests]

    def _log_probs(self, stage: str, answer: str) -> list[float]:
        if stage == "verify":
            verified = parse_verify_answer(answer)
            chosen, size = 0 if verified else 1, 2
            unreadable = verified is None
        else:
            label = parse_categorise_answer(answer)
            chosen, size = UNVERIFIABLE_LABELS.index(label or Label.LACKING_EVIDENCE), len(UNVERIFIABLE_LABELS)
            unreadable = label is None
        self.unreadable[stage] += unreadable
        return [0.0 if i == chosen else -math.inf for i in range(size)]
