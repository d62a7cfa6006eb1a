"""Teacher files to samples, samples to batches, batches to adapters that load again."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the [train] extra")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from safetensors.torch import load_file
from trl import SFTTrainer

from training import classify, decompose
from training.classify import PackedCollator, TokenBudgetSampler, class_weights, use_label_rows
from training.common import TrainConfig, load_base, load_config, sample_limited
from training.data import (
    ClassifySample,
    Diluter,
    TeacherTurn,
    assign_claims_to_chunks,
    classify_samples,
    decompose_samples,
    load_teacher_turns,
)
from training.export import export, fit_calibration
from vista_local.backends.device import native_dtype, pick_device
from vista_local.backends.transformers_backend import TransformersBackend
from vista_local.chat import STAGE_LABELS, ChatEncoder
from vista_local.claims import parse_claims
from vista_local.errors import InputError, VistaError
from vista_local.labels import Label
from vista_local.packing import pack
from vista_local.prompts import Prompt, StoreLine
from vista_local.schema import Role
from vista_local.stages import classify_request


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "text": text}


def reply(text: str, reference: Any, *claims: tuple[str, str]) -> dict[str, Any]:
    labelled = [{"claim": claim, "label": label, "evidence": []} for claim, label in claims]
    return {"role": "assistant", "text": text, "reference": reference, "claims": labelled}


CONVERSATIONS: list[dict[str, Any]] = [
    {
        "id": "mill",
        "turns": [
            user("Who built the old mill?"),
            reply(
                "I love mills! Anna Berg built it in 1912, and it burned down in 1930.",
                ["Anna Berg built the mill on the river in 1912.", "It burned down in the summer of 1921."],
                ("The assistant loves mills.", "OUT_OF_SCOPE"),
                ("Anna Berg built the mill in 1912.", "VERIFIED"),
                ("The mill burned down in 1930.", "CONTRADICTED"),
            ),
            user("Was she paid for it?"),
            reply(
                "I don't know. She had two sons.",
                [],
                ("The assistant doesn't know whether Anna Berg was paid.", "ABSTENTION"),
                ("Anna Berg had two sons.", "LACKING_EVIDENCE"),
            ),
            user("Thanks!"),
            reply("You're welcome.", None),
        ],
    },
    {
        "id": "harbour",
        "turns": [
            user("Is the harbour large?"),
            reply(
                "It has three piers, and the longest is 240 metres long.",
                "The harbour of the town has three piers. The longest pier is 240 metres long.",
                ("The harbour has three piers.", "VERIFIED"),
                ("The longest pier is 240 metres long.", "VERIFIED"),
            ),
            user("Open at night?"),
            reply(
                "No, it closes at nine.",
                ["The harbour is open to visitors until eleven in the evening."],
                ("The harbour closes at nine.", "CONTRADICTED"),
            ),
        ],
    },
    {
        "id": "lake",
        "turns": [
            user("Where is the lake?"),
            reply(
                "It lies north of the town. A great place, and full of trout.",
                ["The lake lies north of the town at 600 metres above the sea."],
                ("The lake lies north of the town.", "VERIFIED"),
                ("The assistant thinks that the lake is a great place.", "OUT_OF_SCOPE"),
                ("The lake is full of trout.", "LACKING_EVIDENCE"),
            ),
        ],
    },
    {
        "id": "museum",
        "turns": [
            user("When does the museum open?"),
            reply(
                "At ten. I can't tell you the price.",
                ["The museum of the town opens at ten in the morning, except on Mondays."],
                ("The museum opens at ten.", "VERIFIED"),
                ("The assistant can't tell the price.", "ABSTENTION"),
            ),
        ],
    },
]


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    (root / "train.jsonl").write_text("".join(json.dumps(c) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def turns(data_root: Path) -> list[TeacherTurn]:
    return load_teacher_turns(data_root / "train.jsonl")


@pytest.fixture(scope="module")
def encoder(tiny_tokenizer: Any) -> ChatEncoder:
    return ChatEncoder(tiny_tokenizer)


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
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: no teacher conversation"):
        load_teacher_turns(path)


def test_recipes_refuse_what_they_do_not_know(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{stage: verify, train: [a], dev: [b], dilute_sentences: [1, 2]}", encoding="utf-8")
    assert load_config(path, {"max_steps": 3}).max_steps == 3
    assert load_config(path).dilute_sentences == (1, 2)
    path.write_text("{stage: verify, train: [a], dev: [b], learning_rat: 1}", encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.yaml: unknown setting 'learning_rat'"):
        load_config(path)
    path.write_text("{stage: verify, train: [a]}", encoding="utf-8")
    with pytest.raises(InputError, match="dev"):
        load_config(path)


@pytest.mark.parametrize("stage", ["verify", "categorise", "decompose"])
def test_the_default_recipes_load(stage: str) -> None:
    config = load_config(Path(__file__).parent.parent / "configs" / "default" / f"{stage}.yaml")
    assert config.stage == stage
    assert set(config.limits) <= set(config.train)


def test_limits_draw_by_seed_and_keep_the_order() -> None:
    drawn = sample_limited(list(range(100)), 10, random.Random(1))
    assert len(set(drawn)) == 10 and drawn == sorted(drawn)
    assert drawn == sample_limited(list(range(100)), 10, random.Random(1))
    assert drawn != sample_limited(list(range(100)), 10, random.Random(2))
    assert sample_limited([1, 2], 5, random.Random(1)) == [1, 2]


# ---- samples of verify and categorise ----


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


# ---- training runs ----


@dataclass
class Run:
    """A finished training run and its trainer, the model in it as trained."""

    config: TrainConfig
    out: Path
    report: dict[str, Any]
    trainer: Any
    steps_done: list[int] = field(default_factory=list)


def run_training(module: Any, config: TrainConfig, out: Path) -> Run:
    """Train through the stage's own `train`, keeping hold of the trainer it makes."""
    name = "CompletionTrainer" if config.stage == "decompose" else "PackedTrainer"
    kept: list[Any] = []
    steps: list[int] = []

    class Kept(getattr(module, name)):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept.append(self)

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            steps.append(self.state.global_step)
            return super().training_step(*args, **kwargs)

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, Kept)
        report = module.train(config, out)
    torch.set_num_threads(threads)
    return Run(config, out, report, kept[0], steps)


