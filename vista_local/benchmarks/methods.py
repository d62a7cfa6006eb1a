"""The methods that are compared: the pipeline, its ablations, and three baselines, on one backend.

- **vista**: the pipeline as it scores.
- **factscore**: in the manner of FActScore (Min et al. 2023, arXiv 2305.14251): claims are made from the
  turn alone and checked against the reference alone, without history and without memory. It knows only
  supported and unsupported; unsupported stands as LACKING_EVIDENCE, the label that says no more than that.
- **judge**: the whole turn is one claim, judged once with its reference and recent history, without memory.
- **majority**: the commonest label of a named training file for every claim, its commonest strict and safe
  verdict for every turn. It needs no backend.

Ablations take one part out of **vista**: `memory` (the store stays empty), `history` (claims are made
from the turn alone, the paper's ablation), `decomposition` (the turn's sentences as they stand are the
claims), `fewshot` (the prompted pipeline without examples; a local adapter has none to take out).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from vista_local.backends.base import Backend, Row, Said
from vista_local.benchmarks.figures import GoldTurn, TurnPrediction, predictions
from vista_local.benchmarks.loaders import Item, load_native
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.history import DECOMPOSE_HISTORY, HistoryLimits
from vista_local.labels import UNVERIFIABLE_LABELS, Label
from vista_local.memory import KnowledgeStore
from vista_local.pipeline import Pipeline
from vista_local.runner import shards
from vista_local.schema import Conversation, GivenClaim, Role, TurnResult
from vista_local.stages import ClassifyRequest
from vista_local.text import split_sentences

NO_HISTORY = HistoryLimits(utterances=0, tokens=0)


class Method(StrEnum):
    """What is measured."""

    VISTA = "vista"
    FACTSCORE = "factscore"
    JUDGE = "judge"
    MAJORITY = "majority"


class Ablation(StrEnum):
    """What is taken out of the pipeline."""

    MEMORY = "memory"
    HISTORY = "history"
    FEWSHOT = "fewshot"
    DECOMPOSITION = "decomposition"


class ForgetfulPipeline(Pipeline):
    """A pipeline whose store stays empty."""

    def _remember(self, job: Any, result: TurnResult, store: KnowledgeStore, conversation_id: str) -> None:
        """Nothing joins the store."""


class SupportOnly:
    """A backend that tells supported from unsupported claims and leaves the reason open."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> Sequence[Sequence[Row]]:
        """Verify as the backend does; to categorise, LACKING_EVIDENCE without asking it."""
        if stage == "verify":
            return self._backend.classify(stage, requests)
        lacking = Said(UNVERIFIABLE_LABELS.index(Label.LACKING_EVIDENCE))
        return [[lacking] * len(request.branches) for request in requests]


def check(method: Method, ablate: Ablation | None, given: bool, prompted: bool, items: Sequence[Item]) -> None:
    """Whether a combination measures something.

    Args:
        given: whether the benchmark's own claims are labelled.
        prompted: whether the backend is a prompted teacher.

    Raises:
        VistaError: it doesn't; says why.
    """
    if ablate is not None and method is not Method.VISTA:
        raise VistaError(f"--ablate takes parts out of --method vista; {method} has no {ablate} to take out")
    if ablate is Ablation.FEWSHOT and not prompted:
        raise VistaError("--ablate fewshot needs --teacher: the local adapters' prompts have no examples to leave out")
    if given and ablate in (Ablation.HISTORY, Ablation.DECOMPOSITION):
        raise VistaError(f"--ablate {ablate} changes how claims are made; use it with --claims own")
    if given and not any(turn.claims is not None for item in items for turn in item.gold.values()):
        raise VistaError("--claims given: this benchmark has no labelled claims; use --claims own, or --gold FILE")


def _with_claims(conversation: Conversation, claims_of: Callable[[str], list[str]]) -> Conversation:
    """The conversation with other claims on every assistant turn."""
    turns = tuple(
        replace(t, claims=tuple(GivenClaim(c) for c in claims_of(t.text))) if t.role is Role.ASSISTANT else t
        for t in conversation.turns
    )
    return replace(conversation, turns=turns)


