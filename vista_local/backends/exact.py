"""A model's weights in fp32, one module at a time: exact arithmetic without a second copy of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_SHORT = (torch.bfloat16, torch.float16)


@contextmanager
def in_fp32(model: nn.Module) -> Iterator[None]:
    """Inside, `model` computes in fp32 whatever its number format; its weights stay as they are.

    Each module's own weights are widened when its forward begins and put back when it ends, so that
    the extra memory is that of the largest module (a fp32 copy of an 8B model would take 32 GB).
    Embedding tables are not widened: looking a row up is exact, its result is widened. A model in
    fp32 is left alone. Use it under `torch.no_grad()`, not `inference_mode`, whose tensors can't be
    swapped in.
    """
    narrow: dict[nn.Parameter, torch.Tensor] = {}
    handles: list[Any] = []

    def widen(module: nn.Module, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in _SHORT:
                narrow[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def put_back(module: nn.Module, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter in narrow:
                parameter.data = narrow.pop(parameter)

    def widen_output(module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
        return output.float()

    try:
        for module in model.modules():
            if not any(p.dtype in _SHORT for p in module.parameters(recurse=False)):
                continue
            if isinstance(module, nn.Embedding):
                handles.append(module.register_forward_hook(widen_output))
            else:
                handles.append(module.register_forward_pre_hook(widen))
                handles.append(module.register_forward_hook(put_back, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter, data in narrow.items():
            parameter.data = data
