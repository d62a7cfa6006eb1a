"""Memory and hours of a training run on paper: arithmetic on a model's shape, no model and no torch.

Every term has its formula beside it. What is estimated rather than counted (the share of a GPU's peak
that training reaches, the memory that CUDA and fragmentation take) is a named constant, so that a
measured run can replace it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vista_local.errors import InputError

GIB = 2**30

#: Bytes of a 4-bit weight: half a byte, an 8-bit scale for each 64 weights, and a 32-bit scale for each
#: 256 of those scales (double quantisation; QLoRA, arXiv 2305.14314, section 3).
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)

#: Assumed: CUDA context, cuBLAS workspaces, and fragmentation of the allocator.
CONTEXT_BYTES = 1.5 * GIB
FRAGMENTATION = 0.10


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder with grouped queries and a gated MLP (Llama, Qwen, SmolLM)."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    query_key_norms: bool = False

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(in, out) of a layer's seven linear maps: q, k, v, o, gate, up, down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [
            (self.hidden, q), (self.hidden, kv), (self.hidden, kv), (q, self.hidden),
            (self.hidden, self.intermediate), (self.hidden, self.intermediate), (self.intermediate, self.hidden),
        ]  # fmt: skip

    @property
    def linear_parameters(self) -> int:
        """Weights of all layers' linear maps: what is stored in 4 bits, and what a token is multiplied with."""
        return self.layers * sum(a * b for a, b in self.linears)

    @property
    def embedding_parameters(self) -> int:
        """Input table and, unless tied, output matrix."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def norm_parameters(self) -> int:
        """Two norms a layer, a last one, and where there are some those of queries and keys."""
        return self.layers * (2 * self.hidden + 2 * self.head_dim * self.query_key_norms) + self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.linear_parameters + self.embedding_parameters + self.norm_parameters

    def lora_parameters(self, rank: int) -> int:
        """Adapters on all linear maps: rank * (in + out) each."""
        return self.layers * sum(rank * (a + b) for a, b in self.linears)


#: Shapes of the bases that come with recipes, as their config.json files give them.
SHAPES: dict[str, Shape] = {
    "Qwen/Qwen3-8B": Shape("Qwen/Qwen3-8B", 4096, 36, 32, 8, 128, 12288, 151936, False, True),
    "meta-llama/Llama-3.1-8B-Instruct": Shape(
        "meta-llama/Llama-3.1-8B-Instruct", 4096, 32, 32, 8, 128, 14336, 128256, False
    ),
}


def shape_of(name: str, config: Mapping[str, Any]) -> Shape:
    """The shape that a model's config.json describes.

    Raises:
        InputError: a size is missing.
    """
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Shape(
            name,
            hidden,
            int(config["num_hidden_layers"]),
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or hidden // heads),
            int(config["intermediate_size"]),
            int(config["vocab_size"]),
            bool(config.get("tie_word_embeddings", False)),
            str(config.get("model_type", "")).startswith("qwen3"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"no decoder's configuration: {error!r}", name) from error


def read_shape(base: str) -> Shape:
    """The shape of a base: a folder with config.json, or one of `SHAPES`.

    Raises:
        InputError: it is neither.
    """
    path = Path(base) / "config.json"
    if path.is_file():
        return shape_of(Path(base).name, json.loads(path.read_text(encoding="utf-8")))
    if base in SHAPES:
        return SHAPES[base]
    raise InputError(f"no folder with a config.json, and none of: {', '.join(SHAPES)}", base)


@dataclass(frozen=True)
class Load:
    """How a run uses the model: number format, optimiser and the largest batch.

    Args:
        tokens: padded tokens of the largest batch.
        sequence: tokens of its longest sequence.
        scored: positions whose whole vocabulary is scored (decompose's completions; 0 for label words).
    """

    four_bit: bool
    eight_bit_optimiser: bool
    checkpointing: bool
    rank: int
    tokens: int
    sequence: int
    scored: int = 0


def layer_bytes_per_token(shape: Shape, rank: int) -> int:
    """Activations that one layer keeps for its backward pass, bytes a token.

    In bf16 (2 bytes): inputs of both norms and of the MLP's and attention's projections (4 h), queries, keys,
    values and the attention's output (2 q + 2 kv), gate, up, the activated gate and their product (4 i). In fp32,
    for LoRA's fp32 weights: a widened input of each of the seven maps (5 h + q + i: q, k, v, gate and up
    take h each), and its image of `rank` numbers.
    """
    h, i = shape.hidden, shape.intermediate
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return 2 * (4 * h + 2 * q + 2 * kv + 4 * i) + 4 * (5 * h + q + i + 7 * rank)


def memory(shape: Shape, load: Load) -> dict[str, float]:
    """Bytes of each part of a training run's peak, and their sum under "total".

    - weights: linear maps in 4 bits or 2 bytes, everything else in 2 bytes
    - adapters: weights (4 bytes) and gradients (4 bytes)
    - optimiser: two moments, of 4 bytes or 1 byte each (the 8-bit one has scales of 1/256 of 4 bytes)
    - activations: with checkpointing the input of every layer (2 h bytes a token) and one layer in full,
      without it every layer in full
    - attention mask: rows * sequence^2 * 2 bytes, with rows = tokens / sequence
    - dequantised: the largest linear map in bf16, which 4-bit products make on the way
    - logits: 2 + 4 + 4 bytes (bf16, fp32, gradient) for each scored position and word
    """
    lora = shape.lora_parameters(load.rank)
    rest = 2.0 * (shape.embedding_parameters + shape.norm_parameters)
    per_layer = layer_bytes_per_token(shape, load.rank)
    kept = 2 * shape.hidden * shape.layers + per_layer if load.checkpointing else per_layer * shape.layers
    parts = {
        "weights": shape.linear_parameters * (NF4_BYTES if load.four_bit else 2.0) + rest,
        "adapters": 8.0 * lora,
        "optimiser": lora * (2 * (1 + 4 / 256) if load.eight_bit_optimiser else 8.0),
        "activations": float(kept * load.tokens),
        "attention mask": 2.0 * load.tokens * load.sequence,
        "dequantised": 2.0 * max(a * b for a, b in shape.linears) if load.four_bit else 0.0,
        "logits": 10.0 * load.scored * shape.vocabulary,
    }
    counted = sum(parts.values())
    parts["CUDA and fragmentation"] = CONTEXT_BYTES + FRAGMENTATION * counted
    return parts | {"total": counted + parts["CUDA and fragmentation"]}


def flops_per_token(shape: Shape, *, checkpointing: bool, training: bool = True) -> float:
    """Floating-point operations a token, without attention scores and output matrix.

    Forward 2 for each linear weight; backward the same again (gradients of activations only: the base is
    frozen, and LoRA's own are below 1 %); checkpointing a second forward.
    """
    passes = (3 if checkpointing else 2) if training else 1
    return 2.0 * shape.linear_parameters * passes


@dataclass(frozen=True)
class Gpu:
    """A GPU: memory, dense bf16 peak from its maker's data sheet, and the assumed share that training reaches."""

    name: str
    gib: float
    tflops: float
    share: float


GPUS: dict[str, Gpu] = {
    "24gb": Gpu("RTX 4090", 24, 165.2, 0.30),
    "80gb": Gpu("A100 80 GB", 80, 312.0, 0.40),
}


def hours(shape: Shape, tokens: float, gpu: Gpu, *, checkpointing: bool) -> float:
    """Hours for so many tokens: operations / (peak * share)."""
    return tokens * flops_per_token(shape, checkpointing=checkpointing) / (gpu.tflops * 1e12 * gpu.share) / 3600
