"""What a run with a teacher would take, without a connection: calls, tokens and money.

The pipeline runs as it would, on made-up answers of the usual size: prompts, history, memory and the
order of calls are the real ones, answers that are in the cache already are taken from there. Nothing
of it is kept but the counts.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Sequence

from vista_local.answer_cache import AnswerCache
from vista_local.endpoint import Reply, answer_limit, cache_key, expected_tokens, most_tokens, request_body
from vista_local.fewshot import Message, Stage
from vista_local.labels import UNVERIFIABLE, Label
from vista_local.prompts import reply_of
from vista_local.teacher import TeacherConfig

# Over the project's training conversations (written, long and public): a claim for every 7.7 words of
# a reply, and 56 of 100 claims are not VERIFIED.
_WORDS_A_CLAIM = 7.7
_UNVERIFIABLE_PERCENT = 56


class Estimator:
    """Stands in for an endpoint and counts.

    Args:
        config: the teacher's settings.
        cache: answers that a run would not ask for again.
    """

    def __init__(self, config: TeacherConfig, cache: AnswerCache | None = None) -> None:
        self.config, self.cache = config, cache
        self.calls: Counter[str] = Counter()
        self.cached = 0
        self.prompt_tokens = self.completion_tokens = 0
        self.most_prompt_tokens = self.most_completion_tokens = 0
        self._lock = threading.Lock()

    def complete(self, stage: Stage, messages: Sequence[Message]) -> Reply:
        """See `Completer`."""
        if self.cache is not None:
            stored = self.cache.get(cache_key(self.config, request_body(self.config, stage, messages)))
            if stored is not None:
                with self._lock:
                    self.cached += 1
                return Reply.from_json(stored)
        text = _usual_answer(stage, messages[-1]["content"])
        with self._lock:
            self.calls[stage] += 1
            self.prompt_tokens += expected_tokens(messages)
            self.completion_tokens += expected_tokens([{"role": "assistant", "content": text}])
            self.most_prompt_tokens += most_tokens(messages)
            self.most_completion_tokens += answer_limit(self.config, stage)
        return Reply(text, finish="stop")

    def lines(self) -> list[str]:
        """The estimate, for people."""
        stages = ", ".join(f"{self.calls[s]} {s}" for s in self.calls) or "none"
        lines = [
            f"calls       {sum(self.calls.values())} ({stages}); {self.cached} more are in the cache",
            f"tokens      about {self.prompt_tokens} in, {self.completion_tokens} out",
        ]
        prices = self.config.prices
        if prices is None:
            lines.append("cost        unknown: the teacher's file has no prices")
        else:
            about = prices.cost(self.prompt_tokens, self.completion_tokens)
            most = prices.cost(self.most_prompt_tokens, self.most_completion_tokens)
            lines.append(f"cost        about {about:.4f}; at most {most:.4f} if every answer took its whole limit")
        lines.append("claims are estimated from the replies' length; hidden reasoning, answers that must be asked")
        lines.append("for twice and failed calls come on top; no connection was opened")
        return lines


def _usual_answer(stage: Stage, user: str) -> str:
    if stage == "decompose":
        words = reply_of(user).split()
        claims = max(1, round(len(words) / _WORDS_A_CLAIM))
        size = -(-len(words) // claims) or 1
        return "\n".join(f"- {' '.join(words[i : i + size])}" for i in range(0, len(words), size)) or "None"
    if stage == "verify":
        # By digest: the same request has the same answer whatever the order of calls.
        share = hashlib.sha256(user.encode("utf-8", "replace")).digest()[0] * 100 / 256
        return UNVERIFIABLE if share < _UNVERIFIABLE_PERCENT else Label.VERIFIED.value
    return Label.LACKING_EVIDENCE.value if stage == "categorise" else "NO"
