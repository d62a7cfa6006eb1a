"""Training runs on a tiny model: they learn, resume, and give adapters that load again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the [train] extra")

import torch
from peft import PeftModel
from safetensors.torch import load_file
from trl import SFTTrainer

from training import classify, decompose
from training.classify import use_label_rows
from training.common import TrainConfig, load_base, run_record
from training.data import (
    TeacherTurn,
    decompose_samples,
    load_teacher_turns,
)
from training.export import export
from vista_local.backends.device import native_dtype, pick_device
from vista_local.backends.transformers_backend import TransformersBackend
from vista_local.chat import ChatEncoder
from vista_local.errors import InputError
from vista_local.prompts import Prompt


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
    written = run_record(verify_run.config, verify_run.report)
    earlier = {"steps": 3, "minutes": 0.5, "hardware": "an abacus", "recipe": {"seed": 5}}
    (verify_run.out / "run.json").write_text(json.dumps(written | {"started_from": earlier}), encoding="utf-8")
    manifest = export(verify_run.config, verify_run.out, tmp_path / "verify", None)
    assert manifest.calibration.temperature > 0
    assert manifest.metrics["claims"] == verify_run.report["claims"]
    assert manifest.metrics["negative log-likelihood"] <= manifest.metrics["negative log-likelihood before"]
    assert manifest.training["steps"] == 14 and manifest.training["started_from"] == earlier
    assert manifest.hardware == written["hardware"] and manifest.data_sha256 == written["data_sha256"]
    assert manifest.hyper_parameters["learning_rate"] == verify_run.config.learning_rate
    weights = load_file(tmp_path / "verify" / "adapter_model.safetensors")
    assert {t.dtype for t in weights.values()} == {torch.float16}
    backend = TransformersBackend(tiny_base, tmp_path, stages=("verify",))
    assert asdict(backend.manifest("verify")) == json.loads(json.dumps(asdict(manifest)))
    assert backend.max_reference_tokens > 0
    card = (tmp_path / "verify" / "README.md").read_text(encoding="utf-8")
    assert "negative log-likelihood" in card and "| steps | 14 |" in card
    assert "| steps (1 before) | 3 |" in card and "| hardware (1 before) | an abacus |" in card


def test_a_run_remembers_the_runs_that_it_started_from(tiny_base: Path, data_root: Path, tmp_path: Path) -> None:
    start = tmp_path / "first" / "adapter"
    start.mkdir(parents=True)
    (start.parent / "run.json").write_text('{"steps": 7, "started_from": {"steps": 5}}', encoding="utf-8")
    config = recipe("verify", tiny_base, data_root, init_from=str(start), learning_rate=0.25)
    record = run_record(config, {"steps": 9})
    assert (record["steps"], record["recipe"]["learning_rate"]) == (9, 0.25)
    assert record["started_from"] == {"steps": 7, "started_from": {"steps": 5}}
    assert set(record["data_sha256"]) == {*config.train, *config.dev}


def test_export_refuses_a_run_whose_record_does_not_say_what_it_was(
    verify_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (run / "adapter").mkdir(parents=True)
    (run / "adapter" / "adapter_model.safetensors").write_bytes(b"")
    for text, message in (('{"steps": 1}', "no 'recipe'"), ('{"steps"', "can't be read")):
        (run / "run.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            export(verify_run.config, run, tmp_path / "verify", None)
    assert not (tmp_path / "verify").exists()


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
