"""A guard that keeps this process off the network while private conversations are scored.

Contract: inside `with offline():` no thread of this process can open a connection, send a datagram or
look a name up beyond this machine; the attempt raises `OfflineError` at once, before a packet leaves.
Loopback (127.0.0.0/8, ::1, localhost) and Unix sockets work as before. Guards nest and may overlap
between threads; when the last one ends everything is as it was. A child made by fork inherits the guard.

`offline(allow=hosts)` lets the named hosts through, which a prompted teacher needs: lookups of exactly
these names, and connections to the addresses that such a lookup gave. Of several open guards the
strictest counts.

What it does not cover: connections that were open before, native code that opens sockets without
Python's socket module, and programs started as subprocesses (they inherit only the environment
variables). The Hugging Face switches are set as well, so that libraries that know them don't even try.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address
from typing import Any

from vista_local.errors import VistaError

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_HUB_CONSTANTS = "huggingface_hub.constants"
_HUB_FLAGS = ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


class OfflineError(VistaError, ConnectionError):
    """Something tried to leave this machine inside `offline()`. The message names the address.

    It is a ConnectionError, so that libraries treat it like a missing network, and a VistaError, so
    that it ends a command with a sentence.
    """


def _refuse(what: str, target: object) -> None:
    allowed = ", ".join(sorted(_guard.allowed())) or "this machine"
    raise OfflineError(f"{what} {target!r} refused: vista-local is offline while it scores, only {allowed} is allowed")


def _text(host: object) -> str:
    return host.decode("ascii", "replace") if isinstance(host, bytes | bytearray) else str(host)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_local(host: object) -> bool:
    """Whether a host, as a name or a literal address, is this machine's loopback."""
    text = _text(host)
    if text.lower().removesuffix(".") == "localhost":
        return True
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def is_loopback(host: str) -> bool:
    """Whether a host, as a name or a literal address, is this machine; no name is looked up."""
    return _is_local(host)


def _is_allowed(host: object) -> bool:
    return bool(_guard.allows) and _plain(host) in _guard.allowed()


def _plain(host: object) -> str:
    """A name or address in the form in which allowed ones are compared."""
    text = _text(host).lower().removesuffix(".")
    return str(ip_address(text)) if _is_address(text) else text


def _check_peer(family: int, address: object) -> None:
    """Refuse an address that a socket is about to be connected to or to send to."""
    if family == getattr(socket, "AF_UNIX", None):
        return
    if family in (socket.AF_INET, socket.AF_INET6):
        # Anything that is no (host, port, ...) is a mistake of the caller: the socket module says so.
        if isinstance(address, tuple) and address and not _is_local(address[0]):
            host = _plain(address[0])
            if not _is_allowed(host) and not any(host in _guard.addresses[h] for h in _guard.allowed()):
                _refuse("connection to", address)
        return
    # Bluetooth, vsock, raw packets: each of them can leave the machine, none is needed here.
    _refuse("connection to", address)


def _check_lookup(host: object) -> None:
    """Refuse a name lookup. A literal address needs none; no host means this machine."""
    if host is None or host in ("", b"") or _is_address(_text(host)) or _is_local(host) or _is_allowed(host):
        return
    _refuse("name lookup of", _text(host))


def _check_reverse_lookup(host: object) -> None:
    if not _is_local(host):
        _refuse("name lookup of", _text(host))


