"""Long answers over long references: nothing is cut, lost or slow. Counted are prompts and tokens, never seconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from long_answers import ANSWERS, LongAnswer, long_answer

from vista_local.backends.base import Generation
from vista_local.backends.scripted import ScriptedBackend
from vista_local.config import ScoreConfig
from vista_local.evaluator import Evaluator
from vista_local.history import DECOMPOSE_HISTORY, RECENT
from vista_local.labels import LABELS, Label
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt
from vista_local.readers import parse_conversation
from vista_local.schema import Conversation, TurnResult
from vista_local.stages import ClassifyRequest
from vista_local.text import normal_form, split_sentences

CHUNK, WINDOW, STORE = 80, 400, 512
LIMIT = 2_048
#: Words of instructions and headings in any prompt.
FRAME = 100


def claim_of(sentence: str) -> str:
    """A sentence without Markdown and citations, as a decomposition would state it."""
    plain = re.sub(r"^(?:[-*>] |\d{1,2}\. )+", "", sentence)
    return re.sub(r" \[\d\]|\*\*[^*]*\*\*: ", "", plain)


class Counting(ScriptedBackend):
    """Claims are a reply's sentences; one is verified where it stands word for word in the window."""

    def __init__(self) -> None:
        super().__init__(self._list, self._judge, max_reference_tokens=WINDOW, chunk_tokens=CHUNK)
        self.replies: list[Prompt] = []
        self.requests: dict[str, list[ClassifyRequest]] = {"verify": [], "categorise": []}
        self.measured = 0

    @staticmethod
    def _list(prompt: Prompt) -> str:
        return "\n".join(f"- {claim_of(s)}" for s in split_sentences(prompt.user.rpartition("Reply:\n")[2]))

    @staticmethod
    def _judge(stage: str, prefix: Prompt, claim: str) -> Sequence[float]:
        if stage == "categorise":
            return [0.1, 0.7, 0.1, 0.1]
        return [0.9, 0.1] if claim in prefix.user.partition("Reference:\n")[2] else [0.1, 0.9]

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        self.replies += prompts
        return super().generate(stage, prompts)

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        self.requests[stage] += requests
        return super().classify(stage, requests)

    def count(self, text: str) -> int:
        self.measured += len(text)
        return super().count(text)


def conversation(answer: LongAnswer, reference: Sequence[str] | None = None) -> Conversation:
    turns = [
        {"role": "user", "text": answer.question},
        {"role": "assistant", "text": answer.text, "reference": list(reference or answer.reference)},
        {"role": "user", "text": "And what else?"},
        {"role": "assistant", "text": answer.supported[0], "reference": []},
    ]
    return parse_conversation({"id": "long", "turns": turns})


def scored(answer: LongAnswer, reference: Sequence[str] | None = None) -> tuple[Counting, tuple[TurnResult, ...]]:
    backend = Counting()
    (result,) = Pipeline(backend).score_shard([conversation(answer, reference)])
    assert result.error is None
    return backend, result.turns


def words(texts: Sequence[str]) -> list[str]:
    return [word for text in texts for word in text.split()]


def shown(prompt: Prompt, heading: str) -> str:
    return prompt.user.rpartition(f"{heading}\n")[2].removesuffix("\n\nClaim:")


@pytest.fixture(scope="module", params=range(ANSWERS))
def case(request: pytest.FixtureRequest) -> tuple[LongAnswer, Counting, tuple[TurnResult, ...]]:
    answer = long_answer(request.param)
    return answer, *scored(answer)


Case = tuple[LongAnswer, Counting, tuple[TurnResult, ...]]


def test_what_is_tested_is_long_and_rich(case: Case) -> None:
    answer, _, _ = case
    assert 1_500 <= len(words(answer.reference)) <= 4_400  # 2,000 to 6,000 tokens of the default base
    assert len(answer.text.split()) > 3 * CHUNK
    for sign in ("|:-----|", "```", "[1]", "\n- **", "\n1. ", "> "):
        assert sign in answer.text


def test_chunks_cover_the_turn_exactly(case: Case) -> None:
    answer, backend, turns = case
    chunks = [shown(p, "Reply:") for p in backend.replies[: turns[0].chunks]]
    assert words(chunks) == answer.text.split()
    assert max(len(c.split()) for c in chunks) <= CHUNK
    assert turns[0].chunks <= 2 * len(answer.text.split()) / CHUNK + 1


def test_windows_cover_the_reference_exactly(case: Case) -> None:
    answer, backend, turns = case
    (first, *_) = backend.requests["verify"]
    asked = [r.prefix for r in backend.requests["verify"] if r.branches == first.branches]
    windows = [shown(prefix, "Reference:").split("\n") for prefix in asked]
    assert len(windows) == turns[0].windows
    sentences = [s for passage in answer.reference for s in split_sentences(passage)]
    rebuilt = windows[0]
    for before, after in pairwise(windows):
        overlap = max(n for n in range(3) if n == 0 or before[-n:] == after[:n])
        rebuilt = [*rebuilt, *after[overlap:]]
    assert rebuilt == sentences
    assert words(sentences) == words(answer.reference)
    assert max(len(words(w)) for w in windows) <= WINDOW


