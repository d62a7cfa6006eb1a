"""Where and in which number format models run."""

from __future__ import annotations

import torch

from vista_local.errors import VistaError


def pick_device(name: str | None = None) -> torch.device:
    """The device called `name`, or CUDA if there is one, otherwise the CPU.

    Raises:
        VistaError: torch knows no such device, or this machine has none.
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError as error:
        raise VistaError(f"device {name!r}: torch knows no such device; accepted: cpu, cuda, cuda:0, mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise VistaError(f"device {name!r}: this machine has no CUDA device, or this torch is built without CUDA")
    return device


def native_dtype(device: torch.device) -> torch.dtype:
    """bf16 where the hardware multiplies it, fp32 elsewhere.

    Software bf16 is far slower than fp32 (80 times on an AVX2 processor), and the values of bf16
    weights are exact in fp32.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.cpu._is_avx512_bf16_supported() else torch.float32
