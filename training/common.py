"""What all three stages share: configuration, loading base and LoRA, devices, hashes, manifests."""

from __future__ import annotations

import dataclasses
import platform
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from vista_local.adapters import sha256_file
from vista_local.base import resolve_base
from vista_local.errors import InputError, VistaError


@dataclass
class TrainConfig:
    """One stage's recipe. Unknown keys in the YAML file are refused.

    Data
        train, dev: JSON Lines files of teacher conversations, relative to one of `data_roots` (the
            first that has the file).
        limits: most turns taken from a training file (random, by seed); absent means all.
        unseen_by: recipes of the same stage whose turns are left out: a second run that starts from
            the first one's adapter goes on with turns that are new to it.
        dilute_share, dilute_sentences: share of the turns whose reference is hidden among foreign
            sentences, and how many.
        drop_context: share of the turns that are shown no history.
    Model
        base: a folder or hub id; null means the default base.
        init_from: an adapter to start from (its run folder's `adapter`), or null.
    Optimisation
        token_budget: most padded tokens in a batch (verify, categorise).
        batch_size: samples in a batch (decompose).
        compile_layers: compile each decoder layer (pays on a CPU from some hundred steps on).
    """

    stage: str
    train: list[str]
    dev: list[str]
    data_roots: list[str] = field(default_factory=lambda: ["training/data", "../shared/data"])
    limits: dict[str, int] = field(default_factory=dict)
    unseen_by: list[str] = field(default_factory=list)
    dilute_share: float = 0.5
    dilute_sentences: tuple[int, int] = (5, 40)
    drop_context: float = 0.3
    base: str | None = None
    init_from: str | None = None
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    learning_rate: float = 6e-4
    warmup_ratio: float = 0.06
    weight_decay: float = 0.0
    epochs: float = 1.0
    max_steps: int = -1
    token_budget: int = 1600
    batch_size: int = 8
    chunk_tokens: int = 100
    seed: int = 17
    save_steps: int = 50
    compile_layers: bool = True
    threads: int = 2


def load_config(path: str | Path, overrides: dict[str, Any] | None = None) -> TrainConfig:
    """Read a stage's YAML recipe.

    Raises:
        InputError: the file is missing, no mapping, or holds an unknown or missing key.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise InputError(str(error), str(path)) from error
    if not isinstance(data, dict):
        raise InputError("a recipe is a mapping of settings", str(path))
    data.update(overrides or {})
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    if unknown := sorted(set(data) - known):
        raise InputError(f"unknown setting {unknown[0]!r}; known: {', '.join(sorted(known))}", str(path))
    try:
        config = TrainConfig(**data)
    except TypeError as error:
        raise InputError(str(error), str(path)) from error
    config.dilute_sentences = (int(config.dilute_sentences[0]), int(config.dilute_sentences[1]))
    return config


def find_data(config: TrainConfig, name: str) -> Path:
    """Path of a data file.

    Raises:
        VistaError: no data root has it.
    """
    for root in config.data_roots:
        if (Path(root) / name).is_file():
            return Path(root) / name
    raise VistaError(
        f"{name}: not found under {', '.join(config.data_roots)}; "
        "the public part comes from: python -m training.join_public"
    )


def resolve_training_base(config: TrainConfig) -> str:
    """Folder of the recipe's base; the default base if it names none.

    Raises:
        VistaError: it is not on this machine.
    """
    return str(resolve_base(config.base))


def load_base(base: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer, safetensors only, no remote code."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, use_safetensors=True, attn_implementation="sdpa")
    model.config.use_cache = False
    return model, tokenizer


def add_lora(model: Any, config: TrainConfig) -> PeftModel:
    """LoRA on all linear layers, weights in fp32; from `init_from` where the recipe names one."""
    if config.init_from:
        return PeftModel.from_pretrained(model, config.init_from, is_trainable=True)
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, lora)


def compile_decoder_layers(model: Any) -> None:
    """Compile each decoder layer: they share one graph, so that this takes two minutes, not sixty."""
    for layer in model.get_base_model().model.layers:
        layer.compile(dynamic=True)


class ProgressLog(TrainerCallback):
    """One line every few steps on standard output, for runs under nohup."""

    def __init__(self) -> None:
        self.started = time.time()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            print(
                f"step {state.global_step}/{state.max_steps} loss {float(logs['loss']):.4f} "
                f"lr {float(logs.get('learning_rate', 0)):.2e} minutes {(time.time() - self.started) / 60:.1f}",
                flush=True,
            )


def sample_limited(turns: list[Any], limit: int | None, rng: random.Random) -> list[Any]:
    """At most `limit` of `turns`, drawn without replacement; order kept."""
    if limit is None or limit >= len(turns):
        return turns
    chosen = sorted(rng.sample(range(len(turns)), limit))
    return [turns[i] for i in chosen]


def data_hashes(config: TrainConfig) -> dict[str, str]:
    """SHA-256 of every data file of a recipe."""
    return {name: sha256_file(find_data(config, name)) for name in [*config.train, *config.dev]}


def hardware() -> str:
    """Processor or GPU, and how many cores are used."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name}, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"


def software() -> dict[str, str]:
    """Versions that a training run depends on."""
    import importlib.metadata as metadata

    names = ("torch", "transformers", "peft", "trl", "accelerate")
    return {name: metadata.version(name) for name in names} | {"python": platform.python_version()}
