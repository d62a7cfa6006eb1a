"""What all three stages share: configuration, loading base and LoRA, devices, hashes, manifests."""

from __future__ import annotations

import dataclasses
import json
import platform
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from pydantic import Field, TypeAdapter, ValidationError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from training.hardware import DTYPES, four_bits, is_first_process, local_device
from vista_local.adapters import STAGES, refuse_remote_code, sha256_file
from vista_local.base import resolve_base
from vista_local.chat import ChatEncoder
from vista_local.config import read_settings
from vista_local.errors import InputError, VistaError, first_line
from vista_local.formats import show
from vista_local.labels import parse_label

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass
class TrainConfig:
    """One stage's recipe. `load_config` refuses unknown keys and values of other types; a constructor checks nothing.

    Data
        train, dev: JSON Lines files of teacher conversations, relative to one of `data_roots` (the
            first that has the file).
        limits: most turns taken from a training file (random, by seed); absent means all.
        only_with: labels by training file: of that file, only turns with a claim of one of them are taken.
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
        chunk_tokens: longest turn that is one sample of decompose.
        score_chunk_tokens: longest turn that is decomposed whole when scoring; null means chunk_tokens.
            A small base lists more of what a turn says when it reads a sentence or two at a time
            (training.chunk_sizes measures it on the dev files).
        gradient_accumulation_steps: batches whose gradients are added up for one step.
        optim: transformers' name of the optimiser, such as paged_adamw_8bit; null means AdamW.
        compile_layers: compile each decoder layer (pays on a CPU from some hundred steps on).
    Hardware
        device: torch device; null means CUDA if present, otherwise the CPU. A 4-bit recipe runs on a
            CPU only if this says so.
        dtype: bf16 or fp32; null means bf16 where the hardware multiplies it, fp32 elsewhere.
        quantization: nf4 loads the base in 4 bits with double quantisation (QLoRA, arXiv 2305.14314).
        gradient_checkpointing: keep layer inputs only and compute the rest again (less memory, 1.5 times the work).
        min_gpu_gib: least memory of a GPU that the recipe was made for, in GiB; smaller ones are refused.
    """

    stage: str
    train: list[str]
    dev: list[str]
    data_roots: list[str] = field(default_factory=lambda: ["training/data", "../shared/data"])
    limits: dict[str, Annotated[int, Field(ge=0)]] = field(default_factory=dict)
    only_with: dict[str, list[str]] = field(default_factory=dict)
    unseen_by: list[str] = field(default_factory=list)
    dilute_share: Share = 0.5
    dilute_sentences: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] = (5, 40)
    drop_context: Share = 0.3
    base: str | None = None
    init_from: str | None = None
    lora_r: Count = 16
    lora_alpha: int = 32
    lora_dropout: Share = 0.0
    learning_rate: Amount = 6e-4
    warmup_ratio: Share = 0.06
    weight_decay: Amount = 0.0
    epochs: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    max_steps: int = -1
    token_budget: Count = 1600
    batch_size: Count = 8
    chunk_tokens: Count = 100
    score_chunk_tokens: Count | None = None
    seed: int = 17
    save_steps: Count = 50
    gradient_accumulation_steps: Count = 1
    optim: str | None = None
    compile_layers: bool = True
    threads: Count = 2
    device: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    gradient_checkpointing: bool = False
    min_gpu_gib: float | None = None


#: Numbers may be strings: YAML reads 2e-4, without a dot, as one.
_RECIPE = TypeAdapter(TrainConfig)


def load_config(path: str | Path, overrides: dict[str, Any] | None = None) -> TrainConfig:
    """Read a stage's YAML recipe.

    `extends` names recipes, relative to the file, whose settings it takes over; later ones win, and
    its own settings win over all of them.

    Raises:
        InputError: the file can't be read, is no mapping, or holds an unknown or missing key or a value that
            can't be; names file, key and what was found.
    """
    data = _read_recipe(Path(path))
    data.update(overrides or {})
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    if unknown := [key for key in data if key not in known]:
        raise InputError(f"unknown setting {unknown[0]!r}; known: {', '.join(sorted(known))}", str(path))
    try:
        config = _RECIPE.validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "missing":
            raise InputError(f"setting {key!r} is missing", str(path)) from error
        raise InputError(f"setting {key!r}: {first['msg']}, found {_shown(first['input'])}", str(path)) from error
    for name, labels in config.only_with.items():
        try:
            config.only_with[name] = [parse_label(label).value for label in labels]
        except ValueError as error:
            raise InputError(f"setting 'only_with', {name!r}: {error}", str(path)) from error
    least, most = config.dilute_sentences
    if least > most:
        raise InputError(f"setting 'dilute_sentences': least and most are expected, found {[least, most]}", str(path))
    for name, accepted in (("stage", STAGES), ("dtype", tuple(DTYPES)), ("quantization", ("nf4",))):
        if getattr(config, name) not in (None, *accepted):
            raise InputError(f"setting {name!r}: {getattr(config, name)!r}; accepted: {', '.join(accepted)}", str(path))
    return config


