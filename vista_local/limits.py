"""What keeps calls to an endpoint within bounds: requests and tokens a minute, and money.

Everything here is thread-safe, knows no endpoint and takes its clock from outside. `Stop` ends all
waiting at once, so that a run that must end doesn't sit out its pauses.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vista_local.errors import VistaError

#: Length of the window that requests and tokens are counted in, seconds.
WINDOW = 60.0


class BudgetError(VistaError):
    """The next call could pass `--max-cost`."""


class Stop:
    """Ends a run from any thread: the first error is kept, and raised wherever somebody waits or goes on."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def set(self, error: BaseException) -> None:
        """Ask for the end; later errors are consequences and are dropped."""
        with self._lock:
            if self._error is None:
                self._error = error
        self._event.set()

    def check(self) -> None:
        """Raise the error that ended the run, if one has."""
        if self._error is not None:
            raise self._error

    def sleep(self, seconds: float) -> None:
        """Wait, unless the run ends meanwhile."""
        self._event.wait(seconds)
        self.check()


@dataclass
class _Entry:
    at: float
    tokens: int


class RateLimiter:
    """At most so many requests and tokens in any 60 seconds, over all threads.

    A call asks with its estimated tokens; `settle` puts the true number in their place. A call that
    alone is larger than the cap waits for an empty window and then goes: refusing it would make it
    impossible for ever.

    Args:
        requests, tokens: caps a minute; `None` for none.
        clock, sleep: seconds, for tests.
    """

    def __init__(
        self,
        requests: int | None = None,
        tokens: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._requests, self._tokens = requests, tokens
        self._clock, self._sleep = clock, sleep
        self._window: deque[_Entry] = deque()
        self._lock = threading.Lock()
        self._not_before = 0.0

    def acquire(self, tokens: int) -> _Entry:
        """Wait until a request of `tokens` tokens is allowed, and count it."""
        while True:
            with self._lock:
                now = self._clock()
                wait = self._wait(now, tokens)
                if wait <= 0:
                    entry = _Entry(now, tokens)
                    if self._requests is not None or self._tokens is not None:
                        self._window.append(entry)
                    return entry
            self._sleep(wait)

    def _wait(self, now: float, tokens: int) -> float:
        while self._window and now - self._window[0].at >= WINDOW:
            self._window.popleft()
        wait = self._not_before - now
        if self._requests is not None and len(self._window) >= self._requests:
            wait = max(wait, self._window[-self._requests].at + WINDOW - now)
        if self._tokens is not None and self._window:
            used = sum(entry.tokens for entry in self._window)
            for entry in self._window:
                if used + tokens <= self._tokens:
                    break
                used -= entry.tokens
                wait = max(wait, entry.at + WINDOW - now)
        return wait

    def settle(self, entry: _Entry, tokens: int) -> None:
        """Correct a call's tokens once they are known."""
        with self._lock:
            entry.tokens = tokens

    def pause(self, seconds: float) -> None:
        """Let no request go for so long: the endpoint asked for it."""
        with self._lock:
            self._not_before = max(self._not_before, self._clock() + seconds)


class Budget:
    """Money of one run. A call is only made if its upper bound still fits; `None` for no limit.

    A call that was sent and brought no usage back (a time-out, half a response) counts with its
    upper bound: the endpoint may have charged it.

    Raises:
        VistaError: the limit is no amount of money.
    """

    def __init__(self, limit: float | None = None) -> None:
        # Nothing is larger than nan or infinity: such a limit would stop no call.
        if limit is not None and not 0.0 <= limit < math.inf:
            raise VistaError(f"--max-cost {limit:g}: a number from 0 up is expected; leave it out for no limit")
        self.limit = limit
        self.spent = 0.0
        self._reserved = 0.0
        self._holders = 0
        self._change = threading.Condition()

    @contextmanager
    def reserve(self, most: float) -> Iterator[Callable[[float], None]]:
        """Hold `most` for a call; the block reports what it cost, and otherwise `most` is spent.

        While other calls hold money, a call that doesn't fit waits for them: most cost less than
        their bound.

        Raises:
            BudgetError: the call could pass the limit.
        """
        with self._change:
            while self.limit is not None and self.spent + self._reserved + most > self.limit:
                if not self._holders:
                    raise BudgetError(
                        f"--max-cost {self.limit:g} could be passed: {self.spent:.6f} is spent, "
                        f"the next call may cost up to {most:.6f}"
                    )
                self._change.wait()
            self._reserved += most
            self._holders += 1
        cost = most

        def report(actual: float) -> None:
            nonlocal cost
            cost = actual

        try:
            yield report
        finally:
            with self._change:
                self._holders -= 1
                # Sums and differences of floats leave dust behind, which would pass for held money.
                self._reserved = self._reserved - most if self._holders else 0.0
                self.spent += cost
                self._change.notify_all()
