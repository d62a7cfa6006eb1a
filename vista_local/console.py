"""What a run shows on a terminal: a progress bar and a table. Nothing here computes a score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from vista_local.scoring import Summary


class RunProgress:
    """Conversations done, turns, claims a second and time left; plain lines where there is no terminal."""

    def __init__(self, console: Console, total: int | None, done: int) -> None:
        self._progress = Progress(
            TextColumn("conversations: {task.completed}" + ("/{task.total}" if total else "")),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[turns]} turns, {task.fields[rate]} claims/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("score", total=total, completed=done, turns=0, rate="-")
        self._turns = self._claims = 0

    def advance(self, turns: int, claims: int) -> None:
        """Count finished turns and claims."""
        self._turns += turns
        self._claims += claims
        elapsed = self._progress.tasks[self._task].elapsed or 0.0
        rate = f"{self._claims / elapsed:.1f}" if elapsed else "-"
        self._progress.update(self._task, turns=self._turns, rate=rate)

    def conversations(self, number: int) -> None:
        """Count finished conversations."""
        self._progress.advance(self._task, number)

    def __enter__(self) -> RunProgress:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()


def percent(value: float | None) -> str:
    """A ratio as a percentage with two decimals; a dash where there is none."""
    return "-" if value is None else f"{100 * value:.2f} %"


def measured_accuracy(adapters: Path, models: dict[str, Any]) -> str:
    """The adapter set's own measured claim accuracy, or why there is none for exactly these models.

    Args:
        models: the backend's description of itself.
    """
    path = adapters / "evaluation.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if any(data["models"].get(key) != models[key] for key in ("base_sha256", "adapters", "calibration", "limits")):
            return "not measured for these weights"
        figure = data["human_dev"]["given_claims"]
        return (
            f"claim accuracy {percent(figure['claim_accuracy'])}, macro-F1 {percent(figure['macro_f1'])} on human_dev"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return "not measured"


def summary_table(summary: Summary, evaluator: Any, seconds: float, kept: int) -> Table:
    """The table at the end of a run."""
    totals = summary.totals
    table = Table(show_header=False, title="VISTA score " + percent(totals.vista_score), title_justify="left")
    table.add_row("conversations", f"{summary.conversations}" + (f" ({kept} from an earlier run)" if kept else ""))
    if summary.failed:
        table.add_row("failed conversations", f"{summary.failed}", style="red")
    table.add_row(
        "turns",
        f"{totals.scored_turns} scored, {totals.unreferenced_turns} unreferenced, {totals.unscored_turns} unscored",
    )
    table.add_row("claims", f"{totals.claims}, coverage {percent(totals.coverage)}")
    for label, number in totals.labels.items():
        table.add_row(f"  {label.letter}  {label.value}", f"{number}")
    table.add_row("turns fully verified (strict)", percent(totals.strict_rate))
    table.add_row("turns safe", percent(totals.safe_rate))
    table.add_row("unsupported extractions", f"{totals.unsupported_extractions} (kept apart, not scored)")
    table.add_row("windows, chunks", f"{totals.windows}, {totals.chunks}")
    table.add_row("near-ties labelled again", f"{totals.recomputed}")
    if totals.omitted_memory:
        table.add_row("store entries left out", f"{totals.omitted_memory} (memory.budget_tokens)")
    backend = evaluator.backend
    table.add_row("model", str(backend.describe().get("base", "-")))
    folder = getattr(backend, "adapters_folder", None)
    if folder is not None:
        table.add_row("  measured", measured_accuracy(folder, backend.describe()))
    table.add_row("time", f"{seconds:.1f} s")
    if totals.mostly_unreferenced:
        table.caption = (
            "Over half of the assistant turns have no reference and were not scored. "
            "See --unreferenced (skip, trust, verify)."
        )
    return table
