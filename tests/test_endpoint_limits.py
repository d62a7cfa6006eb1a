"""What calls to an endpoint are kept within: the cache, requests and tokens a minute, money."""

from __future__ import annotations

import math
import sqlite3
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_endpoint import FakeEndpoint, completion, fails_first

from vista_local.answer_cache import AnswerCache, request_key
from vista_local.backends.openai_backend import OpenAIBackend
from vista_local.endpoint import EndpointError, Reply, cache_key, most_tokens, request_body
from vista_local.errors import VistaError
from vista_local.fewshot import stage_messages
from vista_local.limits import Budget, BudgetError, RateLimiter, Stop
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest
from vista_local.teacher import TeacherConfig

VERIFY = stage_messages("verify", "Reference:\nIt was built in 1931.\n\nClaim: It was built in 1931.")
REQUEST = ClassifyRequest(
    Prompt("", "Reference:\nThe mill is old.\n\nClaim:"), ("The mill is old.", "The mill burned.")
)


# ---- cache ----


def test_a_cached_answer_makes_no_call_and_every_part_of_the_request_counts(
    server: FakeEndpoint, connect: Any, tmp_path: Path
) -> None:
    cache = AnswerCache(tmp_path / "a.sqlite")
    first = connect(cache).complete("verify", VERIFY)
    again = connect(cache)
    assert again.complete("verify", VERIFY) == first
    assert (server.calls, again.usage.cached, again.usage.calls) == (1, 1, 0)
    for change in ({"seed": 1}, {"temperature": 1.0}, {"label_max_tokens": 5}, {"extra_body": {"a": 1}}):
        connect(cache, **change).complete("verify", VERIFY)
    connect(cache, base_url=server.url.replace("127.0.0.1", "localhost")).complete("verify", VERIFY)
    assert server.calls == 6


def test_cached_answers_are_equal_with_logprobs(server: FakeEndpoint, connect: Any, tmp_path: Path) -> None:
    top = [{"token": "VER", "logprob": -0.1, "bytes": None}, {"token": "UN", "logprob": -2.4, "bytes": None}]
    content = [{"token": "VER", "logprob": -0.1, "bytes": None, "top_logprobs": top}]
    server.script = lambda n, b, h: h.send(200, completion("VERIFIED", logprobs={"content": content})) or True
    cache = AnswerCache(tmp_path / "a.sqlite")
    reply = connect(cache, logprobs=2).complete("verify", VERIFY)
    assert reply.logprobs == ((("VER", -0.1), ("UN", -2.4)),)
    assert connect(cache, logprobs=2).complete("verify", VERIFY) == reply


def test_half_a_surrogate_pair_is_replaced_in_new_answers_and_in_cached_ones(
    server: FakeEndpoint, connect: Any, tmp_path: Path
) -> None:
    server.script = lambda n, b, h: h.send(200, completion("- It is blue \ud83d")) or True
    cache = AnswerCache(tmp_path / "a.sqlite")
    endpoint = connect(cache)
    assert endpoint.complete("verify", VERIFY).text == "- It is blue ?"
    key = cache_key(endpoint.config, request_body(endpoint.config, "verify", VERIFY))
    cache.put(key, asdict(Reply("- It is blue \ud83d", declined="it said \ud83d")))  # as earlier versions kept it
    stored = endpoint.complete("verify", VERIFY)
    assert (stored.text, stored.declined, server.calls) == ("- It is blue ?", "it said ?", 1)
    refusal = {"role": "assistant", "content": None, "refusal": "No \ud83d"}
    server.script = lambda n, b, h: h.send(200, {"choices": [{"message": refusal, "finish_reason": "stop"}]}) or True
    assert connect().complete("verify", VERIFY).declined == "the model declined: No ?"
    server.script = fails_first(99, lambda h: h.send(413, {"error": {"message": "too long \ud83d"}}))
    connect().complete("verify", VERIFY).declined.encode()
    server.script = fails_first(99, lambda h: h.send(400, {"error": {"message": "odd \ud83d"}}))
    with pytest.raises(EndpointError, match=r"odd") as caught:
        connect().complete("verify", VERIFY)
    str(caught.value).encode()


