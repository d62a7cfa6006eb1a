"""Packed classification: many claims behind one prefix in one sequence. Pure tensors, no model.

A packed sequence is `prefix | branch 1 | branch 2 | ...`. Each branch sees the prefix and itself,
and its position ids restart after the prefix, so that its last row equals the last row of
`prefix + branch` computed alone, while the prefix is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

#: Segment number of padding; 0 is the prefix, 1, 2, ... are the branches.
PAD_SEGMENT = -1


@dataclass(frozen=True)
class PackedSequence:
    """Token ids with position and segment of each, and where each branch's answer is read."""

    input_ids: list[int]
    position_ids: list[int]
    segments: list[int]
    read_at: list[int]

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class PackedBatch:
    """Right-padded tensors: ids, positions [B, L]; mask [B, 1, L, L], additive;
    rows and columns of the answer positions [N], branches of a sequence in order."""

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    attention_mask: torch.Tensor
    read_rows: torch.Tensor
    read_columns: torch.Tensor


def pack(prefix: Sequence[int], branches: Sequence[Sequence[int]]) -> PackedSequence:
    """Pack `branches` behind `prefix`.

    Raises:
        ValueError: the prefix or a branch is empty (an empty branch has no row to read).
    """
    if not prefix or any(not b for b in branches):
        raise ValueError("prefix and branches must hold at least one token each")
    ids, positions, segments, read_at = list(prefix), list(range(len(prefix))), [0] * len(prefix), []
    for number, branch in enumerate(branches, start=1):
        ids.extend(branch)
        positions.extend(range(len(prefix), len(prefix) + len(branch)))
        segments.extend([number] * len(branch))
        read_at.append(len(ids) - 1)
    return PackedSequence(ids, positions, segments, read_at)


def split_branches(prefix: int, branches: Sequence[Sequence[int]], budget: int) -> list[list[Sequence[int]]]:
    """Consecutive branches in parts that fit `budget` tokens with their prefix, at least one a part.

    Args:
        prefix: tokens of the prefix, which every part repeats.
    """
    parts: list[list[Sequence[int]]] = []
    used = 0
    for branch in branches:
        if not parts or prefix + used + len(branch) > budget:
            parts.append([])
            used = 0
        parts[-1].append(branch)
        used += len(branch)
    return parts


def branch_mask(segments: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask [B, 1, L, L] for segments [B, L]: causal, and a token sees only the prefix and
    its own segment. Padding sees itself, so that no row is empty (an empty row gives NaN)."""
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    keys, queries = segments[:, None, :], segments[:, :, None]
    visible = causal & ((keys == queries) | ((keys == 0) & (queries != PAD_SEGMENT)))
    mask = torch.zeros(visible.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]


def collate(sequences: Sequence[PackedSequence], pad_id: int, dtype: torch.dtype = torch.float32) -> PackedBatch:
    """Right-pad packed sequences into one batch.

    Args:
        sequences: at least one.
        pad_id: any valid token id; padding is masked out.
        dtype: the model's, since the mask is added to attention scores.
    """
    length = max(len(s) for s in sequences)

    def padded(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (length - len(values))

    segments = torch.tensor([padded(s.segments, PAD_SEGMENT) for s in sequences])
    return PackedBatch(
        input_ids=torch.tensor([padded(s.input_ids, pad_id) for s in sequences]),
        position_ids=torch.tensor([padded(s.position_ids, 0) for s in sequences]),
        attention_mask=branch_mask(segments, dtype),
        read_rows=torch.tensor([row for row, s in enumerate(sequences) for _ in s.read_at], dtype=torch.long),
        read_columns=torch.tensor([c for s in sequences for c in s.read_at], dtype=torch.long),
    )
