"""Calls to an OpenAI-compatible endpoint: cached, within limits, tried again, and never a surprise.

`Endpoint.complete` sends one chat request through the official client and returns a `Reply`. Passing
failures (429, 5xx, time-outs, broken and unreadable responses) are tried again with back-off; what
can't pass (a wrong key, an unknown model, no server) ends the run with one sentence.
"""

from __future__ import annotations

import math
import random
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from vista_local.answer_cache import AnswerCache, request_key
from vista_local.errors import MissingExtraError, VistaError
from vista_local.fewshot import Message, Stage
from vista_local.limits import Budget, RateLimiter, Stop
from vista_local.offline import OfflineError
from vista_local.teacher import TeacherConfig

#: Stages whose answer is a label.
LABEL_STAGES = frozenset({"verify", "categorise"})

#: Back-off without advice from the endpoint: it doubles from the first to the longest, seconds.
FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0
#: The first after a 429: limits count by the minute, so the six waits, half of each by chance, must span one.
FIRST_WAIT_LIMITED = 2.0

#: A server that takes no connection for so long isn't there, seconds.
CONNECT_TIMEOUT = 10.0

#: An endpoint that asks for a longer pause than this is out of reach for now, seconds.
LONGEST_ADVISED_WAIT = 600.0

#: Failures of the HTTP client after which nothing can have been sent.
_UNSENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout"})

#: So many first characters of a key are told from other words, and are never shown.
_KEY_PREFIX = 8

# Reasoning opens on a line of its own; within a line it is a claim's words about the tag.
_OPENED = re.compile(r"^[ \t]*<think>", re.MULTILINE)

#: Answer tokens whose alternatives are kept: the label is in the first ones.
_KEPT_LOGPROBS = 4

# How endpoints say that one request is at fault, not all: it is too long, or its content isn't wanted.
_REFUSALS = (
    "context_length_exceeded",
    "exceed_context_size",
    "context length",
    "context size",
    "context window",
    "too many tokens",
    "content_filter",
    "content exists risk",
    "content management policy",
)


class EndpointError(VistaError):
    """The endpoint can't be used, or failed too often."""


