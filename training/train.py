"""`python -m training.train STAGE`: train one adapter from its recipe; run again to resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from training.common import check_start, load_config, out_of_memory
from vista_local.errors import VistaError


def main(
    stage: Annotated[str, typer.Argument(help="decompose, verify or categorise")],
    config: Annotated[Path | None, typer.Option(help="recipe; default: configs/default/STAGE.yaml")] = None,
    out: Annotated[Path | None, typer.Option(help="run folder; default: runs/STAGE")] = None,
    max_steps: Annotated[int | None, typer.Option(help="stop after so many optimiser steps")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: the recipe's")] = None,
) -> None:
    """Train one adapter. The adapter lands in OUT/adapter, what the run was in OUT/run.json."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from torch import OutOfMemoryError

    from training import classify, decompose
    from training.common import run_record
    from training.hardware import is_first_process

    try:
        given = {"max_steps": max_steps, "threads": threads}
        overrides = {name: value for name, value in given.items() if value is not None}
        path = config or Path("configs/default") / f"{stage}.yaml"
        recipe = load_config(path, overrides)
        if recipe.stage != stage:
            raise VistaError(f"the recipe is for stage {recipe.stage!r}, not {stage!r}")
        check_start(recipe, path.parent)
        folder = out or Path("runs") / stage
        folder.mkdir(parents=True, exist_ok=True)
        try:
            run = (decompose if stage == "decompose" else classify).train(recipe, folder)
        except OutOfMemoryError as error:
            raise out_of_memory(recipe, error) from error
    except VistaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    if is_first_process():
        (folder / "run.json").write_text(json.dumps(run_record(recipe, run), indent=2) + "\n", encoding="utf-8")
        typer.echo(json.dumps(run))


if __name__ == "__main__":
    typer.run(main)
