"""Teacher files to samples, samples to batches, batches to adapters that load again."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the [train] extra")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_samples import CONVERSATIONS, reply, user

from training.classify import PackedCollator, TokenBudgetSampler, build_training_samples, class_weights
from training.common import load_config, sample_limited
from training.data import (
    ClassifySample,
    Diluter,
    TeacherTurn,
    assign_claims_to_chunks,
    classify_samples,
    decompose_samples,
    load_teacher_turns,
    sample_id,
)
from training.export import fit_calibration
from training.traces import read_side
from vista_local.chat import STAGE_LABELS, ChatEncoder
from vista_local.claims import parse_claims
from vista_local.errors import InputError, VistaError
from vista_local.labels import Label
from vista_local.packing import pack
from vista_local.prompts import StoreLine
from vista_local.schema import Role
from vista_local.stages import classify_request

# ---- teacher files ----


def test_the_store_is_every_earlier_verified_or_out_of_scope_claim(turns: list[TeacherTurn]) -> None:
    mill = [t for t in turns if t.id == "mill"]
    assert [t.turn for t in mill] == [1, 3, 5]
    assert mill[0].store == ()  # claims of one turn never support each other
    after_first = (StoreLine("The assistant loves mills.", True), StoreLine("Anna Berg built the mill in 1912."))
    assert mill[1].store == mill[2].store == after_first
    assert [u.role for u in mill[1].history] == [Role.USER, Role.ASSISTANT, Role.USER]
    assert mill[1].history[-1].text == "Was she paid for it?"
    assert mill[0].claims[2] == ("The mill burned down in 1930.", Label.CONTRADICTED)
    assert mill[2].claims == () and mill[2].reference == ()
    harbour = next(t for t in turns if t.id == "harbour")
    assert harbour.store == ()  # no other conversation's
    assert len(harbour.reference) == 1  # a string is one passage


def test_background_facts_are_in_the_store_of_every_turn(tmp_path: Path) -> None:
    talk = json.loads(json.dumps(CONVERSATIONS[0])) | {"background": ["The river is wide.", "", "The river is wide."]}
    (tmp_path / "a.jsonl").write_text(json.dumps(talk) + "\n", encoding="utf-8")
    known = StoreLine("The river is wide.")
    first, second, _ = load_teacher_turns(tmp_path / "a.jsonl")
    assert first.store == (known,)
    assert second.store == (
        known,
        StoreLine("The assistant loves mills.", True),
        StoreLine("Anna Berg built the mill in 1912."),
    )


def test_turns_without_claims_key_are_history_only(tmp_path: Path) -> None:
    talk = {"id": "a", "turns": [{"role": "assistant", "text": "Hello!"}, user("Hi."), reply("A mill.", "A mill.")]}
    (tmp_path / "a.jsonl").write_text(json.dumps(talk) + "\n\n", encoding="utf-8")
    (only,) = load_teacher_turns(tmp_path / "a.jsonl")
    assert [u.text for u in only.history] == ["Hello!", "Hi."]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '"text"',
        '{"turns": [{"role": "assistant", "text": "a", "claims": []}]}',
        '{"id": "a", "turns": [{"role": "assistant", "text": "a", "claims": [{"claim": "b", "label": "MAYBE"}]}]}',
        '{"id": "a", "turns": [{"role": "assistant", "text": "a", "claims": [{"claim": "b"}]}]}',
        '{"id": "a", "turns": [{"role": "assistant", "text": "a", "claims": ["b"]}]}',
        '{"id": "a", "turns": [{"role": "wizard", "text": "a"}]}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps(CONVERSATIONS[2])}\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: no (teacher conversation|JSON)"):
        load_teacher_turns(path)


def test_a_file_cut_off_inside_a_character_is_called_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    for character in "é€\U0001f600":
        talks = [{"id": name, "turns": [user("Hi."), reply(character, [], (character, "VERIFIED"))]} for name in "ab"]
        whole = "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in talks).encode()
        path.write_bytes(whole)
        assert [t.text for t in load_teacher_turns(path)] == [character] * 2
        end = whole.rindex(character.encode())
        for kept in range(end + 1, end + len(character.encode())):
            path.write_bytes(whole[:kept])
            with pytest.raises(
                InputError, match=r"cut\.jsonl, line 2: the line is cut off.*run training\.collect again"
            ):
                load_teacher_turns(path)
            with pytest.raises(InputError, match=r"cut\.jsonl, line 2: no JSON \(is the line cut off\?\)"):
                read_side(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [(b'{"id": "\xe9"}', "not UTF-8: invalid continuation byte"), (b"[" * 100_000, "it is nested too deeply")],
)
def test_a_line_of_another_encoding_or_of_endless_brackets_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_bytes(json.dumps(CONVERSATIONS[2]).encode() + b"\n" + line + b"\n")
    with pytest.raises(InputError, match=rf"odd\.jsonl, line 2: .*{message}"):
        load_teacher_turns(path)
    with pytest.raises(InputError, match=r"odd\.jsonl, line 2: no JSON"):
        read_side(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing: cannot be read: No such file"):
        load_teacher_turns(tmp_path / "nothing")


def test_limits_draw_by_seed_and_keep_the_order() -> None:
    drawn = sample_limited(list(range(100)), 10, random.Random(1))
    assert len(set(drawn)) == 10 and drawn == sorted(drawn)
    assert drawn == sample_limited(list(range(100)), 10, random.Random(1))
    assert drawn != sample_limited(list(range(100)), 10, random.Random(2))
    assert sample_limited([1, 2], 5, random.Random(1)) == [1, 2]


# ---- samples of verify and categorise ----


def test_a_file_can_be_narrowed_to_turns_with_certain_labels(tmp_path: Path, encoder: ChatEncoder) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(json.dumps(c) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    path = tmp_path / "recipe.yaml"
    settings = {"stage": "verify", "train": ["a.jsonl", "b.jsonl"], "dev": [], "dilute_share": 0.0}
    path.write_text(json.dumps(settings | {"only_with": {"a.jsonl": ["contradicted"]}}), encoding="utf-8")
    config = load_config(path, {"data_roots": [str(tmp_path)]})
    every = [t for t in load_teacher_turns(tmp_path / "b.jsonl") if t.claims]
    refuted = [t for t in every if any(label is Label.CONTRADICTED for _, label in t.claims)]
    assert 0 < len(refuted) < len(every)
    found = [s.id for s in build_training_samples(config, encoder)]
    assert found == [sample_id(t) for t in [*refuted, *every]]


def branches_of(sample: ClassifySample) -> list[list[int]]:
    sequence = sample.sequence
    return [
        [i for i, s in zip(sequence.input_ids, sequence.segments, strict=True) if s == number]
        for number in range(1, len(sequence.read_at) + 1)
    ]


def prefix_text(sample: ClassifySample, encoder: ChatEncoder) -> str:
    pairs = zip(sample.sequence.input_ids, sample.sequence.segments, strict=True)
    return str(encoder.tokenizer.decode([i for i, s in pairs if s == 0]))


def test_labels_are_aligned_with_branches(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    samples = classify_samples(turns, "verify", encoder, rng=random.Random(1))
    with_claims = [t for t in turns if t.claims]
    assert [s.id for s in samples] == [f"{t.id}#{t.turn}" for t in with_claims]
    for sample, turn in zip(samples, with_claims, strict=True):
        assert branches_of(sample) == [encoder.branch(c) for c, _ in turn.claims]
        assert sample.labels == [0 if label is Label.VERIFIED else 1 for _, label in turn.claims]


def test_categorise_sees_unverifiable_claims_only(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    samples = classify_samples(turns, "categorise", encoder, rng=random.Random(1))
    assert [s.id for s in samples] == ["mill#1", "mill#3", "harbour#3", "lake#1", "museum#1"]
    by_id = {f"{t.id}#{t.turn}": t for t in turns}
    for sample in samples:
        claims = [(c, label.value) for c, label in by_id[sample.id].claims if label is not Label.VERIFIED]
        assert branches_of(sample) == [encoder.branch(c) for c, _ in claims]
        assert [STAGE_LABELS["categorise"][answer] for answer in sample.labels] == [label for _, label in claims]


def test_samples_are_what_the_pipeline_asks(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    """The same ids as a request for the same turn; here a first turn, without history or store."""
    words = encoder.label_words("verify")
    first = turns[0]
    sample = classify_samples([first], "verify", encoder, rng=random.Random(1), drop_context=1.0)[0]
    claims = [c for c, _ in first.claims]
    request = classify_request("verify", words, [], [], "\n".join(first.reference), claims)
    assert sample.sequence == pack(encoder.prefix(request.prefix), [encoder.branch(c) for c in request.branches])


def test_context_is_shown_or_dropped(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    shown = classify_samples(turns, "verify", encoder, rng=random.Random(1), drop_context=0.0)
    dropped = classify_samples(turns, "verify", encoder, rng=random.Random(1), drop_context=1.0)
    assert all("Earlier talk (no evidence):" in prefix_text(s, encoder) for s in shown)
    assert not any("Earlier talk (no evidence):" in prefix_text(s, encoder) for s in dropped)
    assert "Was she paid" in prefix_text(shown[1], encoder)
    assert "- (stated) The assistant loves mills." in prefix_text(dropped[1], encoder)  # the store stays


@given(count=st.integers(0, 30), seed=st.integers(0, 10_000), which=st.integers(0, 6))
def test_dilution_keeps_the_reference_and_adds_foreign_sentences(
    turns: list[TeacherTurn], count: int, seed: int, which: int
) -> None:
    turn = turns[which]
    own = [s for passage in turn.reference for s in passage.replace(". ", ".\n").split("\n")]
    others = {s for t in turns if t.id != turn.id for p in t.reference for s in p.replace(". ", ".\n").split("\n")}
    diluted = Diluter(turns).dilute(turn, count, random.Random(seed))
    assert [s for s in diluted if s in own] == own
    foreign = [s for s in diluted if s not in own]
    assert len(foreign) == count
    assert set(foreign) <= others
    assert diluted == Diluter(turns).dilute(turn, count, random.Random(seed))


def test_dilution_hides_the_reference_within(turns: list[TeacherTurn]) -> None:
    """Own sentences come apart in some draws, and stay together in others."""
    first, second = turns[0].reference
    gaps = set()
    for seed in range(40):
        diluted = Diluter(turns).dilute(turns[0], 10, random.Random(seed))
        gaps.add(diluted.index(second) - diluted.index(first))
    assert 1 in gaps and max(gaps) > 2


def test_dilution_without_other_conversations_is_refused(turns: list[TeacherTurn]) -> None:
    """It would look for a foreign sentence for ever."""
    with pytest.raises(VistaError, match="no other conversation"):
        Diluter(turns[:3]).dilute(turns[0], 5, random.Random(1))


def test_diluted_share(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    options: dict[str, Any] = {"diluter": Diluter(turns), "dilute_sentences": (3, 3)}
    none = classify_samples(turns, "verify", encoder, rng=random.Random(1), dilute_share=0.0, **options)
    every = classify_samples(turns, "verify", encoder, rng=random.Random(1), dilute_share=1.0, **options)
    for plain, diluted in zip(none, every, strict=True):
        empty = plain.id == "mill#3"  # nothing to hide
        assert (len(diluted.sequence) == len(plain.sequence)) == empty
        assert branches_of(plain) == branches_of(diluted)


# ---- batches ----


@settings(max_examples=50)
@given(
    lengths=st.lists(st.integers(1, 400), min_size=1, max_size=150),
    budget=st.integers(50, 2000),
    seed=st.integers(0, 99),
    pool=st.integers(1, 200),
)
def test_sampler_keeps_every_sample_and_the_budget(lengths: list[int], budget: int, seed: int, pool: int) -> None:
    sampler = TokenBudgetSampler(lengths, budget, seed, pool)
    batches = list(sampler)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    assert len(sampler) == len(batches)
    for batch in batches:
        assert len(batch) == 1 or max(lengths[i] for i in batch) * len(batch) <= budget
    assert list(TokenBudgetSampler(lengths, budget, seed, pool)) == batches


def test_sampler_order_depends_on_seed_and_epoch() -> None:
    lengths = [random.Random(i).randint(10, 300) for i in range(200)]
    sampler = TokenBudgetSampler(lengths, 1000, 3, pool=50)
    first = list(sampler)
    sampler.set_epoch(1)
    second = list(sampler)
    sampler.set_epoch(0)
    assert list(sampler) == first != second
    assert list(TokenBudgetSampler(lengths, 1000, 4, pool=50)) != first


def test_class_weights() -> None:
    samples = [ClassifySample("a", pack([1], [[2]]), labels) for labels in ([0, 0, 0, 1], [0, 0, 0, 0, 2, 0, 0])]
    weights = class_weights(samples, 4)
    counts = Counter(label for s in samples for label in s.labels)
    assert float(weights[1] / weights[0]) == pytest.approx(math.sqrt(counts[0] / counts[1]))
    assert sum(float(weights[c]) * n for c, n in counts.items()) / counts.total() == pytest.approx(1.0)
    assert torch.isfinite(weights).all()  # the class that doesn't occur too


def test_collator_keeps_labels_and_answer_positions_together() -> None:
    samples = [ClassifySample("a", pack([1, 2], [[3], [4, 5]]), [1, 0]), ClassifySample("b", pack([6], [[7, 8]]), [1])]
    batch = PackedCollator(0, torch.bfloat16)(samples)
    assert batch["labels"].tolist() == [1, 0, 1]
    assert batch["input_ids"][batch["read_rows"], batch["read_columns"]].tolist() == [3, 5, 8]
    assert batch["attention_mask"].dtype == torch.bfloat16


# ---- samples of decompose ----


def test_claims_go_to_the_chunk_that_holds_most_of_their_words() -> None:
    chunks = ["Anna Berg built the mill.", "The harbour has three piers.", "Bye!"]
    claims = ["The harbour has piers.", "Berg built a mill.", "Zebras.", "Anna built the mill."]
    assert assign_claims_to_chunks(chunks, claims) == [
        ["Berg built a mill.", "Zebras.", "Anna built the mill."],  # a claim without a shared word: the first
        ["The harbour has piers."],
        [],
    ]
    assert assign_claims_to_chunks(["the mill", "the mill"], ["A mill."]) == [["A mill."], []]


def test_completions_parse_back(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    samples = decompose_samples(turns, encoder, chunk_tokens=1000)
    assert len(samples) == len(turns)
    for sample, turn in zip(samples, turns, strict=True):
        assert parse_claims(sample["completion"][0]["content"]).claims == tuple(c for c, _ in turn.claims)
        assert sample["prompt"][1]["content"].endswith(f"Reply:\n{turn.text}")
        assert sample["prompt"][1]["content"].startswith("Conversation:\n")
    assert samples[2]["completion"][0]["content"] == "None"


def test_long_turns_are_chunked_with_earlier_chunks_as_history(turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    limit = encoder.count("It lies north of the town.") + 4
    lake = next(t for t in turns if t.id == "lake")
    samples = decompose_samples([lake], encoder, chunk_tokens=limit)
    assert len(samples) > 1
    claims = [c for s in samples for c in parse_claims(s["completion"][0]["content"]).claims]
    assert sorted(claims) == sorted(c for c, _ in lake.claims)
    assert samples[0]["prompt"][1]["content"].endswith("Reply:\nIt lies north of the town.")
    assert "Assistant: It lies north of the town." in samples[1]["prompt"][1]["content"]
    assert "It lies north" not in samples[1]["prompt"][1]["content"].rsplit("Reply:", 1)[1]


# ---- calibration ----


def test_calibration_recovers_temperature_and_bias() -> None:
    generator = torch.Generator().manual_seed(5)
    labels = ("VERIFIED", "UNVERIFIABLE", "THIRD")
    log_probs = (3 * torch.randn(20_000, 3, generator=generator)).log_softmax(-1)
    true = (log_probs / 2.0 + torch.tensor([0.0, 0.8, -0.6])).softmax(-1)
    gold = torch.multinomial(true, 1, generator=generator).squeeze(1)
    found = fit_calibration(log_probs, gold, labels)
    assert found.temperature == pytest.approx(2.0, abs=0.1)
    assert found.bias["VERIFIED"] == 0.0
    assert found.bias["UNVERIFIABLE"] == pytest.approx(0.8, abs=0.08)
    assert found.bias["THIRD"] == pytest.approx(-0.6, abs=0.08)


def test_calibration_stays_finite_for_a_label_that_dev_lacks() -> None:
    generator = torch.Generator().manual_seed(5)
    log_probs = torch.randn(200, 3, generator=generator).log_softmax(-1)
    gold = log_probs[:, :2].argmax(-1)
    found = fit_calibration(log_probs, gold, ("A", "B", "C"))
    assert found.temperature > 0
    assert -20 < found.bias["C"] < 0
