"""The socket guard: nothing leaves this machine inside it, everything is as before after it."""

from __future__ import annotations

import _socket
import asyncio
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vista_local.errors import VistaError
from vista_local.offline import OfflineError, offline

FAR = ("192.0.2.1", 80)  # reserved for documentation: never answers
VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    """A web server on loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"here")

        def log_message(self, *_: object) -> None:
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield "127.0.0.1", running.server_port
    running.shutdown()
    thread.join()
    running.server_close()


def connect() -> None:
    with socket.socket() as sock:
        sock.settimeout(5)
        sock.connect(FAR)


def connect_ex() -> None:
    with socket.socket() as sock:
        sock.settimeout(5)
        sock.connect_ex(FAR)


def connect_below() -> None:
    _socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect(FAR)


def connect_by_name() -> None:
    with socket.socket() as sock:
        sock.connect(("example.org", 80))


def connect_6() -> None:
    with socket.socket(socket.AF_INET6) as sock:
        sock.connect(("2001:db8::1", 80))


def connect_mapped() -> None:
    with socket.socket(socket.AF_INET6) as sock:
        sock.connect(("::ffff:192.0.2.1", 80))


def send_to() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", FAR)


def send_to_with_flags() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendto(b"x", 0, ("example.org", 53))


def send_message() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.sendmsg([b"x"], [], 0, FAR)


ATTEMPTS: list[Callable[[], object]] = [
    connect,
    connect_ex,
    connect_below,
    connect_by_name,
    connect_6,
    connect_mapped,
    send_to,
    send_to_with_flags,
    send_message,
    lambda: socket.create_connection(FAR, timeout=5),
    lambda: socket.create_connection(("example.org", 80), timeout=5),
    lambda: socket.getaddrinfo("example.org", 80),
    lambda: socket.getaddrinfo(b"example.org", 80),
    lambda: socket.getaddrinfo("localhost.example.org", 80),
    lambda: socket.gethostbyname("example.org"),
    lambda: socket.gethostbyname_ex("example.org"),
    lambda: socket.gethostbyaddr("192.0.2.1"),
    lambda: socket.getnameinfo(FAR, 0),
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_what_would_leave_the_machine_is_refused_at_once(attempt: Callable[[], object]) -> None:
    begin = time.monotonic()
    with offline(), pytest.raises(OfflineError, match=r"192\.0\.2\.1|example\.org|2001:db8::1"):
        attempt()
    assert time.monotonic() - begin < 1


def test_name_is_refused_before_it_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """socket.connect resolves a name before it raises its audit event: the guard must come earlier."""
    events: list[str] = []
    with offline():
        sys.addaudithook(lambda event, _args: events.append(event) if event == "socket.connect" else None)
        with pytest.raises(OfflineError):
            connect_by_name()
    assert events == []


def test_error_is_both_a_missing_network_and_a_sentence() -> None:
    assert issubclass(OfflineError, ConnectionError) and issubclass(OfflineError, VistaError)
    with offline(), pytest.raises(OfflineError) as caught:
        connect()
    assert "('192.0.2.1', 80)" in str(caught.value)


def test_loopback_works(server: tuple[str, int]) -> None:
    with offline():
        for host in ("127.0.0.1", "localhost"):
            with urllib.request.urlopen(f"http://{host}:{server[1]}/", timeout=5) as answer:
                assert answer.read() == b"here"
        assert socket.getaddrinfo("192.0.2.1", 80)  # a literal address needs no lookup
        assert socket.getaddrinfo(None, 80, flags=socket.AI_PASSIVE)
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.sendto(b"x", ("127.0.0.1", server[1]))


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")
def test_unix_sockets_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a Unix socket must be short
    with offline(), socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as sock:
        listener.bind("s")
        listener.listen()
        sock.connect("s")
        left, right = socket.socketpair()
        left.sendall(b"x")
        assert right.recv(1) == b"x"
        left.close()
        right.close()


def test_caller_mistakes_keep_their_own_errors() -> None:
    with offline(), socket.socket() as sock, pytest.raises(TypeError):
        sock.connect("127.0.0.1")


def test_urllib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for host in ("192.0.2.1", "example.org"):
        with offline(), pytest.raises(urllib.error.URLError) as caught:
            urllib.request.urlopen(f"http://{host}/", timeout=5)
        assert isinstance(caught.value.reason, OfflineError)


@pytest.mark.parametrize("host", ["192.0.2.1", "example.org"])
def test_asyncio_is_refused(host: str) -> None:
    with offline(), pytest.raises(OfflineError):
        asyncio.run(asyncio.wait_for(asyncio.open_connection(host, 80), 5))


def test_asyncio_reaches_loopback(server: tuple[str, int]) -> None:
    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("localhost", server[1], family=socket.AF_INET)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer

    with offline():
        assert asyncio.run(ask()).endswith(b"here")


def test_other_threads_are_guarded_too() -> None:
    errors: list[BaseException] = []
    inside, attempted = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        try:
            connect()
        except BaseException as error:
            errors.append(error)
        attempted.set()

    thread = threading.Thread(target=other)
    thread.start()  # before the guard begins
    with offline():
        inside.set()
        assert attempted.wait(5)
    thread.join()
    assert [type(error) for error in errors] == [OfflineError]


def refused() -> bool:
    """Whether the guard is up; without a packet if it isn't, since port 0 can't be sent to."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        try:
            sock.sendto(b"", ("203.0.113.1", 0))
        except OfflineError:
            return True
        except OSError:
            pass
    return False


def test_everything_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    before = dict(vars(socket.socket))
    assert not refused()
    with pytest.raises(ZeroDivisionError), offline():
        assert refused()
        assert [os.environ[name] for name in VARIABLES] == ["1", "1", "1"]
        raise ZeroDivisionError
    assert not refused()
    assert dict(vars(socket.socket)) == before
    assert [os.environ.get(name) for name in VARIABLES] == ["0", None, None]


def test_guards_nest() -> None:
    with offline():
        with offline():
            assert refused()
        assert refused()
        assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert not refused()


def test_guards_of_two_threads_may_overlap() -> None:
    """The first to begin ends first: the second must stay guarded, and the end restores the true beginning."""
    before = [os.environ.get(name) for name in VARIABLES]
    first, second = offline(), offline()
    first.__enter__()
    thread = threading.Thread(target=second.__enter__)
    thread.start()
    thread.join()
    first.__exit__(None, None, None)
    assert refused()
    second.__exit__(None, None, None)
    assert not refused()
    assert [os.environ.get(name) for name in VARIABLES] == before


def test_hub_library_is_switched_and_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    with offline():
        assert constants.HF_HUB_OFFLINE is True and constants.HF_HUB_DISABLE_TELEMETRY is True
    assert constants.HF_HUB_OFFLINE is False and constants.HF_HUB_DISABLE_TELEMETRY is False


def test_hub_library_imported_inside_is_online_afterwards() -> None:
    pytest.importorskip("huggingface_hub")
    code = (
        "from vista_local.offline import offline\n"
        "with offline():\n"
        "    from huggingface_hub import constants\n"
        "    print(constants.HF_HUB_OFFLINE)\n"
        "print(constants.HF_HUB_OFFLINE)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"] and done.stderr == ""


def test_interpreter_shuts_down_quietly_inside_the_guard() -> None:
    code = "from vista_local.offline import offline; g = offline(); g.__enter__(); import socket; s = socket.socket()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