def test_every_claim_is_labelled_and_none_is_lost(case: Case) -> None:
    _, backend, (turn, later) = case
    sentences = [s for p in backend.replies[: turn.chunks] for s in split_sentences(shown(p, "Reply:"))]
    assert turn.unsupported_extraction == ()  # they are the reply's own sentences: the guard has nothing to hold back
    found = [c.text for c in turn.claims]
    assert len(found) >= 20
    listed = {normal_form(claim) for claim in found}
    for sentence in sentences:
        assert normal_form(claim_of(sentence)) in listed | {""}, sentence
    assert all(c.label in LABELS and c.probs for c in turn.claims)
    assert turn.unscored is None and later.unscored is None


def test_support_is_found_wherever_in_the_reference_it_stands(case: Case) -> None:
    answer, _, (turn, later) = case
    verified = " ".join(c.text for c in turn.claims if c.label is Label.VERIFIED)
    for sentence in answer.supported:
        assert split_sentences(sentence)[-1] in verified, sentence
    assert {c.label for c in turn.claims} > {Label.VERIFIED}  # and not everything is
    assert later.memory and later.claims[0].label is Label.LACKING_EVIDENCE  # the script reads references only


def test_prompts_stay_within_the_models_limits(case: Case) -> None:
    _, backend, _ = case
    for prompt in backend.replies:
        assert len(words([prompt.system, prompt.user])) <= CHUNK + DECOMPOSE_HISTORY.tokens + FRAME
    for request in (r for requests in backend.requests.values() for r in requests):
        prefix = len(words([request.prefix.system, request.prefix.user]))
        assert prefix <= WINDOW + STORE + RECENT.tokens + FRAME
        assert all(prefix + len(b.split()) < LIMIT for b in request.branches)


def test_the_work_is_in_proportion_to_the_input(case: Case) -> None:
    answer, backend, (turn, _) = case
    verify = [r for r in backend.requests["verify"] if len(r.branches) == len(turn.claims)]
    assert len(verify) == turn.windows  # one prompt a window, whatever the number of claims
    assert len(backend.requests["categorise"]) <= len(backend.requests["verify"])
    read = sum(len(shown(r.prefix, "Reference:").split()) for r in verify)
    assert read <= 1.5 * len(words(answer.reference))  # overlap included
    assert turn.windows <= 1.5 * len(words(answer.reference)) / WINDOW + 1


@pytest.mark.parametrize("number", [0, 7, 14])
def test_twice_the_reference_is_twice_the_work(number: int) -> None:
    answer = long_answer(number)
    once, (turn, _) = scored(answer)
    twice, (doubled, _) = scored(answer, answer.reference * 2)
    assert abs(doubled.windows - 2 * turn.windows) <= 2
    assert twice.measured <= 2.3 * once.measured  # characters that were given to the tokenizer
    assert len(doubled.claims) == len(turn.claims)


@pytest.mark.parametrize("number", [3, 12])
def test_ten_times_the_answer_is_ten_times_the_work(number: int) -> None:
    answer = long_answer(number)
    other = [long_answer(n).text for n in range(20, 29)]
    longer = LongAnswer(answer.question, "\n\n".join([answer.text, *other]), answer.reference, answer.supported)
    once, (turn, _) = scored(answer)
    tenfold, (more, _) = scored(longer)
    size = len(longer.text.split()) / len(answer.text.split())
    assert more.chunks <= 1.3 * size * turn.chunks
    assert tenfold.measured <= 1.3 * size * once.measured
    assert len(more.claims) > 0.7 * size * len(turn.claims)


@pytest.mark.model
@pytest.mark.slow
def test_a_long_answer_on_the_default_model(default_base: Any) -> None:
    """With the real tokenizer and adapters: chunks and windows within what training saw, every claim labelled."""
    from vista_local.chunking import chunk_turn, windows

    answer = long_answer(1)
    evaluator = Evaluator.from_pretrained(base=str(default_base), config=ScoreConfig(given_claims=True))
    backend = evaluator.backend
    tokens = sum(backend.count(p) for p in answer.reference)
    assert 2_000 <= tokens <= 6_000
    chunks = chunk_turn(answer.text, backend.chunk_tokens, backend.count)
    assert words(chunks) == answer.text.split()
    assert max(map(backend.count, chunks)) <= backend.chunk_tokens
    pieces = windows(answer.reference, backend.max_reference_tokens, backend.count)
    assert max(map(backend.count, pieces)) <= backend.max_reference_tokens
    turns = [
        {"role": "user", "text": answer.question},
        {
            "role": "assistant",
            "text": answer.text,
            "reference": list(answer.reference),
            "claims": list(answer.supported),
        },
    ]
    (result,) = evaluator.score([{"id": "long", "turns": turns}])
    (turn,) = result.turns
    assert turn.windows == len(pieces) > 3
    assert [c.text for c in turn.claims] == list(answer.supported)
    assert all(c.label in LABELS for c in turn.claims)
    assert sum(c.label is Label.VERIFIED for c in turn.claims) >= 4  # they stand in it word for word
