"""Packed claims are read as if each stood alone behind the prefix."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from vista_local.packing import PAD_SEGMENT, branch_mask, collate, pack, split_branches

IDS = st.integers(3, 250)
SEQUENCES = st.lists(
    st.tuples(
        st.lists(IDS, min_size=1, max_size=60),
        st.lists(st.lists(IDS, min_size=1, max_size=12), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=3,
)
LABELS = [10, 20, 30, 40]


def load(base: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(base, dtype=dtype, attn_implementation="sdpa").eval()


@pytest.fixture(scope="module")
def model(tiny_base: Path) -> Any:
    return load(tiny_base, torch.float32)


@pytest.fixture(scope="module")
def half_model(tiny_base: Path) -> Any:
    return load(tiny_base, torch.bfloat16)


@torch.inference_mode()
def packed_logits(model: Any, sequences: Sequence[tuple[list[int], list[list[int]]]]) -> torch.Tensor:
    batch = collate([pack(prefix, branches) for prefix, branches in sequences], pad_id=0, dtype=model.dtype)
    logits = model(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask, position_ids=batch.position_ids, use_cache=False
    ).logits
    assert torch.isfinite(logits).all()  # padding rows included
    return logits[batch.read_rows, batch.read_columns][:, LABELS].float()


@torch.inference_mode()
def plain_logits(model: Any, sequences: Sequence[tuple[list[int], list[list[int]]]]) -> torch.Tensor:
    """Each prefix + branch alone, plain causal attention."""
    rows = [
        model(input_ids=torch.tensor([prefix + branch]), use_cache=False).logits[0, -1, LABELS].float()
        for prefix, branches in sequences
        for branch in branches
    ]
    return torch.stack(rows)


@settings(max_examples=25)
@given(sequences=SEQUENCES)
def test_packed_logits_equal_unpacked_in_fp32(
    model: Any, sequences: Sequence[tuple[list[int], list[list[int]]]]
) -> None:
    torch.testing.assert_close(packed_logits(model, sequences), plain_logits(model, sequences), atol=1e-4, rtol=0)


@settings(max_examples=15)
@given(sequences=SEQUENCES)
def test_packed_labels_equal_unpacked_in_bf16(
    half_model: Any, sequences: Sequence[tuple[list[int], list[list[int]]]]
) -> None:
    packed, plain = packed_logits(half_model, sequences), plain_logits(half_model, sequences)
    best = plain.topk(2).values
    clear = best[:, 0] - best[:, 1] >= 0.05
    assert torch.equal(packed.argmax(-1)[clear], plain.argmax(-1)[clear])


def test_a_branch_leaves_the_others_unmoved(model: Any) -> None:
    """Exchange one branch: the other's logits stay, its own change (so the comparison isn't blind)."""
    prefix, first = [5, 6, 7, 8], [9, 10]
    one = packed_logits(model, [(prefix, [first, [11, 12, 13]])])
    other = packed_logits(model, [(prefix, [first, [21, 22, 23]])])
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=0)
    assert (one[1] - other[1]).abs().max() > 1e-2


def test_pack_layout() -> None:
    packed = pack([5, 6, 7], [[8, 9], [10]])
    assert packed.input_ids == [5, 6, 7, 8, 9, 10]
    assert packed.position_ids == [0, 1, 2, 3, 4, 3]
    assert packed.segments == [0, 0, 0, 1, 1, 2]
    assert packed.read_at == [4, 5]
    assert len(packed) == 6


def test_mask_by_hand() -> None:
    mask = branch_mask(torch.tensor([[0, 0, 1, 1, 2, PAD_SEGMENT, PAD_SEGMENT]]), torch.float32)
    assert mask.shape == (1, 1, 7, 7)
    visible = (mask[0, 0] == 0).int().tolist()
    assert visible == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [1, 1, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1, 1],
    ]
    assert mask.min() == torch.finfo(torch.float32).min


@settings(max_examples=25)
@given(sequences=SEQUENCES)
def test_mask_properties(sequences: Sequence[tuple[list[int], list[list[int]]]]) -> None:
    packed = [pack(prefix, branches) for prefix, branches in sequences]
    batch = collate(packed, pad_id=0)
    length = max(len(p) for p in packed)
    assert batch.input_ids.shape == batch.position_ids.shape == (len(packed), length)
    for row, sequence in enumerate(packed):
        segments = sequence.segments + [PAD_SEGMENT] * (length - len(sequence))
        for query in range(length):
            seen = [key for key in range(length) if batch.attention_mask[row, 0, query, key] == 0]
            assert query in seen and max(seen) == query  # causal, and no row is empty
            allowed = {segments[query]} if segments[query] == PAD_SEGMENT else {0, segments[query]}
            assert {segments[key] for key in seen} <= allowed
            assert seen == [key for key in range(query + 1) if segments[key] in allowed]
    branches = [branch for _, several in sequences for branch in several]
    assert batch.input_ids[batch.read_rows, batch.read_columns].tolist() == [branch[-1] for branch in branches]


@pytest.mark.parametrize(("prefix", "branches"), [([], [[1]]), ([1], [[]]), ([1], [[2], []])])
def test_empty_parts_are_refused(prefix: list[int], branches: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="at least one token"):
        pack(prefix, branches)


def test_a_turn_without_claims_has_no_answers() -> None:
    batch = collate([pack([5, 6], []), pack([5], [[7]])], pad_id=0)
    assert batch.read_rows.tolist() == [1]
    assert batch.read_columns.tolist() == [1]


@given(
    prefix=st.integers(1, 40),
    lengths=st.lists(st.integers(1, 30), max_size=30),
    budget=st.integers(1, 120),
)
def test_split_branches_keeps_order_and_budget(prefix: int, lengths: list[int], budget: int) -> None:
    branches = [[number] * length for number, length in enumerate(lengths)]
    parts = split_branches(prefix, branches, budget)
    assert [b for part in parts for b in part] == branches
    for part in parts:
        assert len(part) == 1 or prefix + sum(map(len, part)) <= budget
    for part, following in pairwise(parts):  # no part is closed early
        assert prefix + sum(map(len, part)) + len(following[0]) > budget
