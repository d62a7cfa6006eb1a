"""A scripted OpenAI-compatible server on loopback: it labels by rule, and misbehaves on demand."""

from __future__ import annotations

import http.server
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MODEL = "scripted"
KEY = "sk-test-of-the-tests"


def stage_of(body: dict[str, Any]) -> str:
    """The stage that a request belongs to, by its instructions."""
    system = body["messages"][0]["content"]
    if "fact checking" in system:
        return "decompose"
    if "contradicts something" in system:
        return "contradiction"
    return "categorise" if "four labels" in system else "verify"


def usual_answer(body: dict[str, Any]) -> str:
    """A claim for each sentence; VERIFIED if reference or known facts hold it word by word."""
    stage = stage_of(body)
    user = next(m["content"] for m in reversed(body["messages"]) if "cannot be used" not in m["content"])
    if stage == "decompose":
        sentences = re.findall(r"[^.!?]+[.!?]", user.rpartition("Reply:\n")[2])
        return "\n".join(f"- {s.strip()}" for s in sentences) or "None"
    if stage == "contradiction":
        return "NO"
    evidence, _, claim = user.rpartition("Claim:")
    evidence = evidence[evidence.rfind("Known facts:") :] if "Known facts:" in evidence else evidence
    if stage == "verify":
        return "VERIFIED" if claim.strip() in evidence else "UNVERIFIABLE"
    return "OUT_OF_SCOPE" if "I like" in claim else "LACKING_EVIDENCE"


def completion(text: str, **more: Any) -> dict[str, Any]:
    """A chat completion with one choice."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    choice |= {k: more.pop(k) for k in ("finish_reason", "logprobs") if k in more}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": f"{MODEL}-0",
        "choices": [choice],
        "usage": usage,
    } | more


class FakeEndpoint:
    """What the server does: `answer` makes the text, `script` may take a request over.

    `script(number, body, handler)` gets each request's number from 0; it returns True if it has
    answered itself.
    """

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, Any]], str] = usual_answer
        self.script: Callable[[int, dict[str, Any], Handler], bool] | None = None
        self.key: str | None = None
        self.delay = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.url = ""

    @property
    def calls(self) -> int:
        """Requests so far."""
        return len(self.bodies)

    def stages(self) -> Counter[str]:
        """Requests by stage."""
        return Counter(stage_of(b) for b in self.bodies)


class Handler(http.server.BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    endpoint: FakeEndpoint

    def do_POST(self) -> None:
        endpoint = self.endpoint
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with endpoint.lock:
            number = endpoint.calls
            endpoint.bodies.append(body)
            endpoint.times.append(time.monotonic())
            endpoint.headers.append({k.lower(): v for k, v in self.headers.items()})
            endpoint.in_flight += 1
            endpoint.most_in_flight = max(endpoint.most_in_flight, endpoint.in_flight)
        try:
            if endpoint.delay:
                time.sleep(endpoint.delay)
            if endpoint.script is not None and endpoint.script(number, body, self):
                return
            if endpoint.key is not None and self.headers.get("authorization") != f"Bearer {endpoint.key}":
                given = self.headers.get("authorization", "").removeprefix("Bearer ")
                self.send(401, {"error": {"message": f"Incorrect API key provided: {given}"}})
            elif body["model"] != MODEL:
                self.send(404, {"error": {"message": f"The model `{body['model']}` does not exist"}})
            else:
                self.send(200, completion(endpoint.answer(body)))
        finally:
            with endpoint.lock:
                endpoint.in_flight -= 1

    def send(
        self, status: int, data: Any, headers: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        """Answer; text is sent as it is."""
        raw = data.encode() if isinstance(data, str) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def send_half(self) -> None:
        """Promise a whole answer, send the first half, and hang up."""
        raw = json.dumps(completion("VERIFIED")).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw[: len(raw) // 2])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Be quiet."""


class Server(http.server.ThreadingHTTPServer):
    """Drops what clients do to their connections."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that gave up is no error here."""


@contextmanager
def serving() -> Iterator[FakeEndpoint]:
    """A running server."""
    endpoint = FakeEndpoint()
    server = Server(("127.0.0.1", 0), type("Bound", (Handler,), {"endpoint": endpoint}))
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


if __name__ == "__main__":  # for tests that kill their client: `python tests/fake_endpoint.py`
    with serving() as running:
        print(running.url, flush=True)
        threading.Event().wait()


def fails_first(times: int, failure: Any) -> Any:
    """A script: the first requests fail by `failure(handler)`, the others are answered as usual."""

    def script(number: int, body: dict[str, Any], handler: Handler) -> bool:
        if number < times:
            failure(handler)
            return True
        return False

    return script
