"""`python -m training.export STAGE`: calibrate a trained adapter and publish it with manifest and card.

Calibration fits one temperature and a bias per label on the recipe's dev files, with the teacher's
memory: p = softmax(log p / T + bias), least negative log-likelihood. Weights are stored in 16 bits.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from training.common import (
    TrainConfig,
    find_data,
    load_config,
    resolve_training_base,
    sample_limited,
)
from training.data import TeacherTurn, evidence_prompt, load_teacher_turns
from vista_local.adapters import AdapterManifest, Calibration, base_sha256, sha256_file, write_manifest
from vista_local.base import HUB_ID
from vista_local.chat import STAGE_LABELS, ChatEncoder
from vista_local.errors import InputError, VistaError
from vista_local.labels import UNVERIFIABLE, Label
from vista_local.prompts import PROMPT_VERSION
from vista_local.stages import ClassifyRequest, stage_system

CARD_DATA_NOTE = (
    "Labels are those of a frontier language model that read turn by turn under a labelling guide; "
    "the public part joins BEGIN's dev sets, FaithDial's data audit and FADE's human-verified file."
)


def fit_calibration(log_probs: Any, gold: Any, labels: tuple[str, ...]) -> Calibration:
    """Temperature and biases of least negative log-likelihood.

    Args:
        log_probs: tensor [claims, labels].
        gold: tensor [claims] of label numbers.
        labels: names in column order; the first label's bias is fixed at 0.
    """
    import torch

    log_temperature = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(len(labels) - 1, dtype=torch.float64, requires_grad=True)
    scores = log_probs.double()
    optimiser = torch.optim.LBFGS([log_temperature, bias], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Any:
        optimiser.zero_grad()
        shifted = scores / log_temperature.exp() + torch.cat([torch.zeros(1, dtype=torch.float64), bias])
        # A weak pull to zero keeps the bias of a label that dev hardly holds finite.
        loss = torch.nn.functional.cross_entropy(shifted, gold) + 1e-3 * bias.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    values = [0.0, *bias.detach().tolist()]
    return Calibration(
        round(float(log_temperature.detach().exp()), 4),
        {label: round(v, 4) for label, v in zip(labels, values, strict=True)},
    )


def dev_requests(
    turns: list[TeacherTurn], stage: str, encoder: ChatEncoder, label_words: dict[str, str]
) -> tuple[list[ClassifyRequest], list[int]]:
    """Requests over dev turns with the teacher's memory, and the gold label number of every branch."""
    order = STAGE_LABELS[stage]
    system = stage_system(stage, label_words)
    requests, gold = [], []
    for turn in turns:
        claims = [(c, label) for c, label in turn.claims if stage == "verify" or label is not Label.VERIFIED]
        if claims:
            requests.append(ClassifyRequest(evidence_prompt(turn, encoder, system), tuple(c for c, _ in claims)))
            gold += [order.index(label.value if label.value in order else UNVERIFIABLE) for _, label in claims]
    return requests, gold


def _longest_reference(config: TrainConfig, encoder: ChatEncoder) -> int:
    """Tokens of the longest reference that training showed, foreign sentences included; 0 for decompose."""
    if config.stage not in STAGE_LABELS:
        return 0
    from training.classify import build_training_samples

    recipes = [config, *(load_config(path) for path in config.unseen_by)]
    return max(s.reference_tokens for recipe in recipes for s in build_training_samples(recipe, encoder))


def _run_record(run_folder: Path) -> dict[str, Any]:
    """What `training.train` wrote of the run.

    Raises:
        InputError: its record is missing or cut off.
    """
    path = run_folder / "run.json"
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in ("recipe", "data_sha256", "hardware", "software") if key not in run]
    except (OSError, ValueError) as error:
        raise InputError(f"the run's record can't be read: {error}", str(path)) from error
    if missing:
        raise InputError(f"no {missing[0]!r} in the run's record; train again with this version", str(path))
    return dict(run)


