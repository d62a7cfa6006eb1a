"""Calls to an endpoint that misbehaves: tried again, kept within limits, cached, or ended with one sentence."""

from __future__ import annotations

import json
import random
import socket
import sys
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from fake_endpoint import KEY, FakeEndpoint, completion, fails_first

from vista_local.endpoint import CONNECT_TIMEOUT, FIRST_WAIT_LIMITED, EndpointError
from vista_local.errors import VistaError
from vista_local.fewshot import stage_messages

VERIFY = stage_messages("verify", "Reference:\nIt was built in 1931.\n\nClaim: It was built in 1931.")


FAILURES: dict[str, Any] = {
    "429": lambda h: h.send(429, {"error": {"message": "slow down"}}),
    "500": lambda h: h.send(500, {"error": {"message": "oops"}}),
    "503 in HTML": lambda h: h.send(503, "<html>busy</html>", kind="text/html"),
    "garbage that claims to be JSON": lambda h: h.send(200, "%%% garbage"),
    "a web page": lambda h: h.send(200, "<html>hello</html>", kind="text/html"),
    "JSON without choices": lambda h: h.send(200, {"error": {"message": "upstream"}}),
    "a list": lambda h: h.send(200, [1, 2]),
    "choices of nothing": lambda h: h.send(200, completion("x") | {"choices": [{"message": None}]}),
    "content of a wrong type": lambda h: h.send(200, completion("x") | {"choices": [{"message": {"content": 3}}]}),
    "half a response": lambda h: h.send_half(),
    "a hang": lambda h: time.sleep(1.5),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_a_passing_failure_is_tried_again(server: FakeEndpoint, connect: Any, failure: Any) -> None:
    server.script = fails_first(2, failure)
    endpoint = connect(timeout=0.5)
    assert endpoint.complete("verify", VERIFY).text == "VERIFIED"
    assert server.calls == 3
    assert (endpoint.usage.calls, endpoint.usage.retries) == (1, 2)


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_that_stays_ends_with_one_sentence(server: FakeEndpoint, connect: Any, failure: Any) -> None:
    server.script = fails_first(99, failure)
    endpoint = connect(timeout=0.3, max_retries=1)
    with pytest.raises(EndpointError, match=r"http://127.0.0.1:\d+/v1: .*\(2 times\)"):
        endpoint.complete("verify", VERIFY)
    assert server.calls == 2


def test_retry_after_is_honoured_by_every_call(server: FakeEndpoint, connect: Any) -> None:
    server.script = fails_first(1, lambda h: h.send(429, {"error": {"message": "slow"}}, {"retry-after": "0.8"}))
    endpoint = connect()
    endpoint.complete("verify", VERIFY)
    assert server.times[1] - server.times[0] >= 0.8
    started = time.monotonic()
    server.script = fails_first(3, lambda h: h.send(429, {}, {"retry-after-ms": "600"}))
    first = threading.Thread(target=endpoint.complete, args=("verify", VERIFY))
    first.start()
    while server.calls < 3:
        time.sleep(0.01)
    time.sleep(0.1)
    endpoint.complete("verify", VERIFY)  # another call keeps the pause as well
    first.join()
    assert time.monotonic() - started >= 0.6
    assert server.times[3] - server.times[2] >= 0.59


def test_retry_after_as_a_date_and_beyond_patience(server: FakeEndpoint, connect: Any) -> None:
    server.script = fails_first(1, lambda h: h.send(503, {}, {"retry-after": formatdate(time.time() + 2, usegmt=True)}))
    connect().complete("verify", VERIFY)
    assert server.times[1] - server.times[0] > 0.5
    server.script = fails_first(9, lambda h: h.send(429, {"error": {"message": "x"}}, {"retry-after": "86400"}))
    with pytest.raises(EndpointError, match="86400 seconds"):
        connect().complete("verify", VERIFY)


def test_advice_to_wait_no_time_does_not_switch_back_off_off(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vista_local.endpoint.FIRST_WAIT_LIMITED", 0.4)
    server.script = fails_first(2, lambda h: h.send(429, {"error": {"message": "slow"}}, {"retry-after": "0"}))
    connect().complete("verify", VERIFY)
    first, second, third = server.times
    assert second - first >= 0.2 and third - second >= 0.4  # half to all of 0.4, then of 0.8


def test_a_wrong_key_names_the_variable_and_never_the_key(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    monkeypatch.setenv("TEACHER_KEY", "sk-wrong-one")
    with pytest.raises(EndpointError, match="refused the key in TEACHER_KEY") as caught:
        connect(api_key_env="TEACHER_KEY").complete("verify", VERIFY)
    assert "sk-wrong-one" not in str(caught.value)
    assert server.calls == 1
    monkeypatch.setenv("TEACHER_KEY", KEY)
    assert connect(api_key_env="TEACHER_KEY").complete("verify", VERIFY).text == "VERIFIED"


LONG_KEY = "sk-" + "a1B2c3D4" * 25


@pytest.mark.parametrize("said", [LONG_KEY, LONG_KEY[:90] + "****", json.dumps({"key": LONG_KEY}), f"x{LONG_KEY}y"])
def test_a_long_key_that_is_echoed_is_not_printed_in_part(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("TEACHER_KEY", LONG_KEY)
    server.script = fails_first(
        1, lambda h: h.send(401, {"error": {"message": f"Incorrect API key: {said} is not it"}})
    )
    with pytest.raises(EndpointError, match="refused the key in TEACHER_KEY") as caught:
        connect(api_key_env="TEACHER_KEY").complete("verify", VERIFY)
    assert LONG_KEY[:12] not in str(caught.value) and "***" in str(caught.value)


ODD_KEY = "k/\"1'2\\3zZ-the-rest"


@pytest.mark.parametrize("said", [ODD_KEY, ODD_KEY[:9], f"<{ODD_KEY}>", repr(ODD_KEY), json.dumps(ODD_KEY)])
@pytest.mark.parametrize("escape", [str, lambda text: text.replace("/", "\\/").replace("'", "\\u0027"), json.dumps])
def test_an_escaped_or_cut_key_is_not_printed(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch, said: str, escape: Any
) -> None:
    monkeypatch.setenv("TEACHER_KEY", ODD_KEY)
    server.script = fails_first(1, lambda h: h.send(401, {"error": {"message": f"Not a key: {escape(said)} (sorry)"}}))
    with pytest.raises(EndpointError, match=r"Not a key: .*\*\*\* \(sorry\)") as caught:
        connect(api_key_env="TEACHER_KEY").complete("verify", VERIFY)
    assert "3z" not in str(caught.value) and "rest" not in str(caught.value)


@pytest.mark.parametrize("before", [0, 150, 160, 165])
def test_no_beginning_of_a_key_is_left_where_a_message_is_cut(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setenv("TEACHER_KEY", LONG_KEY)
    data = {"error": {"message": "." * before + LONG_KEY}}
    endpoint = connect(api_key_env="TEACHER_KEY")
    server.script = fails_first(1, lambda h: h.send(413, data))
    declined = endpoint.complete("verify", VERIFY).declined  # goes into traces
    server.script = fails_first(2, lambda h: h.send(429, data, {"retry-after": "86400"}))
    with pytest.raises(EndpointError, match="86400 seconds") as caught:
        endpoint.complete("verify", VERIFY)
    assert "sk-" not in declined and "sk-" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "said", "shown"),
    [("abcdefgh", "abcdefgh", "***"), ("abcdefghijkl", "abcdefghi", "***"), ("abcdefghijkl", "abcdefg", "abcdefg")],
)
def test_a_short_key_is_found_by_its_first_eight_characters(
    connect: Any, monkeypatch: pytest.MonkeyPatch, key: str, said: str, shown: str
) -> None:
    monkeypatch.setenv("TEACHER_KEY", key)
    assert connect(api_key_env="TEACHER_KEY")._short(f"no {said} here") == f"no {shown} here"
    monkeypatch.setenv("TEACHER_KEY", "xyz")
    assert connect(api_key_env="TEACHER_KEY")._short("no xyzw here") == "no ***w here"


@pytest.mark.parametrize("key", ["sk-abc…", "sk-é", "sk-abc def", "sk\x07"])
def test_what_cannot_be_a_key_is_refused_without_showing_it(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("TEACHER_KEY", key)
    with pytest.raises(VistaError, match=r"TEACHER_KEY: character \d is none that a key can have") as caught:
        connect(api_key_env="TEACHER_KEY")
    assert key not in str(caught.value) and server.calls == 0


PRICES = {"input": 1e6, "output": 1e6}


def test_a_server_that_takes_no_connection_is_out_of_reach_and_costs_nothing(connect: Any) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        # Linux drops what comes to a full queue, as firewalls do.
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        endpoint = connect(max_cost=1e9, base_url=url, prices=PRICES, timeout=0.3)
        with pytest.raises(EndpointError, match=r"can't be reached: it takes no connection$"):
            endpoint.complete("verify", VERIFY)
        for each in waiting:
            each.close()
    assert (endpoint.usage.retries, endpoint.budget.spent) == (0, 0)


def test_a_connection_is_waited_for_for_seconds_and_an_answer_for_minutes(connect: Any) -> None:
    for seconds, to_connect in (120, CONNECT_TIMEOUT), (2, 2):
        timeout = connect(timeout=seconds)._client.timeout
        assert (timeout.connect, timeout.read) == (to_connect, seconds)


@pytest.mark.parametrize(
    ("failure", "sent", "words"),
    [
        ("ConnectTimeout", False, "can't be reached: it takes no connection"),
        ("PoolTimeout", False, "can't be reached: it takes no connection"),
        ("ReadTimeout", True, "no answer within 20 seconds"),
        ("WriteTimeout", True, "no answer within 20 seconds"),
    ],
)
def test_only_a_request_that_was_sent_counts_as_paid(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch, failure: str, sent: bool, words: str
) -> None:
    library = sys.modules[openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]]  # httpx, or its successor

    def breaking(client: Any, times: int) -> None:
        """The next tries fail before the server sees them."""
        left, usual = [None] * times, client.chat.completions.create

        def create(**request: Any) -> Any:
            if not left:
                return usual(**request)
            left.pop()
            error = getattr(library, failure)("timed out")
            raise openai.APITimeoutError(SimpleNamespace()) from error  # type: ignore[arg-type]

        monkeypatch.setattr(client.chat.completions, "create", create)

    first = connect(max_cost=1e9, prices=PRICES, max_retries=1)
    breaking(first._client, 9)
    with pytest.raises(EndpointError, match=words):
        first.complete("verify", VERIFY)
    assert (first.usage.retries, first.budget.spent > 0) == (int(sent), sent)
    # A server that has answered before is waited for.
    later = connect(max_cost=1e9, prices=PRICES)
    later.complete("verify", VERIFY)
    breaking(later._client, 2)
    later.complete("verify", VERIFY)
    assert (later.usage.retries, later.budget.spent == pytest.approx(220)) == (2, not sent)


def test_tries_after_429_span_more_than_the_minute_that_limits_are_counted_by(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vista_local.endpoint.FIRST_WAIT_LIMITED", FIRST_WAIT_LIMITED)
    monkeypatch.setattr(random, "uniform", lambda least, most: least)
    server.script = fails_first(99, lambda h: h.send(429, {"error": {"message": "tokens per minute"}}))
    endpoint = connect()
    waits: list[float] = []
    monkeypatch.setattr(endpoint.stop, "sleep", waits.append)
    with pytest.raises(EndpointError, match=r"too many requests \(429\).*\(7 times\)"):
        endpoint.complete("verify", VERIFY)
    assert len(waits) == 6 and 60 < sum(waits) < 120


def test_a_missing_key_names_the_variable_and_sends_nothing(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    with pytest.raises(VistaError, match="TEACHER_KEY is not set"):
        connect(api_key_env="TEACHER_KEY")
    assert server.calls == 0


def test_a_local_endpoint_gets_no_key_of_somebody_else(
    server: FakeEndpoint, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    monkeypatch.setenv("HTTP_PROXY", "http://192.0.2.1:1")
    connect().complete("verify", VERIFY)
    assert "secret" not in json.dumps(server.headers)


@pytest.mark.parametrize(
    ("status", "data", "words"),
    [
        (404, {"error": {"message": "The model does not exist"}}, "no model 'scripted' here"),
        (400, {"error": {"message": "Unsupported parameter: temperature"}}, "Unsupported parameter: temperature"),
        (403, {"error": {"message": "no"}}, "without a key"),
        (429, {"error": {"message": "pay", "code": "insufficient_quota"}}, "quota"),
    ],
)
def test_what_cannot_pass_is_not_tried_again(
    server: FakeEndpoint, connect: Any, status: int, data: Any, words: str
) -> None:
    server.script = fails_first(99, lambda h: h.send(status, data))
    with pytest.raises(EndpointError, match=words):
        connect().complete("verify", VERIFY)
    assert server.calls == 1


def test_an_unknown_model_and_an_unreachable_server(server: FakeEndpoint, connect: Any) -> None:
    with pytest.raises(EndpointError, match="no model 'gpt-9' here"):
        connect(model="gpt-9").complete("verify", VERIFY)
    started = time.monotonic()
    with pytest.raises(EndpointError, match="can't be reached"):
        connect(base_url="http://127.0.0.1:9/v1").complete("verify", VERIFY)
    assert time.monotonic() - started < 5


def test_after_the_first_error_no_call_is_sent(server: FakeEndpoint, connect: Any) -> None:
    endpoint = connect(model="gpt-9")
    for _ in range(2):
        with pytest.raises(EndpointError, match="gpt-9"):
            endpoint.complete("verify", VERIFY)
    assert server.calls == 1


def test_the_request_is_what_the_settings_say(server: FakeEndpoint, connect: Any) -> None:
    settings = {"temperature": None, "seed": 3, "max_tokens_key": "max_completion_tokens", "logprobs": 4}
    endpoint = connect(**settings, label_max_tokens=9, extra_body={"reasoning_effort": "low"})
    endpoint.complete("verify", VERIFY)
    endpoint.complete("decompose", stage_messages("decompose", "Reply:\nIt is old."))
    label, claims = server.bodies
    expected = {"model": "scripted", "messages": VERIFY, "max_completion_tokens": 9, "seed": 3}
    assert label == expected | {"logprobs": True, "top_logprobs": 4, "reasoning_effort": "low"}
    assert claims["max_completion_tokens"] == 2048 and "logprobs" not in claims and "temperature" not in claims