@dataclass(frozen=True)
class Reply:
    """What came back for one request.

    Attributes:
        text: the answer as it is, reasoning included.
        finish: why it ended, in the endpoint's words.
        declined: why the endpoint gave no answer to this request, where it said so.
        logprobs: of the first answer tokens: the alternatives with their log-probabilities.
        prompt_tokens, completion_tokens: as reported, otherwise estimated from above.
        model: the model's name as reported.
        seconds: from sending to the whole answer, failed tries not included.
    """

    text: str
    finish: str | None = None
    declined: str | None = None
    logprobs: tuple[tuple[tuple[str, float], ...], ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    model: str | None = None
    seconds: float = 0.0

    @property
    def visible(self) -> str:
        """The answer without the reasoning that some servers leave in it; empty if the reasoning was cut off.

        The opening tag may be missing: some templates put it into the prompt.
        """
        rest = self.text.rpartition("</think>")[2]
        return "" if _OPENED.search(rest) else rest

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reply:
        """Read back what `asdict` and JSON made of one."""
        logprobs = tuple(tuple((str(t), float(p)) for t, p in top) for top in data.pop("logprobs", ()))
        # Caches of earlier versions hold texts as they came.
        rest: dict[str, Any] = {k: encodable(v) if isinstance(v, str) else v for k, v in data.items()}
        return cls(**rest, logprobs=logprobs)


def encodable(text: str) -> str:
    """The text without halves of surrogate pairs: broken logs and answers hold them, UTF-8 has no form for them."""
    return text.encode("utf-8", "replace").decode()


def expected_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a request, roughly: four bytes each, and four for every message's frame."""
    return sum(math.ceil(len(m["content"].encode("utf-8", "replace")) / 4) + 4 for m in messages)


def most_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a request, from above: one a byte, the most that a tokenizer makes, and 16 for a message's frame."""
    return sum(len(m["content"].encode("utf-8", "replace")) + 16 for m in messages)


def answer_limit(config: TeacherConfig, stage: Stage) -> int:
    """Most tokens of a stage's answer."""
    return config.label_max_tokens if stage in LABEL_STAGES else config.max_tokens


def request_body(config: TeacherConfig, stage: Stage, messages: Sequence[Message]) -> dict[str, Any]:
    """Everything that is sent for one request."""
    sendable = [{k: encodable(v) for k, v in message.items()} for message in messages]
    body: dict[str, Any] = {"model": config.model, "messages": sendable}
    body[config.max_tokens_key] = answer_limit(config, stage)
    if config.temperature is not None:
        body["temperature"] = config.temperature
    if config.seed is not None:
        body["seed"] = config.seed
    if config.logprobs and stage in LABEL_STAGES:
        body |= {"logprobs": True, "top_logprobs": config.logprobs}
    return body | config.extra_body


def cache_key(config: TeacherConfig, body: dict[str, Any]) -> str:
    """The request's name in the cache: where it goes, and all of it."""
    return request_key({"base_url": config.base_url, "body": body})


class Completer(Protocol):
    """Anything that answers a stage's chat request."""

    def complete(self, stage: Stage, messages: Sequence[Message]) -> Reply:
        """The answer to `messages`."""
        ...


@dataclass
class Usage:
    """What a run took so far."""

    calls: int = 0
    cached: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class _Failure:
    """A failed try: what to tell, how long the endpoint asks to wait, and whether it may have charged for it."""

    message: str
    wait: float | None = None
    charged: bool = False
    fatal: bool = False
    limited: bool = False


class _Unreadable(Exception):
    """A response that is no chat completion."""


@dataclass
class Endpoint:
    """One endpoint under one set of limits; `complete` may be called from many threads.

    Raises:
        MissingExtraError: the `openai` package is missing.
        VistaError: the key's variable is not set, or a budget is given without prices.
    """

    config: TeacherConfig
    cache: AnswerCache | None = None
    budget: Budget = field(default_factory=Budget)
    stop: Stop = field(default_factory=Stop)
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        try:
            import openai
        except ImportError as error:
            raise MissingExtraError("openai", "openai") from error
        if self.budget.limit is not None and self.config.prices is None:
            raise VistaError("--max-cost needs the teacher's prices: set prices.input and prices.output in its file")
        self._key = self.config.api_key()
        self._openai = openai
        self._client = openai.OpenAI(
            base_url=self.config.base_url,
            # The client wants some key; a server without keys doesn't look at it.
            api_key=self._key or "none",
            # What the environment says of OpenAI's own service is not for other servers.
            organization="",
            project="",
            timeout=openai.Timeout(self.config.timeout, connect=min(CONNECT_TIMEOUT, self.config.timeout)),
            max_retries=0,  # tried again here, where the limits see every try
            http_client=openai.DefaultHttpxClient(trust_env=False, proxy=self.config.proxy),
        )
        self._limiter = RateLimiter(
            self.config.requests_per_minute, self.config.tokens_per_minute, sleep=self.stop.sleep
        )
        self._lock = threading.Lock()
        self._reached = False

    def close(self) -> None:
        """Close connections."""
        self._client.close()

    def complete(self, stage: Stage, messages: Sequence[Message]) -> Reply:
        """The answer to a request: from the cache, or from the endpoint.

        Raises:
            BudgetError: it could cost more than is left.
            EndpointError: the endpoint can't be used or failed too often.
        """
        self.stop.check()
        body = request_body(self.config, stage, messages)
        key = cache_key(self.config, body)
        if self.cache is not None and (stored := self.cache.get(key)) is not None:
            with self._lock:
                self.usage.cached += 1
            return Reply.from_json(stored)
        try:
            reply = self._ask(stage, messages, body)
        except VistaError as error:
            self.stop.set(error)
            raise
        # A request that was declined may be answered by another set-up of the same server.
        if self.cache is not None and reply.declined is None:
            self.cache.put(key, asdict(reply))
        return reply

    def _ask(self, stage: Stage, messages: Sequence[Message], body: dict[str, Any]) -> Reply:
        prices = self.config.prices
        limit = answer_limit(self.config, stage)
        most = prices.cost(most_tokens(messages), limit) if prices else 0.0
        tries = 0
        while True:
            with self.budget.reserve(most) as report:
                report(0.0)  # nothing is sent while this waits for its turn
                entry = self._limiter.acquire(expected_tokens(messages) + limit // 4)
                self.stop.check()
                report(most)
                outcome = self._try(messages, body)
                if isinstance(outcome, Reply):
                    used = outcome.prompt_tokens + outcome.completion_tokens
                    self._limiter.settle(entry, used)
                    report(prices.cost(outcome.prompt_tokens, outcome.completion_tokens) if prices else 0.0)
                    with self._lock:
                        self._reached = True
                        self.usage.calls += 1
                        self.usage.prompt_tokens += outcome.prompt_tokens
                        self.usage.completion_tokens += outcome.completion_tokens
                    return outcome
                if not outcome.charged:
                    report(0.0)
            if outcome.fatal or tries >= self.config.max_retries:
                often = f" ({tries + 1} times)" if tries else ""
                raise EndpointError(self._redacted(f"{self.config.base_url}: {outcome.message}{often}"))
            self._back_off(outcome, tries)
            tries += 1

    def _back_off(self, failure: _Failure, tries: int) -> None:
        with self._lock:
            self.usage.retries += 1
        # Full jitter over the upper half: many threads that failed together shouldn't come back together.
        first = FIRST_WAIT_LIMITED if failure.limited else FIRST_WAIT
        wait = min(first * 2.0**tries, LONGEST_WAIT) * random.uniform(0.5, 1.0)
        if failure.wait is not None:
            if failure.wait > LONGEST_ADVISED_WAIT:
                raise EndpointError(
                    f"{self.config.base_url}: {failure.message}; it asks to wait {failure.wait:.0f} seconds: try later"
                )
            self._limiter.pause(failure.wait)  # all calls: the endpoint means the whole account
            wait = max(wait, failure.wait)  # an advice of 0 seconds doesn't switch back-off off
        self.stop.sleep(wait)

    def _try(self, messages: Sequence[Message], body: dict[str, Any]) -> Reply | _Failure:
        """One request; failures of every kind become values."""
        rest = {k: v for k, v in body.items() if k not in ("model", "messages")}
        started = time.monotonic()
        try:
            completion = self._client.chat.completions.create(
                model=body["model"], messages=body["messages"], extra_body=rest
            )
            return self._reply(completion, messages, time.monotonic() - started)
        except self._openai.APIConnectionError as error:
            return self._connection_failure(error)
        except self._openai.APIStatusError as error:
            return self._status_failure(error)
        except (_Unreadable, ValueError, self._openai.APIError) as error:
            # ValueError: the client's own reading of a response that is no JSON.
            return _Failure(f"a response that is no chat completion: {self._short(error)}", charged=True)

    def _connection_failure(self, error: Exception) -> _Failure:
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
            causes.append(cause)
        guarded = next((c for c in causes if isinstance(c, OfflineError)), None)
        if guarded is not None:
            return _Failure(str(guarded), fatal=True)
        timed_out = isinstance(error, self._openai.APITimeoutError)
        if any(type(c).__name__ in _UNSENT for c in causes):
            # Before the first answer it is a wrong address or a server that isn't up, and waiting is no help.
            why = "it takes no connection" if timed_out else self._short(causes[-1])
            return _Failure(f"can't be reached: {why}", fatal=not self._reached)
        if timed_out:
            return _Failure(f"no answer within {self.config.timeout:g} seconds", charged=True)
        return _Failure(f"the connection broke: {self._short(causes[-1])}", charged=True)

    def _status_failure(self, error: Any) -> Reply | _Failure:
        status = int(error.status_code)
        said = self._short(error)
        if status in (401, 403):
            variable = self.config.api_key_env
            whose = f"the key in {variable}" if variable else "a request without a key (api_key_env names none)"
            return _Failure(f"refused {whose} ({status}): {said}", fatal=True)
        if status == 404:
            return _Failure(f"no model {self.config.model!r} here, or no API address (404): {said}", fatal=True)
        if status == 429:
            if getattr(error, "code", None) == "insufficient_quota":
                return _Failure(f"the account's quota is used up (429): {said}", fatal=True)
            wait = _advised_wait(error.response.headers)
            return _Failure(f"too many requests (429): {said}", wait=wait, limited=True)
        if status in (408, 409) or status >= 500:
            wait = _advised_wait(error.response.headers)
            return _Failure(f"the server failed ({status}): {said}", wait=wait)
        if status == 413 or any(sign in said.lower() for sign in _REFUSALS):
            return Reply("", declined=self._redacted(f"refused by the endpoint ({status}): {said}"))
        return _Failure(f"refused the request ({status}): {said}", fatal=True)

    def _reply(self, completion: Any, messages: Sequence[Message], seconds: float) -> Reply:
        """A completion as a `Reply`. The client checks nothing, so everything is looked at here."""
        choices = getattr(completion, "choices", None)
        if not isinstance(choices, list) or not choices:
            raise _Unreadable(self._short(completion))
        message = getattr(choices[0], "message", None)
        text = getattr(message, "content", None)
        finish = getattr(choices[0], "finish_reason", None)
        refusal = getattr(message, "refusal", None)
        if message is None or not isinstance(text, str | None) or not isinstance(finish, str | None):
            raise _Unreadable(self._short(completion))
        declined = None
        if finish == "content_filter":
            declined = "the endpoint's content filter withheld the answer"
        elif isinstance(refusal, str) and refusal.strip():
            declined = f"the model declined: {self._short(refusal)}"
        usage = getattr(completion, "usage", None)
        prompt, answer = getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)
        said = [{"role": "assistant", "content": text or ""}]
        model = getattr(completion, "model", None)
        return Reply(
            text=encodable(text or ""),
            finish=finish and encodable(finish),
            declined=declined,
            logprobs=_top_logprobs(choices[0]),
            prompt_tokens=prompt if isinstance(prompt, int) else most_tokens(messages),
            completion_tokens=answer if isinstance(answer, int) else most_tokens(said),
            model=encodable(model) if isinstance(model, str) else None,
            seconds=round(seconds, 3),
        )

    def _redacted(self, text: str) -> str:
        """Error texts of endpoints may repeat the key, whole or cut off, as it is or escaped (JSON, repr)."""
        if not self._key:
            return text
        beginning = self._key[:_KEY_PREFIX]
        form = "".join(rf"\\*(?:{re.escape(c)}|u00(?i:{ord(c):02x}))" for c in beginning)
        return re.sub(form + r"\S*" if len(beginning) == _KEY_PREFIX else form, "***", text)

    def _short(self, what: object) -> str:
        """A text for a message: redacted first, since a key that is cut in the middle would not be found."""
        text = self._redacted(encodable(" ".join(str(what).split()))) or type(what).__name__
        return text if len(text) <= 200 else text[:200] + "…"


def _top_logprobs(choice: Any) -> tuple[tuple[tuple[str, float], ...], ...]:
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    if not isinstance(content, list):
        return ()
    positions = []
    for token in content[:_KEPT_LOGPROBS]:
        top = getattr(token, "top_logprobs", None) or []
        pairs = [(getattr(t, "token", None), getattr(t, "logprob", None)) for t in top]
        positions.append(tuple((t, float(p)) for t, p in pairs if isinstance(t, str) and isinstance(p, int | float)))
    return tuple(positions)


def _advised_wait(headers: Any) -> float | None:
    """Seconds of a Retry-After header (a number or a date, RFC 9110, 10.2.3); `None` if there is none."""
    value = headers.get("retry-after-ms")
    try:
        seconds = float(value) / 1000 if value is not None else float(headers.get("retry-after", ""))
    except ValueError:
        try:
            seconds = parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
