"""`python -m training.evaluate`: measure an adapter set on held-out files. Measuring only.

For every set: given claims (the file's own claims, in order, memory of predicted labels) and end to
end from raw turns; for human_dev and long_dev also with every reference hidden among foreign
sentences, and for long_dev decomposition of whole turns instead of chunks. Results go to one JSON
file with machine, date, commit, seed and the hashes of what was measured.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from training.data import Diluter, TeacherTurn, load_teacher_turns
from training.matching import Agreement, agree
from training.record import record
from training.remembered import RememberingBackend
from vista_local.backends.base import Backend
from vista_local.benchmarks.figures import (
    SEED,
    GoldTurn,
    Rule,
    claim_figures,
    interval,
    predictions,
    rounded,
    turn_figures,
)
from vista_local.benchmarks.mapping import any_faithful
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.evaluator import Evaluator, adapters_dir
from vista_local.files import check_writable, whole_file
from vista_local.labels import parse_label
from vista_local.readers import parse_conversation
from vista_local.schema import ConversationResult
from vista_local.scoring import Totals, score_conversation

RULES: tuple[Rule, ...] = ("strict", "safe")
SETS = {
    "human_dev": "test/human_dev.jsonl",
    "turns_dev": "test/turns_dev.jsonl",
    "written_dev": "written/dev.jsonl",
    "long_dev": "written/long_dev.jsonl",
}
#: Foreign sentences that a reference is hidden among, for the sets that are measured so.
DILUTION_SENTENCES = {"human_dev": 20, "long_dev": 100}
#: Sets whose turns are long enough for chunks to matter.
WHOLE_TURNS = ("long_dev",)
MODES = ("given_claims", "end_to_end", "diluted", "whole_turns")


#: What figures of two runs must have in common to stand in one file.
SAME_MODELS = ("base_sha256", "adapters", "calibration", "limits", "prompt_version", "dtype")


def load_records(path: Path) -> list[dict[str, Any]]:
    """The conversations of a file as they stand.

    Raises:
        InputError: the file can't be read.
    """
    try:
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"can't be read: {error}", str(path)) from error


def gold_turns(conversation: dict[str, Any]) -> dict[int, GoldTurn]:
    """Turns with claims, by their index."""
    gold = {}
    for index, turn in enumerate(conversation["turns"]):
        if "claims" in turn:
            original = turn.get("original_label")
            gold[index] = GoldTurn(
                tuple(c["claim"] for c in turn["claims"]),
                tuple(parse_label(c["label"]) for c in turn["claims"]),
                None if original is None else any_faithful(str(original)),
            )
    return gold


def diluted(records: Sequence[dict[str, Any]], path: Path, sentences: int) -> list[dict[str, Any]]:
    """The records with the reference of every scored turn hidden among other conversations' sentences."""
    diluter, rng = Diluter(load_teacher_turns(path)), random.Random(SEED)
    result = []
    for conversation in records:
        turns = []
        for index, turn in enumerate(conversation["turns"]):
            if "claims" in turn and turn.get("reference"):
                reference = turn["reference"]
                passages = (reference,) if isinstance(reference, str) else tuple(reference)
                teacher = TeacherTurn(conversation["id"], index, (), turn["text"], passages, (), ())
                turn = {**turn, "reference": list(diluter.dilute(teacher, sentences, rng))}
            turns.append(turn)
        result.append({**conversation, "turns": turns})
    return result


class WholeTurns:
    """A backend that decomposes every turn in one piece, however long it is."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.chunk_tokens = sys.maxsize

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def modes_of(name: str, wanted: Sequence[str]) -> list[str]:
    """The modes among `wanted` that a set is measured in.

    Raises:
        VistaError: a mode doesn't exist.
    """
    if unknown := [m for m in wanted if m not in MODES]:
        raise VistaError(f"unknown mode {unknown[0]!r}; accepted: {', '.join(MODES)}")
    left_out = {"diluted": name not in DILUTION_SENTENCES, "whole_turns": name not in WHOLE_TURNS}
    return [m for m in wanted if not left_out.get(m, False)]


def run(evaluator: Evaluator, records: Sequence[dict[str, Any]]) -> tuple[list[ConversationResult], float]:
    """Results in order, and the seconds it took."""
    started = time.monotonic()
    conversations = [parse_conversation(r, f"conversation {r['id']}") for r in records]
    results = list(evaluator.score(conversations))
    return results, time.monotonic() - started


def decomposition_figures(
    results: Sequence[ConversationResult], teacher: Sequence[dict[int, Sequence[str]]]
) -> dict[str, Any]:
    """Agreement of the claims found with the teacher's claims of the same turns."""
    parts: list[Agreement] = []
    for result, turns in zip(results, teacher, strict=True):
        by_index = {t.index: t for t in result.turns}
        total = Agreement()
        for index, claims in turns.items():
            total = total + agree([c.text for c in by_index[index].claims], claims)
        parts.append(total)

    def pooled(sample: Sequence[Agreement]) -> Agreement:
        total = Agreement()
        for part in sample:
            total = total + part
        return total

    figures: dict[str, Any] = {k: rounded(v) if isinstance(v, float) else v for k, v in pooled(parts).as_dict().items()}
    return figures | {"f1_95": interval(parts, lambda sample: pooled(sample).f1)}