def _save_half(source: Path, target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    tensors = {
        name: t.to(torch.float16).contiguous() for name, t in load_file(source / "adapter_model.safetensors").items()
    }
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = None  # a folder of the training machine means nothing elsewhere
    config["inference_mode"] = True
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _card_base(manifest: AdapterManifest) -> str:
    """Licence and base in the card's front matter: another base brings its own licence."""
    base = manifest.hyper_parameters.get("base")
    if base is None:
        return "license: apache-2.0\nbase_model: HuggingFaceTB/SmolLM2-135M-Instruct"
    named = base if HUB_ID.fullmatch(base) else manifest.base_name
    return f"license: other\nlicense_name: that-of-the-base-model\nbase_model: {named}"


def _run_rows(manifest: AdapterManifest) -> list[str]:
    """Rows of the card for every run that the weights learnt from, the last one first."""
    rows: list[str] = []
    run, hardware, number = manifest.training, manifest.hardware, 0
    while run:
        before = f" ({number} before)" if number else ""
        figures = {k: v for k, v in run.items() if not isinstance(v, dict)} | {"hardware": hardware}
        rows += [f"| {name}{before} | {value} |" for name, value in figures.items()]
        run, number = run.get("started_from", {}), number + 1
        hardware = run.get("hardware", "")
    return rows


def _card(manifest: AdapterManifest, metrics: dict[str, Any]) -> str:
    rows = "\n".join(f"| {k} | {v} |" for k, v in metrics.items())
    recipe = "\n".join(f"| {k} | {v} |" for k, v in manifest.hyper_parameters.items())
    run = "\n".join(_run_rows(manifest))
    return f"""---
library_name: peft
{_card_base(manifest)}
tags: [lora, factuality, hallucination-detection, vista-local]
---

# vista-local: {manifest.stage}

LoRA adapter of the {manifest.stage} stage on {manifest.base_name} (weights SHA-256 `{manifest.base_sha256}`).
It is of use with vista-local's prompts of version {manifest.prompt_version} only. {CARD_DATA_NOTE}

| dev (after calibration) | value |
|---|---|
{rows}

| training run | value |
|---|---|
{run}
| seed | {manifest.seed} |

| recipe | value |
|---|---|
{recipe}

Everything else (data hashes, label words, calibration, versions) is in `manifest.json`. Written by
`python -m training.export {manifest.stage}`.
"""


def export(
    config: TrainConfig, run_folder: Path, target: Path, dev_limit: int | None, threads: int | None = None
) -> AdapterManifest:
    """Calibrate `run_folder/adapter` and write adapter, manifest and card to `target`."""
    adapter = run_folder / "adapter"
    if not (adapter / "adapter_model.safetensors").is_file():
        raise VistaError(f"{adapter}: no trained adapter; run: python -m training.train {config.stage}")
    run = _run_record(run_folder)
    recipe = run.pop("recipe")
    base = resolve_training_base(config)
    target.mkdir(parents=True, exist_ok=True)
    _save_half(adapter, target)
    from transformers import AutoTokenizer

    encoder = ChatEncoder(AutoTokenizer.from_pretrained(base, local_files_only=True))
    manifest = AdapterManifest(
        stage=config.stage,
        base_name=Path(base).name,
        base_sha256=base_sha256(base),
        prompt_version=PROMPT_VERSION,
        label_words=encoder.label_words(config.stage) if config.stage in STAGE_LABELS else {},
        max_reference_tokens=_longest_reference(config, encoder),
        chunk_tokens=(config.score_chunk_tokens or config.chunk_tokens) if config.stage == "decompose" else 0,
        adapter_sha256=sha256_file(target / "adapter_model.safetensors"),
        data_sha256=run.pop("data_sha256"),
        hyper_parameters={k: v for k, v in recipe.items() if k not in ("stage", "seed")},
        seed=recipe["seed"],
        hardware=run.pop("hardware"),
        training=run,
        software=run.pop("software"),
    )
    write_manifest(target, manifest)
    turns, threads = _dev_turns(config, dev_limit), threads or config.threads
    if config.stage in STAGE_LABELS:
        manifest, metrics = _calibrate(manifest, base, target, encoder, turns, threads)
    else:
        metrics = _dev_agreement(base, target, turns, threads)
        manifest = replace(manifest, metrics=metrics)
        write_manifest(target, manifest)
    (target / "README.md").write_text(_card(manifest, metrics), encoding="utf-8")
    return manifest


def _calibrate(
    manifest: AdapterManifest, base: str, target: Path, encoder: ChatEncoder, turns: list[TeacherTurn], threads: int
) -> tuple[AdapterManifest, dict[str, Any]]:
    import torch

    from vista_local.backends.transformers_backend import TransformersBackend

    stage = manifest.stage
    requests, gold = dev_requests(turns, stage, encoder, manifest.label_words)
    backend = TransformersBackend(base, target.parent, threads=threads, stages=(stage,))
    answers = backend.classify(stage, requests)
    log_probs = torch.tensor([branch for request in answers for branch in request])
    target_labels = torch.tensor(gold)
    order = STAGE_LABELS[stage]
    calibration = fit_calibration(log_probs, target_labels, order)
    shifted = log_probs / calibration.temperature + torch.tensor([calibration.bias[label] for label in order])
    metrics: dict[str, Any] = {
        "turns": len(turns),
        "claims": len(gold),
        "accuracy before calibration": round(float((log_probs.argmax(-1) == target_labels).double().mean()), 4),
        "accuracy": round(float((shifted.argmax(-1) == target_labels).double().mean()), 4),
        "negative log-likelihood before": round(float(torch.nn.functional.cross_entropy(log_probs, target_labels)), 4),
        "negative log-likelihood": round(float(torch.nn.functional.cross_entropy(shifted, target_labels)), 4),
    }
    for number, label in enumerate(order):
        hit = int(((shifted.argmax(-1) == number) & (target_labels == number)).sum())
        predicted, actual = int((shifted.argmax(-1) == number).sum()), int((target_labels == number).sum())
        metrics[f"F1 {label}"] = round(2 * hit / (predicted + actual), 4) if predicted + actual else None
    manifest = replace(manifest, calibration=calibration, metrics=metrics)
    write_manifest(target, manifest)
    return manifest, metrics


def _dev_agreement(base: str, target: Path, turns: list[TeacherTurn], threads: int) -> dict[str, Any]:
    """How well decompose's claims over dev turns agree with the teacher's, with all guards of scoring."""
    from training.chunk_sizes import agreement
    from vista_local.backends.transformers_backend import TransformersBackend

    backend = TransformersBackend(base, target.parent, threads=threads, stages=("decompose",))
    found = agreement(backend, turns).as_dict()
    return {"turns": len(turns)} | {k: round(v, 4) if isinstance(v, float) else v for k, v in found.items()}


def _dev_turns(config: TrainConfig, limit: int | None) -> list[TeacherTurn]:
    turns = [t for name in config.dev for t in load_teacher_turns(find_data(config, name))]
    return sample_limited(turns, limit, random.Random(config.seed))


def main(
    stage: Annotated[str, typer.Argument(help="decompose, verify or categorise")],
    config: Annotated[Path | None, typer.Option(help="recipe; default: configs/default/STAGE.yaml")] = None,
    run: Annotated[Path | None, typer.Option(help="run folder; default: runs/STAGE")] = None,
    out: Annotated[Path, typer.Option(help="adapter set")] = Path("checkpoints/smollm2-135m"),
    dev_limit: Annotated[int, typer.Option(help="most dev turns for calibration and metrics (random, by seed)")] = 200,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: the recipe's")] = None,
) -> None:
    """Calibrate a trained adapter on the dev files and publish it under OUT/STAGE."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.time()
    try:
        recipe = load_config(config or Path("configs/default") / f"{stage}.yaml")
        manifest = export(recipe, run or Path("runs") / stage, out / stage, dev_limit, threads)
    except VistaError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    typer.echo(json.dumps({"calibration": asdict(manifest.calibration), "metrics": manifest.metrics}, indent=2))
    typer.echo(f"exported to {out / stage} in {time.time() - started:.0f} s")


if __name__ == "__main__":
    typer.run(main)