def recipe(stage: str, tiny_base: Path, data_root: Path, **changes: Any) -> TrainConfig:
    options: dict[str, Any] = {
        "stage": stage,
        "train": ["train.jsonl"],
        "dev": ["train.jsonl"],
        "data_roots": [str(data_root)],
        "base": str(tiny_base),
        "dilute_share": 0.5,
        "dilute_sentences": (1, 3),
        "learning_rate": 1e-2,
        "max_steps": 14,
        "token_budget": 600,
        "batch_size": 4,
        "save_steps": 7,
        "compile_layers": False,
        "threads": 1,
    }
    return TrainConfig(**(options | changes))


@torch.no_grad()
def losses(run: Run, batch: dict[str, Any]) -> tuple[float, float]:
    """Loss over a batch without the adapter and with it."""
    trainer, model = run.trainer, run.trainer.model.eval()
    with model.disable_adapter():
        before = float(trainer.compute_loss(model, trainer._prepare_inputs(dict(batch))))
    return before, float(trainer.compute_loss(model, trainer._prepare_inputs(dict(batch))))


@pytest.fixture(scope="module")
def verify_run(tiny_base: Path, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield run_training(classify, recipe("verify", tiny_base, data_root), tmp_path_factory.mktemp("verify"))


@pytest.fixture(scope="module")
def decompose_run(tiny_base: Path, data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    config = recipe("decompose", tiny_base, data_root, max_steps=10)
    yield run_training(decompose, config, tmp_path_factory.mktemp("decompose"))


def whole_batch(run: Run) -> dict[str, Any]:
    dataset = run.trainer.train_dataset
    return dict(run.trainer.data_collator([dataset[i] for i in range(len(dataset))]))


@pytest.mark.slow
def test_verify_learns(verify_run: Run) -> None:
    before, after = losses(verify_run, whole_batch(verify_run))
    assert after < 0.8 * before
    assert verify_run.report["steps"] == len(verify_run.steps_done) == 14
    assert verify_run.report["claims"] == sum(len(t.claims) for t in load_teacher_turns(_train_file(verify_run)))
    assert len(verify_run.trainer._batch_sampler) > 1
    trained = {n: p for n, p in verify_run.trainer.model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in n and p.dtype == torch.float32 for n, p in trained.items())


def _train_file(run: Run) -> Path:
    return Path(run.config.data_roots[0]) / run.config.train[0]


@pytest.mark.slow
def test_saved_adapter_gives_the_trained_logits(verify_run: Run, tiny_base: Path) -> None:
    batch = whole_batch(verify_run)
    del batch["labels"]
    rows, columns = batch.pop("read_rows"), batch.pop("read_columns")
    trained = verify_run.trainer.model.eval()
    inputs = {name: t.to(trained.device) for name, t in batch.items()}
    model, tokenizer = load_base(str(tiny_base), native_dtype(pick_device()))
    encoder = ChatEncoder(tokenizer)
    use_label_rows(model, encoder.label_ids(list(encoder.label_words("verify").values())))
    loaded = PeftModel.from_pretrained(model, str(verify_run.out / "adapter")).to(trained.device).eval()
    with torch.no_grad():
        expected, found = trained(**inputs).logits, loaded(**inputs).logits
        with loaded.disable_adapter():
            bare = loaded(**inputs).logits
    assert expected.shape[-1] == 2
    assert torch.equal(found, expected)
    assert not torch.equal(found[rows, columns], bare[rows, columns])


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(verify_run: Run, tmp_path: Path) -> None:
    epoch = len(verify_run.trainer._batch_sampler)
    assert epoch < 7 and 7 % epoch  # the checkpoint lies inside a later epoch, whose shuffle differs
    shutil.copytree(verify_run.out / "checkpoint-7", tmp_path / "checkpoint-7")
    resumed = run_training(classify, verify_run.config, tmp_path)
    assert resumed.steps_done == list(range(7, 14))
    assert resumed.report["steps"] == 14
    expected = load_file(verify_run.out / "adapter" / "adapter_model.safetensors")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=0, rtol=0)


@pytest.mark.slow
def test_categorise_starts_from_verify(
    verify_run: Run, tiny_base: Path, data_root: Path, tmp_path: Path, encoder: ChatEncoder
) -> None:
    start = verify_run.out / "adapter"
    config = recipe("categorise", tiny_base, data_root, init_from=str(start), max_steps=1, learning_rate=1e-9)
    run = run_training(classify, config, tmp_path)
    expected = load_file(start / "adapter_model.safetensors")
    found = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.allclose(found[name], tensor, atol=1e-6) for name, tensor in expected.items())
    assert any(p.requires_grad for p in run.trainer.model.parameters())
    batch = whole_batch(run)
    assert int(batch["labels"].max()) == 3


