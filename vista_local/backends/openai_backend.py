"""The prompted teacher as a backend: each prompt and each claim is one chat request.

Answers are text. A label that can't be read is asked for once more with the reason, then it is
`Unanswered`; a label without probabilities is `Said`, never a distribution with all mass in one place.
"""

from __future__ import annotations

import copy
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from vista_local.backends.base import Generation, Row, Said, Unanswered
from vista_local.chat import STAGE_LABELS
from vista_local.endpoint import Completer, Reply
from vista_local.errors import VistaError
from vista_local.fewshot import (
    FEWSHOT_VERSION,
    Stage,
    answer_problem,
    parse_categorise_answer,
    parse_verify_answer,
    repeat_messages,
    stage_messages,
)
from vista_local.labels import UNVERIFIABLE, Label
from vista_local.limits import Stop
from vista_local.prompts import PROMPT_VERSION, Prompt
from vista_local.stages import ClassifyRequest
from vista_local.teacher import TeacherConfig
from vista_local.text import tail_words

#: So many unreadable answers, and none that can be read, end a run: the model ignores the format.
UNREADABLE_AT_FIRST = 20

#: Least probability that the listed alternatives must give to the stage's labels to count as probabilities.
_LEAST_MASS = 0.5


@dataclass(frozen=True)
class Exchange:
    """One question to the teacher: its user message, every reply (two if asked again), and what went wrong."""

    stage: Stage
    user: str
    replies: tuple[Reply, ...]
    unscored: str | None = None

    @property
    def answer(self) -> str:
        """The last answer, without reasoning."""
        return self.replies[-1].visible


class OpenAIBackend:
    """A teacher behind `completer`.

    Args:
        completer: answers requests, from any thread.
        config: the teacher's settings.
        log: is given the exchanges of every `generate` and `classify`, in order.
        stop: ends the run; set if the model ignores the format, so that nobody else goes on asking it.
    """

    def __init__(
        self,
        completer: Completer,
        config: TeacherConfig,
        log: Callable[[Sequence[Exchange]], None] | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.config = config
        self._completer = completer
        self._log = log
        self._stop = stop or Stop()
        self._counting = threading.Lock()
        self._readable: Counter[Stage] = Counter()
        self._unreadable: Counter[Stage] = Counter()
        self._pool = ThreadPoolExecutor(config.concurrency, thread_name_prefix="teacher-call")

    def logging_to(self, log: Callable[[Sequence[Exchange]], None]) -> OpenAIBackend:
        """The same teacher, with another log; both share calls in flight and limits."""
        other = copy.copy(self)
        other._log = log
        return other

    def close(self) -> None:
        """Wait for calls in flight; those that haven't begun are dropped."""
        self._pool.shutdown(cancel_futures=True)

    @property
    def max_reference_tokens(self) -> int:
        """See `Backend`."""
        return self.config.max_reference_tokens

    @property
    def chunk_tokens(self) -> int:
        """See `Backend`."""
        return self.config.max_turn_tokens

    @property
    def tie_margin(self) -> float:
        """None: a request has one answer."""
        return 0.0

    def label_words(self, stage: str) -> Mapping[str, str]:
        """The labels' own names."""
        return {label: label for label in STAGE_LABELS[stage]}

    def count(self, text: str) -> int:
        """Tokens of a text, estimated as four bytes each: the teacher's tokenizer is not at hand."""
        return math.ceil(len(text.encode("utf-8", "replace")) / 4)

    def tail(self, text: str, limit: int) -> str:
        """See `Backend`."""
        return tail_words(text, limit, self.count)

    def ask(self, stage: Stage, users: Sequence[str]) -> list[Exchange]:
        """Put user messages to the teacher, several at once; in order.

        Raises:
            VistaError: the endpoint can't be used, money has run out, or the model ignores the format.
        """
        exchanges = list(self._pool.map(lambda user: self._counted(stage, user), users))
        if self._log is not None:
            self._log(exchanges)
        return exchanges

    def _counted(self, stage: Stage, user: str) -> Exchange:
        """An exchange; the run ends with it if nothing that the stage was ever asked for could be read."""
        self._stop.check()
        exchange = self._exchange(stage, user)
        with self._counting:
            if exchange.unscored is None:
                self._readable[stage] += 1
            elif not exchange.replies[-1].declined:
                self._unreadable[stage] += 1
                # Counted one by one under the lock, so that one thread alone comes by this number.
                if not self._readable[stage] and self._unreadable[stage] == UNREADABLE_AT_FIRST:
                    error = self._ignores_the_format(exchange)
                    self._stop.set(error)
                    raise error
        return exchange

    def _ignores_the_format(self, last: Exchange) -> VistaError:
        return VistaError(
            f"{self.config.model}: none of its first {UNREADABLE_AT_FIRST} answers to {last.stage} could be read "
            f"({last.unscored}); the last one begins {last.answer[:80]!r}. "
            "Is it an instruction-tuned chat model, with room for its answers (max_tokens, label_max_tokens)?"
        )

    def _exchange(self, stage: Stage, user: str) -> Exchange:
        messages = stage_messages(stage, user, self.config.shots)
        first = self._completer.complete(stage, messages)
        problem = _problem(stage, first)
        if problem is None or first.declined:
            return Exchange(stage, user, (first,), problem)
        second = self._completer.complete(stage, repeat_messages(stage, messages, first.visible, problem))
        problem = _problem(stage, second)
        reason = None if problem is None else f"asked twice, the answer can't be read: {problem}"
        if reason is not None and second.finish == "length":
            reason += f" (cut at {second.completion_tokens} tokens)"
        return Exchange(stage, user, (first, second), reason)

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        """See `Backend`."""
        exchanges = self.ask(cast(Stage, stage), [p.user for p in prompts])
        return [
            Generation(e.answer, cut="length" if e.replies[-1].finish == "length" else None, unscored=e.unscored)
            for e in exchanges
        ]

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[Row]]:
        """See `Backend`."""
        users = [f"{r.prefix.user} {' '.join(branch.split())}" for r in requests for branch in r.branches]
        rows = iter([_row(e) for e in self.ask(cast(Stage, stage), users)])
        return [[next(rows) for _ in r.branches] for r in requests]

    def classify_alone(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[Row]]:
        """See `Backend`."""
        return self.classify(stage, requests)

    def describe(self) -> dict[str, Any]:
        """See `Backend`."""
        return {
            "backend": "openai",
            "base": self.config.model,
            "teacher": self.config.record(),
            "fewshot_version": FEWSHOT_VERSION,
            "prompt_version": PROMPT_VERSION,
        }


