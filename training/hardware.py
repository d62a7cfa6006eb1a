"""What a recipe asks of the machine: device, number format, 4-bit loading, and what to say when it isn't there.

Contract: everything is checked before weights are read, and each fault is one `VistaError` that names
what was found and what to do. Knows no stage and no data.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch

from vista_local.backends.device import native_dtype, pick_device
from vista_local.errors import MissingExtraError, VistaError

if TYPE_CHECKING:
    from training.common import TrainConfig

#: Number formats that a recipe may name.
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def place(config: TrainConfig) -> tuple[torch.device, torch.dtype]:
    """Device and number format of a recipe on this machine.

    Raises:
        VistaError: a 4-bit recipe without a GPU (unless `device: cpu`), a device that isn't there, several
            GPUs for one process, or a GPU with less memory than the recipe was made for.
        MissingExtraError: a 4-bit recipe without bitsandbytes.
    """
    if config.quantization and not torch.cuda.is_available() and config.device != "cpu":
        raise VistaError(
            f"the recipe loads the base in 4 bits ({config.quantization}) for a CUDA GPU, and no GPU is visible to "
            f"torch {torch.__version__}; to do it on the CPU all the same, hundreds of times slower, set: device: cpu"
        )
    if config.device and config.device.startswith("cuda") and not torch.cuda.is_available():
        raise VistaError(f"device {config.device!r}: no CUDA GPU is visible to torch {torch.__version__}")
    if config.quantization and importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtraError("bitsandbytes", "train")
    device = pick_device(config.device)
    if device.type == "cuda" and processes() == 1 and (number := torch.cuda.device_count()) > 1:
        # transformers' Trainer would put nn.DataParallel over all of them, whatever index the recipe names.
        raise VistaError(
            f"{number} GPUs are visible to one process; use all of them: accelerate launch --num_processes {number} "
            "-m training.train ..., or one: set CUDA_VISIBLE_DEVICES=0"
        )
    if device.type == "cuda" and config.min_gpu_gib is not None:
        check_memory(torch.cuda.get_device_properties(local_device(device)).total_memory, config)
    return device, DTYPES[config.dtype] if config.dtype else native_dtype(device)


def check_memory(total: int, config: TrainConfig) -> None:
    """Whether a GPU of `total` bytes is large enough for a recipe.

    Raises:
        VistaError: it isn't.
    """
    found = total / 2**30
    if config.min_gpu_gib is not None and found < config.min_gpu_gib:
        smaller = "the -24gb recipe (4 bits)" if config.quantization is None else "a smaller token_budget or batch_size"
        raise VistaError(
            f"this GPU has {found:.1f} GiB; the recipe was made for {config.min_gpu_gib:g} GiB (arithmetic: "
            f"scripts/memory_budget.py); use {smaller}, or lower min_gpu_gib to try it all the same"
        )


def local_device(device: torch.device | None) -> torch.device:
    """The device of this process: under `accelerate launch`, the GPU with its local rank."""
    device = device or pick_device()
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return device


def four_bits(dtype: torch.dtype) -> Any:
    """NF4 with double quantisation, computing in `dtype` (QLoRA, Dettmers et al. 2023, arXiv 2305.14314)."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def processes() -> int:
    """How many processes train together (`accelerate launch`); 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this process writes files and prints."""
    return int(os.environ.get("RANK", "0")) == 0


def trainer_options(config: TrainConfig, device: torch.device) -> dict[str, Any]:
    """Arguments that both trainers share; with default settings they change nothing."""
    options: dict[str, Any] = {
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "gradient_checkpointing": config.gradient_checkpointing,
        "use_cpu": device.type == "cpu",
    }
    if config.optim:
        options["optim"] = config.optim
    if config.gradient_checkpointing:
        options["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if processes() > 1:
        options["ddp_find_unused_parameters"] = False
    return options


def check_lengths(lengths: list[int], longest: int) -> None:
    """Whether there are samples, and every one fits the base: nothing is ever cut.

    Raises:
        VistaError: there are none, or one doesn't fit.
    """
    if not lengths:
        raise VistaError("the recipe leaves no turn to train on: see its train, limits, only_with and unseen_by")
    if max(lengths) > longest:
        raise VistaError(
            f"a training sample has {max(lengths)} tokens; the base takes {longest}. Nothing is cut: leave the turn "
            "out, dilute it less (dilute_sentences), or use a base with a longer context"
        )