@pytest.mark.slow
def test_exported_adapter_loads_with_calibration_and_card(verify_run: Run, tiny_base: Path, tmp_path: Path) -> None:
    (verify_run.out / "run.json").write_text(json.dumps(verify_run.report), encoding="utf-8")
    manifest = export(verify_run.config, verify_run.out, tmp_path / "verify", None)
    assert manifest.calibration.temperature > 0
    assert manifest.metrics["claims"] == verify_run.report["claims"]
    assert manifest.metrics["negative log-likelihood"] <= manifest.metrics["negative log-likelihood before"]
    assert manifest.training["steps"] == 14
    weights = load_file(tmp_path / "verify" / "adapter_model.safetensors")
    assert {t.dtype for t in weights.values()} == {torch.float16}
    backend = TransformersBackend(tiny_base, tmp_path, stages=("verify",))
    assert asdict(backend.manifest("verify")) == json.loads(json.dumps(asdict(manifest)))
    assert backend.max_reference_tokens > 0
    assert "negative log-likelihood" in (tmp_path / "verify" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_decompose_learns(decompose_run: Run) -> None:
    before, after = losses(decompose_run, whole_batch(decompose_run))
    assert after < 0.95 * before
    assert decompose_run.report["steps"] == len(decompose_run.steps_done) == 10
    saved = load_file(decompose_run.out / "adapter" / "adapter_model.safetensors")
    assert saved and all("lora_" in name for name in saved)
    assert any(t.abs().max() > 0 for name, t in saved.items() if "lora_B" in name)


@pytest.mark.slow
def test_completion_loss_is_trls(decompose_run: Run) -> None:
    trainer, model, batch = decompose_run.trainer, decompose_run.trainer.model.eval(), whole_batch(decompose_run)
    for count in (None, 7):
        inputs = [trainer._prepare_inputs(dict(batch)) for _ in range(2)]
        ours = trainer.compute_loss(model, inputs[0], num_items_in_batch=count)
        theirs = SFTTrainer.compute_loss(trainer, model, inputs[1], num_items_in_batch=count)
        assert float(ours) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.slow
def test_trl_tokenises_as_the_pipeline_does(decompose_run: Run, turns: list[TeacherTurn], encoder: ChatEncoder) -> None:
    samples = decompose_samples(turns, encoder, decompose_run.config.chunk_tokens)
    dataset = decompose_run.trainer.train_dataset
    assert len(dataset) == len(samples) == decompose_run.report["pairs"]
    for row, sample in zip(dataset, samples, strict=True):
        prompt = encoder.whole(Prompt(sample["prompt"][0]["content"], sample["prompt"][1]["content"]))
        completion = encoder.plain(sample["completion"][0]["content"])
        ids, labels = row["input_ids"], row["labels"]
        assert ids[: len(prompt)] == prompt
        assert labels == [-100] * len(prompt) + ids[len(prompt) :]  # loss on the completion alone
        assert ids[len(prompt) : len(prompt) + len(completion)] == completion
        assert ids[len(prompt) + len(completion)] == encoder.tokenizer.eos_token_id  # learns to stop
        assert len(ids) == decompose.sample_tokens(sample, encoder)
    batch = whole_batch(decompose_run)
    assert (batch["labels"] != -100).sum(-1).tolist() == [
        sum(label != -100 for label in row["labels"]) for row in dataset
    ]
