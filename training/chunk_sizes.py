"""`python -m training.chunk_sizes`: agreement of decompose with the teacher by size of the chunks, on dev turns.

A recipe's `score_chunk_tokens` is chosen by this, never by the test sets.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from training.common import find_data, load_config, resolve_training_base, sample_limited
from training.data import TeacherTurn, load_teacher_turns
from training.matching import Agreement, agree
from training.record import ROOT, record
from vista_local.config import ScoreConfig
from vista_local.files import whole_file
from vista_local.pipeline import Pipeline
from vista_local.schema import Conversation, Role, Turn
from vista_local.terminal import user_errors


def as_conversation(turn: TeacherTurn, number: int) -> Conversation:
    """A turn with what came before it; earlier replies have no reference and are left alone."""
    history = tuple(Turn(u.role, u.text) for u in turn.history)
    return Conversation(str(number), (*history, Turn(Role.ASSISTANT, turn.text, reference=())))


def agreement(backend: Any, turns: Sequence[TeacherTurn]) -> Agreement:
    """Counts over the turns, with all guards of scoring; labels are not asked for."""
    talks = [as_conversation(turn, number) for number, turn in enumerate(turns)]
    found = Pipeline(backend, ScoreConfig()).claims_of(talks)
    total = Agreement()
    for claims, turn in zip(found, turns, strict=True):
        total = total + agree(claims, [c for c, _ in turn.claims])
    return total


def main(
    sizes: Annotated[str, typer.Option(help="comma-separated sizes in tokens")] = "22,40,100",
    turns: Annotated[int, typer.Option(help="dev turns (random, by seed)")] = 30,
    config: Annotated[Path, typer.Option(help="recipe of decompose")] = Path("configs/default/decompose.yaml"),
    adapters: Annotated[Path, typer.Option(help="adapter set")] = Path("checkpoints/smollm2-135m"),
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 2,
    out: Annotated[Path, typer.Option(help="JSON file")] = ROOT / "scripts" / "results" / "chunk_sizes.json",
) -> None:
    """Measure every size on the same turns."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from vista_local.backends.transformers_backend import TransformersBackend

    with user_errors():
        recipe = load_config(config)
        every = [t for name in recipe.dev for t in load_teacher_turns(find_data(recipe, name))]
        chosen = sample_limited(every, turns, random.Random(recipe.seed))
        backend = TransformersBackend(resolve_training_base(recipe), adapters, threads=threads, stages=("decompose",))
        figures = {}
        for size in map(int, sizes.split(",")):
            manifest = backend.manifests["decompose"]
            backend.manifests["decompose"] = replace(manifest, chunk_tokens=size)
            figures[str(size)] = agreement(backend, chosen).as_dict()
            typer.echo(f"{size}: {json.dumps(figures[str(size)])}")
        report = {"record": record(recipe.seed), "turns": len(chosen), "by_chunk_tokens": figures}
        out.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(out) as stream:
            stream.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
