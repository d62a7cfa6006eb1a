"""The README says what the committed results say, and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from vista_local.cli import app

ROOT = Path(__file__).parent.parent


def test_figures_are_those_of_the_committed_results() -> None:
    script = ROOT / "scripts" / "readme_tables.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_option_in_the_readme_exists() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    helps = {}
    for line in re.findall(r"^(?:.*&& )?(?:\.venv/bin/)?vista-local (.+)$", text, flags=re.MULTILINE):
        command = line.split()[0]
        if command not in helps:
            result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
            assert result.exit_code == 0, f"vista-local {command}: no such command"
            helps[command] = result.output
        for option in re.findall(r"(--[a-z-]+)", line.split("#")[0]):
            assert option in helps[command], f"vista-local {command} has no {option}"
    assert {"fetch", "score"} <= set(helps)


def test_the_commands_of_the_training_section_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m (training\.\w+)", text))
    assert {"training.train", "training.export", "training.evaluate", "training.join_public"} <= modules
    for module in modules:
        assert (ROOT / (module.replace(".", "/") + ".py")).is_file(), module
