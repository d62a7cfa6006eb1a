"""Print what the 8B recipes need, computed from the model's shape and the recipe: `python scripts/memory_budget.py`.

Writes the table as Markdown with -o. Token counts come from the training files, counted with the
default base's tokenizer (the larger vocabularies of 8B models give fewer tokens); --count does it anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.budget import GIB, GPUS, Load, Shape, flops_per_token, hours, memory, read_shape
from training.common import TrainConfig, load_config
from vista_local.files import whole_file
from vista_local.terminal import user_errors

STAGES = ("verify", "categorise", "decompose")
CONFIGS = Path(__file__).resolve().parent.parent / "configs"

#: Counted on 2026-11-30 with the default base's tokenizer over the recipes' training files (`--count`):
#: tokens of an epoch, longest sequence, and for decompose the longest completion.
COUNTED: dict[str, tuple[int, int, int]] = {
    "verify": (1_256_156, 1716, 0),
    "categorise": (938_064, 1237, 0),
    "decompose": (642_383, 672, 310),
}


def count(stage: str, config: TrainConfig) -> tuple[int, int, int]:
    """Tokens of an epoch, longest sample and longest completion, with the default base's tokenizer."""
    from training import classify, decompose
    from training.common import open_base
    from vista_local.base import resolve_base

    encoder, _ = open_base(str(resolve_base(None)))
    if stage == "decompose":
        samples = decompose.build_training_samples(config, encoder)
        lengths = [decompose.sample_tokens(s, encoder) for s in samples]
        completions = [encoder.count(s["completion"][0]["content"]) + 2 for s in samples]
        return sum(lengths), max(lengths), max(completions)
    lengths = [len(s.sequence) for s in classify.build_training_samples(config, encoder)]
    return sum(lengths), max(lengths), 0


def load_of(config: TrainConfig, longest: int, completion: int) -> Load:
    """The largest batch of a recipe."""
    decompose = config.stage == "decompose"
    tokens = config.batch_size * longest if decompose else max(config.token_budget, longest)
    return Load(
        four_bit=config.quantization == "nf4",
        eight_bit_optimiser="8bit" in (config.optim or ""),
        checkpointing=config.gradient_checkpointing,
        rank=config.lora_r,
        tokens=tokens,
        sequence=longest,
        scored=config.batch_size * completion if decompose else 0,
    )


def arithmetic(shape: Shape, config: TrainConfig, counted: tuple[int, int, int], size: str) -> list[str]:
    """The lines of one recipe."""
    tokens, longest, completion = counted
    load, gpu = load_of(config, longest, completion), GPUS[size]
    parts = memory(shape, load)
    total = hours(shape, tokens * config.epochs, gpu, checkpointing=load.checkpointing)
    cells = [f"{v / GIB:.2f}" for v in parts.values()]
    operations = flops_per_token(shape, checkpointing=load.checkpointing)
    return [
        f"| {config.stage}, {size} | {load.tokens} | " + " | ".join(cells) + f" | {gpu.gib:g} |",
        f"{config.stage}, {size}: {tokens / 1e6:.2f} M tokens x {config.epochs:g} epochs x {operations / 1e9:.1f} "
        f"GFLOP / ({gpu.tflops:g} TFLOP/s x {gpu.share:.2f}, {gpu.name}) = {total:.1f} h",
    ]


def report(bases: list[str], counts: dict[str, tuple[int, int, int]]) -> str:
    """The whole table as Markdown."""
    lines = ["Memory in GiB at the largest batch; formulas in training/budget.py.", ""]
    for folder in bases:
        config = load_config(CONFIGS / folder / "verify-24gb.yaml")
        shape = read_shape(str(config.base))
        lines += [
            f"**{shape.name}**: {shape.parameters / 1e9:.2f} B weights, {shape.linear_parameters / 1e9:.2f} B in "
            f"linear maps; LoRA of rank {config.lora_r}: {shape.lora_parameters(config.lora_r) / 1e6:.1f} M",
            "",
        ]
        rows, sums = [], []
        for size in GPUS:
            for stage in STAGES:
                recipe = load_config(CONFIGS / folder / f"{stage}-{size}.yaml")
                row, line = arithmetic(shape, recipe, counts[stage], size)
                rows.append(row)
                sums.append(f"- {line}")
        names = list(memory(shape, Load(True, True, True, 1, 1, 1)))
        header = "| recipe | tokens | " + " | ".join(names) + " | of |"
        lines += [header, "|---" * (len(names) + 3) + "|", *rows, "", *sums, ""]
    return "\n".join(lines).rstrip() + "\n"


def main(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="also write it here")] = None,
    recount: Annotated[bool, typer.Option("--count", help="count tokens of the training files anew")] = False,
) -> None:
    """Print memory and hours of the 8B recipes."""
    with user_errors():
        bases = sorted(p.name for p in CONFIGS.iterdir() if (p / "model.yaml").is_file())
        counts: dict[str, Any] = dict(COUNTED)
        if recount:
            counts = {stage: count(stage, load_config(CONFIGS / bases[0] / f"{stage}.yaml")) for stage in STAGES}
            typer.echo(f"counted: {counts}", err=True)
        text = report(bases, counts)
        typer.echo(text)
        if output is not None:
            with whole_file(output) as stream:
                stream.write(text)


if __name__ == "__main__":
    typer.run(main)