def test_the_cache_is_private_and_keeps_no_request(server: FakeEndpoint, connect: Any, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.sqlite"
    connect(AnswerCache(path)).complete("verify", VERIFY)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"built in 1931" not in b"".join(f.read_bytes() for f in path.parent.iterdir())


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"this is no database, and long enough to be taken for none" * 99)
    with pytest.raises(VistaError, match=r"a\.sqlite: the cache of answers can't be used"):
        AnswerCache(path)
    with pytest.raises(VistaError, match="can't be used"):
        AnswerCache(tmp_path / "a.sqlite" / "below a file")


def test_two_processes_may_share_a_cache(tmp_path: Path) -> None:
    one, two = AnswerCache(tmp_path / "a.sqlite"), AnswerCache(tmp_path / "a.sqlite")
    keys = [request_key({"n": n}) for n in range(40)]
    threads = [
        threading.Thread(target=lambda c, part: [c.put(k, {"text": k}) for k in part], args=(cache, part))
        for cache, part in ((one, keys[:20]), (two, keys[20:]))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one.get(k) == two.get(k) == {"text": k} for k in keys)
    assert sqlite3.connect(tmp_path / "a.sqlite").execute("PRAGMA integrity_check").fetchone() == ("ok",)


# ---- limits ----


class Clock:
    """Time that passes only by waiting."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def used_in_any_minute(times: list[float], amounts: list[int]) -> int:
    return max(sum(a for t, a in zip(times, amounts, strict=True) if s <= t < s + 60) for s in times)


def test_no_minute_has_more_requests_or_tokens_than_allowed() -> None:
    clock = Clock()
    limiter = RateLimiter(5, 1000, clock=clock, sleep=clock.sleep)
    amounts = [(37 * n) % 400 + 1 for n in range(60)]
    times = []
    for amount in amounts:
        limiter.acquire(amount)
        times.append(clock.now)
        clock.now += 0.5
    assert used_in_any_minute(times, amounts) <= 1000
    assert used_in_any_minute(times, [1] * 60) <= 5
    assert clock.now < 60 * 25  # it waits no longer than it must


def test_true_tokens_take_the_place_of_estimated_ones() -> None:
    clock = Clock()
    limiter = RateLimiter(None, 1000, clock=clock, sleep=clock.sleep)
    entry = limiter.acquire(1000)
    limiter.settle(entry, 100)
    limiter.acquire(900)
    assert clock.now == 0
    limiter.acquire(1)
    assert clock.now >= 60


def test_a_call_larger_than_the_cap_goes_alone() -> None:
    clock = Clock()
    limiter = RateLimiter(None, 100, clock=clock, sleep=clock.sleep)
    limiter.acquire(50)
    limiter.acquire(5000)
    assert clock.now == 60


def test_the_caps_hold_for_real_calls(server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vista_local.limits.WINDOW", 1.5)
    connect().complete("verify", VERIFY)  # the client's slow first call is no part of the measurement
    limited = connect(requests_per_minute=4)
    backend = OpenAIBackend(limited, limited.config)
    backend.ask("verify", [f"Claim: {n}." for n in range(5)])
    backend.close()
    times = sorted(server.times[1:])
    assert len(times) == 5
    assert times[4] - times[0] >= 1.0


def test_calls_run_side_by_side_up_to_the_set_number(server: FakeEndpoint, connect: Any) -> None:
    server.delay = 0.1
    config = TeacherConfig(base_url=server.url, model="scripted", concurrency=3)
    backend = OpenAIBackend(connect(concurrency=3), config)
    backend.ask("verify", [f"Claim: {n}." for n in range(9)])
    backend.close()
    assert server.most_in_flight == 3


def test_waiting_ends_when_the_run_ends() -> None:
    stop = Stop()
    limiter = RateLimiter(1, sleep=stop.sleep)
    limiter.acquire(1)
    threading.Timer(0.05, stop.set, (VistaError("enough"),)).start()
    started = time.monotonic()
    with pytest.raises(VistaError, match="enough"):
        limiter.acquire(1)
    assert time.monotonic() - started < 5


# ---- money ----

PRICES = {"input": 1000.0, "output": 1000.0}  # 110 tokens a call: 0.11


def test_the_budget_is_never_passed_and_stops_before(server: FakeEndpoint, connect: Any) -> None:
    bound = (most_tokens(VERIFY) + 64) / 1000
    endpoint = connect(prices=PRICES, max_cost=bound + 0.3)
    for n in range(3):  # 0.11, 0.22, 0.33: the fourth could cost `bound` and doesn't fit
        endpoint.complete("verify", stage_messages("verify", f"Claim: {n}."))
    with pytest.raises(BudgetError, match=r"could be passed: 0\.33"):
        endpoint.complete("verify", VERIFY)
    assert server.calls == 3
    assert endpoint.budget.spent == pytest.approx(0.33)


def test_side_by_side_calls_cannot_pass_the_budget_together(server: FakeEndpoint, connect: Any) -> None:
    server.delay = 0.05
    bound = (most_tokens(VERIFY) + 64) / 1000
    endpoint = connect(prices=PRICES, max_cost=bound + 0.5)
    backend = OpenAIBackend(endpoint, TeacherConfig(base_url=server.url, model="scripted", concurrency=8))
    with pytest.raises(BudgetError):
        backend.ask("verify", [f"Claim: {n}." for n in range(40)])
    backend.close()
    assert endpoint.budget.spent <= bound + 0.5
    assert endpoint.budget.spent == pytest.approx(0.11 * server.calls)
    assert server.calls >= 4


def test_an_answer_that_got_lost_counts_as_paid(server: FakeEndpoint, connect: Any) -> None:
    server.script = fails_first(1, lambda h: h.send_half())
    endpoint = connect(prices=PRICES, max_cost=1e6)
    endpoint.complete("verify", VERIFY)
    assert endpoint.budget.spent == pytest.approx((most_tokens(VERIFY) + 64) / 1000 + 0.11)
    server.script = fails_first(3, lambda h: h.send(429, {}))
    endpoint = connect(prices=PRICES, max_cost=1e6)
    endpoint.complete("verify", VERIFY)
    assert endpoint.budget.spent == pytest.approx(0.11)  # a refused call costs nothing


def test_a_server_without_usage_is_charged_from_above(server: FakeEndpoint, connect: Any) -> None:
    server.script = lambda n, b, h: h.send(200, completion("VERIFIED") | {"usage": None}) or True
    endpoint = connect(prices=PRICES)
    endpoint.complete("verify", VERIFY)
    assert endpoint.budget.spent >= most_tokens(VERIFY) / 1000


@pytest.mark.parametrize("text", ["8f3a" * 50, "3.14159" * 30, "ሰላም ለዓለም " * 20, "\x00\ud83d" * 40, ""])
def test_no_tokenizer_makes_more_tokens_than_the_bound(text: str) -> None:
    # Tokenizers that fall back on bytes make one token of each at most.
    assert most_tokens([{"role": "user", "content": text}]) >= len(text.encode("utf-8", "replace")) + 16


@pytest.mark.parametrize("limit", [math.nan, math.inf, -math.inf, -1.0])
def test_a_budget_that_is_no_amount_is_refused(limit: float) -> None:
    with pytest.raises(VistaError, match=r"--max-cost .*a number from 0 up is expected"):
        Budget(limit)


def test_a_budget_without_prices_is_refused(connect: Any) -> None:
    with pytest.raises(VistaError, match=r"prices\.input"):
        connect(max_cost=1.0)
