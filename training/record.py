"""Where a figure comes from: machine, date, commit, versions and seed, for every committed result."""

from __future__ import annotations

import datetime
import os
import subprocess
from typing import Any

from training.common import hardware, software


def git_commit() -> str:
    """Short hash of HEAD, "+changes" where tracked files differ from it, "unknown" outside a checkout."""
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+changes" if changed else head


def record(seed: int | None = None) -> dict[str, Any]:
    """The record; `seed` is `None` for runs that draw nothing at random."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": git_commit(),
        "machine": hardware(),
        "cores": os.cpu_count(),
        "software": software(),
        "seed": seed,
    }
