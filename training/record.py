"""What every committed figure carries with it: machine, date, commit, versions, seed."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

#: Packages whose version can change a figure.
PACKAGES = ("vista-local", "torch", "transformers", "peft", "trl", "tokenizers", "safetensors", "numpy")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None  # not POSIX


def _usable_cores() -> int:
    """Cores that this process may run on, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def record(seed: int | None = None) -> dict[str, Any]:
    """The circumstances of a measurement, as JSON.

    Args:
        seed: the run's random seed; None where nothing is drawn (greedy decoding, closed label sets).
    """
    # Tracked files only: the result file that is about to be written must not make its own record dirty.
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "machine": {
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "usable_cores": _usable_cores(),
            "memory_gib": _memory_gib(),
            "system": f"{platform.system()} {platform.machine()}",
            # A busy machine explains a slow figure.
            "load_average": [round(v, 2) for v in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        },
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": _git("rev-parse", "--verify", "--quiet", "HEAD"),
        "git_dirty": None if changed is None else bool(changed),
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
        "seed": seed,
    }
