"""Scripted backends for tests, and the command line on one of them. Imports neither torch nor pytest.

Run as a program it is the `vista-local` command with a scripted backend in place of the models:

    python tests/scripted.py score IN -o OUT
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vista_local.backends.scripted import ScriptedBackend
from vista_local.evaluator import Evaluator
from vista_local.schema import Conversation, Role, Turn
from vista_local.stages import ClassifyRequest


class BatchSensitive(ScriptedBackend):
    """As with real arithmetic, an answer depends (in its last digits) on the batch it is part of.

    Args:
        seconds: how long each batch takes.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(lambda p: "- " + p.user.rpartition("\n")[2], lambda *_: [0.9, 0.1])
        self.seconds = seconds
        self.batches: list[list[str]] = []

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        time.sleep(self.seconds)
        batch = [b for r in requests for b in r.branches]
        if batch:
            self.batches.append(batch)
        shift = -0.01 * len(batch)
        return [[[v + shift for v in branch] for branch in r] for r in super().classify(stage, requests)]


def talks(number: int, start: int = 0) -> list[Conversation]:
    """Conversations of one to three assistant turns; every third has characters of several bytes."""
    return [
        Conversation(
            f"c{n}é" if n % 3 == 0 else f"c{n}",
            tuple(Turn(Role.ASSISTANT, f"talk {n} turn {t} — 巴黎", ()) for t in range(n % 3 + 1)),
        )
        for n in range(start, start + number)
    ]


def write_talks(path: Path, number: int) -> Path:
    """`talks` as a file that the command line reads."""
    with open(path, "w", encoding="utf-8") as stream:
        for c in talks(number):
            turns = [{"role": "assistant", "text": t.text, "reference": []} for t in c.turns]
            stream.write(json.dumps({"id": c.id, "turns": turns}, ensure_ascii=False) + "\n")
    return path


def without_models(make: Callable[[], ScriptedBackend]) -> Callable[..., Evaluator]:
    """A replacement for `Evaluator.from_pretrained` that loads nothing."""

    def from_pretrained(*_: Any, config: Any = None, **__: Any) -> Evaluator:
        return Evaluator(make(), config)

    return from_pretrained


def write_slowly(seconds: float) -> None:
    """Make every write of this process short and slow, so that a kill hits half a line."""
    pwrite = os.pwrite

    def short(descriptor: int, data: bytes, offset: int) -> int:
        time.sleep(seconds)
        return pwrite(descriptor, data[:61], offset)

    os.pwrite = short  # type: ignore[assignment]


def command(arguments: Sequence[str], log: str, seconds: float, write_seconds: float) -> None:
    """The command line in this process, for a child that is to be killed: never returns.

    Args:
        log: file that takes standard output and error.
        seconds, write_seconds: how long each batch and each short write take.
    """
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if write_seconds:
        write_slowly(write_seconds)
    Evaluator.from_pretrained = without_models(lambda: BatchSensitive(seconds))  # type: ignore[method-assign]
    from vista_local.cli import run

    sys.argv = ["vista-local", *arguments]
    run()


if __name__ == "__main__":
    Evaluator.from_pretrained = without_models(BatchSensitive)  # type: ignore[method-assign]
    from vista_local.cli import run

    run()