def _shown(value: object) -> str:
    """A value for a message; YAML knows dates and other values that JSON doesn't."""
    return show(value) if isinstance(value, str | list | dict) else repr(value)[:60]


def _read_recipe(path: Path, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path in within:
        raise InputError(f"extends itself by way of {within[-1]}", str(path))
    data = read_settings(path)
    extended = data.pop("extends", [])
    parents = [extended] if isinstance(extended, str) else extended
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise InputError(f"setting 'extends': recipes' file names are expected, found {_shown(extended)}", str(path))
    merged: dict[str, Any] = {}
    for parent in parents:
        merged.update(_read_recipe((path.parent / parent).resolve(), (*within, path)))
    return merged | data


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
        VistaError: it is not on this machine, or its configuration names code of its own.
    """
    folder = resolve_base(config.base)
    refuse_remote_code(folder)
    return str(folder)


def check_start(config: TrainConfig, recipes: Path) -> None:
    """Whether the adapter is there that a recipe starts from.

    Args:
        recipes: folder of the recipe; the earlier run's recipe is beside it, under the run's name.

    Raises:
        VistaError: it isn't (the message names the command that makes it), or it names code of its own.
    """
    if config.init_from is None:
        return
    start = Path(config.init_from)
    missing = [n for n in ("adapter_config.json", "adapter_model.safetensors") if not (start / n).is_file()]
    if missing:
        run = start.parent
        stage = next((s for s in STAGES if run.name == s or run.name.startswith(f"{s}-")), "STAGE")
        recipe = recipes / f"{run.name}.yaml"
        raise VistaError(
            f"init_from {config.init_from}: no {missing[0]} there: the recipe goes on from a finished run; make that "
            f"first: python -m training.train {stage} --config {recipe if recipe.is_file() else 'RECIPE'} --out {run}"
        )
    refuse_remote_code(start)


def out_of_memory(config: TrainConfig, error: torch.OutOfMemoryError) -> VistaError:
    """What to do when a GPU's memory did not suffice for a recipe."""
    size = "batch_size" if config.stage == "decompose" else "token_budget"
    checkpointing = "" if config.gradient_checkpointing else ", or set gradient_checkpointing: true"
    return VistaError(
        f"the GPU's memory ran out ({first_line(error)}): lower {size} ({getattr(config, size)}) in the recipe and "
        f"raise gradient_accumulation_steps ({config.gradient_accumulation_steps}), so that a step learns from as "
        f"much{checkpointing}; running the command again resumes from the last checkpoint"
    )


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn what libraries raise over files that they can't use into one sentence about `what`.

    Raises:
        VistaError: in the place of their errors.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # says nothing about the files
    except Exception as error:  # tokenizers raises plain ones, huggingface_hub and safetensors their own
        raise VistaError(f"{what} can't be read: {first_line(error)}") from error


def open_base(base: str) -> tuple[ChatEncoder, int]:
    """The encoder of a base, and how many tokens it takes: what samples need, without its weights.

    Raises:
        VistaError: a file of the base is damaged, its configuration doesn't say how many tokens it takes, or
            it has no chat template that can be used.
    """
    with reading(f"{base}: the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(base)
    with reading(f"{base}: how many tokens it takes"):
        longest = int(AutoConfig.from_pretrained(base).max_position_embeddings)
    return ChatEncoder(tokenizer), longest


def load_base(
    base: str, dtype: torch.dtype, config: TrainConfig | None = None, device: torch.device | None = None
) -> tuple[Any, Any]:
    """Model and tokenizer, safetensors only, no remote code; in 4 bits where the recipe says so.

    Raises:
        VistaError: a file of the base is damaged.
    """
    options: dict[str, Any] = {}
    if config is not None and config.quantization:
        options = {"quantization_config": four_bits(dtype), "device_map": {"": local_device(device)}}
    with reading(f"{base}: the base model"):
        tokenizer = AutoTokenizer.from_pretrained(base)
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, use_safetensors=True, attn_implementation="sdpa", **options
        )
    model.config.use_cache = False
    return model, tokenizer


def add_lora(model: Any, config: TrainConfig) -> PeftModel:
    """LoRA on all linear layers, weights in fp32; from `init_from` where the recipe names one.

    Raises:
        VistaError: that adapter is damaged, or of another base.
    """
    if config.init_from:
        with reading(f"init_from {config.init_from}: an adapter for this base"):
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
        if logs and "loss" in logs and is_first_process():
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


def run_record(config: TrainConfig, run: dict[str, Any]) -> dict[str, Any]:
    """What a finished run was, as JSON: figures, recipe, data, machine, and the run that it started from.

    Args:
        run: steps, tokens, minutes and loss, as training returns them.
    """
    record = run | {
        "recipe": {k: v for k, v in dataclasses.asdict(config).items() if k != "data_roots"},
        "data_sha256": data_hashes(config),
        "hardware": hardware(),
        "software": software(),
    }
    # The weights learnt from both runs, so the earlier one's record, with what it started from, comes along.
    earlier = Path(config.init_from).parent / "run.json" if config.init_from else None
    if earlier is not None and earlier.is_file():
        record["started_from"] = json.loads(earlier.read_text(encoding="utf-8"))
    return record


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