def _targets_only(item: Item) -> Conversation:
    """The conversation with claims on the turns that count alone: the others are history."""
    turns = tuple(t if i in item.gold else replace(t, claims=None) for i, t in enumerate(item.conversation.turns))
    return replace(item.conversation, turns=turns)


def _score(
    pipeline: Pipeline, conversations: Sequence[Conversation], guard: Callable[[], AbstractContextManager[Any]]
) -> list[dict[int, TurnPrediction]]:
    found: list[dict[int, TurnPrediction]] = []
    for shard in shards(conversations, pipeline.config.shard_size):
        with guard():
            found += [predictions(result) for result in pipeline.score_shard(shard)]
    return found


def predict(
    backend: Backend,
    items: Sequence[Item],
    method: Method,
    *,
    config: ScoreConfig | None = None,
    ablate: Ablation | None = None,
    given: bool = False,
    decompose_history: HistoryLimits | None = DECOMPOSE_HISTORY,
    guard: Callable[[], AbstractContextManager[Any]] = nullcontext,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[dict[int, TurnPrediction]]:
    """What a method says of every turn, by conversation.

    Args:
        backend: answers for all methods alike (for `fewshot`, one that shows no examples).
        method: all but majority.
        config: settings; `given_claims` is set here.
        ablate: see the module; `check` it first.
        given: label the benchmark's own claims instead of making some.
        decompose_history: what stage 1 is shown of the talk, as for `Pipeline`.
        guard: what scoring runs inside, such as the offline guard.
        on_progress: as `Pipeline`'s.
    """
    settings = (config or ScoreConfig()).model_copy(update={"given_claims": given})
    conversations = [item.conversation for item in items]
    history = decompose_history
    kind: type[Pipeline] = Pipeline
    if method is Method.FACTSCORE:
        settings, history, kind = settings.model_copy(update={"context": "none"}), NO_HISTORY, ForgetfulPipeline
        backend = SupportOnly(backend)
    elif method is Method.JUDGE:
        settings, kind = settings.model_copy(update={"given_claims": True}), ForgetfulPipeline
        whole = [
            replace(i, conversation=_with_claims(i.conversation, lambda t: [t] if t.strip() else [])) for i in items
        ]
        conversations = [_targets_only(item) for item in whole]
    elif ablate is Ablation.MEMORY:
        kind = ForgetfulPipeline
    elif ablate is Ablation.HISTORY:
        history = NO_HISTORY
    elif ablate is Ablation.DECOMPOSITION:
        settings = settings.model_copy(update={"given_claims": True})
        conversations = [_with_claims(c, split_sentences) for c in conversations]
    if kind is ForgetfulPipeline:
        conversations = [replace(c, background=()) for c in conversations]
    pipeline = kind(backend, settings, on_progress, decompose_history=history)
    found = _score(pipeline, conversations, guard)
    if method is Method.JUDGE:  # its one claim is not a claim of the benchmark's
        found = [{i: TurnPrediction(p.strict, p.safe) for i, p in turns.items()} for turns in found]
    return found


def _commonest(values: Sequence[Any]) -> Any:
    """The value that occurs most often, the earliest on a tie."""
    return Counter(values).most_common(1)[0][0]


def majority(training_file: Path) -> Callable[[GoldTurn], TurnPrediction]:
    """A method that always says what was commonest in a training file.

    Raises:
        InputError: the file has no labelled claim, or can't be read.
    """
    turns = [turn for item in load_native(str(training_file)) for turn in item.gold.values()]
    labels = [label for turn in turns for label in turn.labels]
    if not labels:
        raise InputError("no labelled claim to take the commonest label from", str(training_file))
    label, strict, safe = _commonest(labels), _commonest([t.strict for t in turns]), _commonest([t.safe for t in turns])

    def says(turn: GoldTurn) -> TurnPrediction:
        if turn.claims is None:
            return TurnPrediction(strict, safe)
        return TurnPrediction(strict, safe, turn.claims, (label,) * len(turn.claims))

    return says