class _Guard:
    """The guard's state: how many `offline()` blocks are open, and what the outermost one replaced."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.hooked = False
        self.environment: dict[str, str | None] = {}
        self.flags: dict[str, bool] | None = None
        self.getaddrinfo = socket.getaddrinfo  # what the outermost one found there
        self.allows: list[frozenset[str]] = []  # of each open guard
        self.addresses: defaultdict[str, set[str]] = defaultdict(set)  # what allowed names were resolved to

    def allowed(self) -> frozenset[str]:
        """Hosts that every open guard lets through."""
        allows = list(self.allows)
        return frozenset.intersection(*allows) if allows else frozenset()


_guard = _Guard()


# Why an audit hook and not replaced functions: the hook sits below `socket.socket`, in the C module, so
# it also sees `_socket`, subclasses, references to functions that were taken before the guard began,
# asyncio, ssl and every HTTP library, and nothing in the process can take it off again. It can't be
# removed by us either: it is added once, on first use, and does nothing while no guard is open.
# The names are bound as defaults because module globals may be gone while the interpreter shuts down.
def _audit(
    event: str,
    args: tuple[Any, ...],
    guard: _Guard = _guard,
    check_peer: Callable[[int, object], None] = _check_peer,
    check_lookup: Callable[[object], None] = _check_lookup,
    check_reverse_lookup: Callable[[object], None] = _check_reverse_lookup,
) -> None:
    if not guard.depth or not event.startswith("socket."):
        return
    if event in ("socket.connect", "socket.sendto"):
        check_peer(args[0].family, args[1])
    elif event == "socket.sendmsg":
        if args[1] is not None:  # None: the socket is connected already
            check_peer(args[0].family, args[1])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        check_lookup(args[0])
    elif event == "socket.gethostbyaddr":
        check_reverse_lookup(args[0])
    elif event == "socket.getnameinfo":
        check_reverse_lookup(args[0][0])


# One thing the hook sees too late: `sock.connect((name, port))` with a name resolves it in C before the
# event is raised, so a DNS question would leave the machine. These methods check first; they are only on
# the class while a guard is open.
def _checked(name: str) -> Callable[..., Any]:
    def method(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
        position = 3 if name == "sendmsg" else len(args) - 1  # sendmsg(buffers, ancillary, flags, address)
        if _guard.depth and len(args) > max(position, 0) and args[position] is not None:
            _check_peer(self.family, args[position])
        return getattr(super(socket.socket, self), name)(*args, **kwargs)

    method.__name__ = name
    return method


_METHODS = {
    name: _checked(name) for name in ("connect", "connect_ex", "sendto", "sendmsg") if hasattr(socket.socket, name)
}


# Which addresses an allowed name has is known only after its lookup, which an audit hook doesn't see.
def _remembering_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
    found = _guard.getaddrinfo(host, *args, **kwargs)
    if _is_allowed(host):
        _guard.addresses[_plain(host)].update(_plain(entry[4][0]) for entry in found)
    return found


def _flag_from_environment(name: str) -> bool:
    """What huggingface_hub itself would have read, had it been imported outside the guard."""
    names = {
        "HF_HUB_OFFLINE": ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"),
        "HF_HUB_DISABLE_TELEMETRY": ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK"),
    }[name]
    return any(os.environ.get(n, "").upper() in {"1", "ON", "YES", "TRUE"} for n in names)


def _begin() -> None:
    if not _guard.hooked:
        sys.addaudithook(_audit)
        _guard.hooked = True
    for name, method in _METHODS.items():
        setattr(socket.socket, name, method)
    _guard.getaddrinfo = socket.getaddrinfo
    socket.getaddrinfo = _remembering_getaddrinfo
    _guard.environment = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    # huggingface_hub reads the variables once, when it is imported.
    constants = sys.modules.get(_HUB_CONSTANTS)
    _guard.flags = None if constants is None else {name: getattr(constants, name, False) for name in _HUB_FLAGS}
    if constants is not None:
        for name in _HUB_FLAGS:
            setattr(constants, name, True)


def _end() -> None:
    for name, method in _METHODS.items():
        if vars(socket.socket).get(name) is method:  # leave what somebody else put there meanwhile
            delattr(socket.socket, name)
    if socket.getaddrinfo is _remembering_getaddrinfo:
        socket.getaddrinfo = _guard.getaddrinfo
    _guard.addresses.clear()
    for name, value in _guard.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    constants = sys.modules.get(_HUB_CONSTANTS)
    if constants is not None:
        # Imported inside the guard, it took our variables for the user's.
        flags = _guard.flags or {name: _flag_from_environment(name) for name in _HUB_FLAGS}
        for name, flag in flags.items():
            setattr(constants, name, flag)


@contextmanager
def offline(allow: Iterable[str] = ()) -> Iterator[None]:
    """Refuse everything that would leave this machine until the block ends, in all threads.

    Args:
        allow: hosts that may be reached nevertheless, as names or addresses.

    Raises:
        OfflineError: inside the block, from whatever tried to connect, to send or to look up a name.
    """
    allows = frozenset(_plain(host) for host in allow)
    with _guard.lock:
        _guard.allows.append(allows)
        if _guard.depth == 0:
            _begin()
        _guard.depth += 1
    try:
        yield
    finally:
        with _guard.lock:
            _guard.depth -= 1
            _guard.allows.remove(allows)
            if _guard.depth == 0:
                _end()
