"""Where and in which number format models run."""

from __future__ import annotations

import torch


def pick_device(name: str | None = None) -> torch.device:
    """The device called `name`, or CUDA if there is one, otherwise the CPU."""
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def native_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the hardware multiplies it, fp32 elsewhere.

    Software bf16 is far slower than fp32 (80 times on an AVX2 processor), and the values of bf16
    weights are exact in fp32.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