def evaluate_set(
    backend: Any,
    name: str,
    path: Path,
    limit: int | None,
    modes: Sequence[str],
    token_budget_note: str,
    timed: bool = True,
) -> dict[str, Any]:
    """All figures of one file."""
    records = load_records(path)[:limit]
    gold = [gold_turns(r) for r in records]
    figures: dict[str, Any] = {
        "conversations": len(records),
        "turns": sum(map(len, gold)),
        "batches": token_budget_note,
    }
    given = Evaluator(backend, ScoreConfig(given_claims=True))
    for mode in modes:
        if mode in ("end_to_end", "whole_turns"):
            own = WholeTurns(backend) if mode == "whole_turns" else backend
            results, seconds = run(Evaluator(own, ScoreConfig()), records)
            figures[mode] = _end_to_end(results, records, gold)
        else:
            shown = diluted(records, path, DILUTION_SENTENCES[name]) if mode == "diluted" else records
            results, seconds = run(given, shown)
            figures[mode] = claim_figures([r.id for r in results], [predictions(r) for r in results], gold)
        predicted = [predictions(r) for r in results]
        figures[mode] |= {rule: turn_figures(predicted, gold, rule) for rule in RULES}
        if any(t.original is not None for turns in gold for t in turns.values()):
            figures[mode]["original"] = turn_figures(predicted, gold, "original")
        totals = Totals.pooled(score_conversation(r).totals for r in results)
        figures[mode] |= {
            "coverage": rounded(totals.coverage),
            "windows": totals.windows,
            "chunks": totals.chunks,
            "unsupported_extractions": totals.unsupported_extractions,
            # Answers that were on file took no time: no figure is better than a wrong one.
            "seconds": round(seconds, 1) if timed else None,
        }
        typer.echo(f"{name} {mode}: {json.dumps({k: v for k, v in figures[mode].items() if k != 'per_class'})}")
    return figures


def _end_to_end(
    results: Sequence[ConversationResult], records: Sequence[dict[str, Any]], gold: Sequence[dict[int, GoldTurn]]
) -> dict[str, Any]:
    teacher: list[dict[int, Sequence[str]]] = []
    for conversation, turns in zip(records, gold, strict=True):
        own = {i: conversation["turns"][i].get("teacher_claims") for i in turns}
        teacher.append({i: [c["claim"] for c in o] if o is not None else turns[i].claims or () for i, o in own.items()})
    return {"decomposition": decomposition_figures(results, teacher)}


def main(
    adapters: Annotated[str | None, typer.Option(help="adapter set: folder or name")] = None,
    data: Annotated[Path, typer.Option(help="folder with test/ and written/")] = Path("../shared/data"),
    out: Annotated[Path | None, typer.Option(help="default: evaluation.json in the adapter set")] = None,
    sets: Annotated[str, typer.Option(help="comma-separated: " + ", ".join(SETS))] = ",".join(SETS),
    modes: Annotated[str, typer.Option(help="comma-separated; a set leaves out what it isn't measured in")] = (
        ",".join(MODES)
    ),
    limit: Annotated[int | None, typer.Option(help="only the first conversations of each set")] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
    remember: Annotated[
        Path | None, typer.Option(help="file of answers: ask the model only what is not in it; times are left out")
    ] = None,
) -> None:
    """Measure an adapter set; figures of sets and modes that are not asked for are kept."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        if limit is not None and out is None:
            raise VistaError("--limit needs --out: figures of a part don't go beside those of whole sets")
        folder = adapters_dir(adapters)
        target = out or folder / "evaluation.json"
        check_writable(target)
        evaluator = Evaluator.from_pretrained(folder, threads=threads)
        backend = evaluator.backend if remember is None else RememberingBackend(evaluator.backend, remember)
        described = backend.describe()
        report: dict[str, Any] = {}
        if target.is_file():
            report = json.loads(target.read_text(encoding="utf-8"))
            if any(report.get("models", {}).get(key) != described[key] for key in SAME_MODELS):
                report = {}  # other weights or another calibration: their figures don't belong beside these
        now = record(SEED)
        report |= {"record": now, "adapters": described["adapters"], "models": described}
        for name in sets.split(","):
            if name not in SETS:
                raise VistaError(f"unknown set {name!r}; accepted: {', '.join(SETS)}")
            wanted = modes_of(name, modes.split(","))
            note = f"at most {described['token_budget']} padded tokens"
            figures = evaluate_set(backend, name, data / SETS[name], limit, wanted, note, remember is None)
            for mode in wanted:  # modes that were measured before keep their own date and commit
                figures[mode]["measured"] = {key: now[key] for key in ("date", "git_commit", "git_dirty")}
            report[name] = report.get(name, {}) | figures
            with whole_file(target) as stream:
                stream.write(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    except VistaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(f"written to {target}")


if __name__ == "__main__":
    typer.run(main)