def _problem(stage: Stage, reply: Reply) -> str | None:
    """Why a reply is no answer; `None` if it is one."""
    if reply.declined is None and reply.text.strip() and not reply.visible.strip():
        return "it holds reasoning alone"
    return reply.declined or answer_problem(stage, reply.visible, cut=reply.finish == "length")


def _row(exchange: Exchange) -> Row:
    """What an exchange of a classifying stage says."""
    if exchange.unscored is not None:
        return Unanswered(exchange.unscored)
    labels = STAGE_LABELS[exchange.stage]
    if exchange.stage == "verify":
        label = Label.VERIFIED.value if parse_verify_answer(exchange.answer) else UNVERIFIABLE
    else:
        found = parse_categorise_answer(exchange.answer)
        assert found is not None  # `answer_problem` has read it
        label = found.value
    chosen = labels.index(label)
    return label_log_probs(exchange.replies[-1], labels, chosen) or Said(chosen)


def label_log_probs(reply: Reply, labels: Sequence[str], chosen: int) -> list[float] | None:
    """Log-probabilities of the labels from the alternatives to the answer's first token.

    The labels of a stage begin with different letters, so the first token tells them apart. A label
    that isn't listed gets the least listed probability, which it can't exceed; then all are normalised.

    Returns:
        `None` if the endpoint gave no alternatives, the answer doesn't begin with a label, the labels
        hold less than half of the probability, or the likeliest isn't the one that was said.
    """
    if reply.visible != reply.text:  # the first token is one of the reasoning
        return None
    for top in reply.logprobs:
        if not any(token.strip() for token, _ in top):
            continue
        mass = [0.0] * len(labels)
        for token, log_prob in top:
            word = token.strip().strip("\"'`*").upper()
            fitting = [i for i, label in enumerate(labels) if word and label.startswith(word)]
            if len(fitting) == 1:
                mass[fitting[0]] += math.exp(log_prob)
        if sum(mass) < _LEAST_MASS or max(mass) > mass[chosen]:
            return None
        least = min(math.exp(log_prob) for _, log_prob in top)
        mass = [max(m, least, 1e-12) for m in mass]
        return [math.log(m / sum(mass)) for m in mass]
    return None
