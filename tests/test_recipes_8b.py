"""The 8B recipes: what they say, what they need, and a proof on two layers of the same architectures in 4 bits."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the [train] extra")

import torch

from training import classify, decompose
from training.budget import (
    GIB,
    SHAPES,
    Gpu,
    Load,
    Shape,
    flops_per_token,
    hours,
    layer_bytes_per_token,
    memory,
    read_shape,
)
from training.classify import TokenBudgetSampler
from training.common import TrainConfig, load_base, load_config, open_base, run_record
from training.hardware import check_lengths, check_memory, place, trainer_options
from vista_local.chat import ChatEncoder
from vista_local.errors import InputError, VistaError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
MODELS = ("qwen3-8b", "llama-3.1-8b")
RECIPES = sorted(p.relative_to(CONFIGS).as_posix() for m in MODELS for p in (CONFIGS / m).glob("*-*gb.yaml"))

CONVERSATION = {
    "id": "mill",
    "turns": [
        {"role": "user", "text": "Who built the old mill?"},
        {
            "role": "assistant",
            "text": "Anna Berg built it in 1912. It has a red roof. I like it.",
            "reference": ["Anna Berg built the mill on the river in 1912."],
            "claims": [
                {"claim": "Anna Berg built the mill in 1912.", "label": "VERIFIED"},
                {"claim": "The mill has a red roof.", "label": "LACKING_EVIDENCE"},
                {"claim": "I like the mill.", "label": "OUT_OF_SCOPE"},
            ],
        },
    ],
}


# ---- the recipes as they stand ----


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_reads_and_is_for_its_gpu(name: str) -> None:
    config = load_config(CONFIGS / name)
    stage, _, size = Path(name).stem.partition("-")
    assert config.stage == stage and config.base in SHAPES
    assert config.gradient_checkpointing and config.dtype == "bf16" and not config.compile_layers
    assert (config.quantization, config.optim) == (
        ("nf4", "paged_adamw_8bit") if size == "24gb" else (None, "adamw_torch_fused")
    )
    assert config.min_gpu_gib is not None and config.min_gpu_gib < float(size.removesuffix("gb"))


def test_both_models_have_all_stages_for_both_sizes() -> None:
    assert len(RECIPES) == 12


def test_the_default_recipes_keep_their_settings() -> None:
    plain = TrainConfig(stage="verify", train=[], dev=[])
    assert (plain.quantization, plain.dtype, plain.device, plain.optim) == (None, None, None, None)
    assert trainer_options(plain, torch.device("cpu")) == {
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "use_cpu": True,
    }


def test_a_recipe_takes_over_what_it_extends_and_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("train: [x]\ndev: [y]\nepochs: 1\nlora_r: 4\n", encoding="utf-8")
    (tmp_path / "b.yaml").write_text("epochs: 2\nlora_r: 8\n", encoding="utf-8")
    (tmp_path / "c.yaml").write_text("extends: [a.yaml, b.yaml]\nstage: verify\nlora_r: 2\n", encoding="utf-8")
    config = load_config(tmp_path / "c.yaml")
    assert (config.train, config.epochs, config.lora_r) == (["x"], 2, 2)
    (tmp_path / "a.yaml").write_text("extends: c.yaml\n", encoding="utf-8")
    with pytest.raises(InputError, match="extends itself"):
        load_config(tmp_path / "c.yaml")


@pytest.mark.parametrize(("key", "value"), [("dtype", "fp8"), ("quantization", "int3")])
def test_unknown_formats_are_refused(tmp_path: Path, key: str, value: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"stage: verify\ntrain: []\ndev: []\n{key}: {value}\n", encoding="utf-8")
    with pytest.raises(InputError, match=f"setting '{key}': '{value}'; accepted:"):
        load_config(path)


# ---- what is said when the machine doesn't fit ----


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_4_bit_recipe_without_a_gpu_says_so_unless_the_cpu_is_asked_for() -> None:
    recipe = load_config(CONFIGS / "qwen3-8b/verify-24gb.yaml")
    with pytest.raises(VistaError, match=r"no GPU is visible to torch .*set: device: cpu"):
        place(recipe)
    recipe.device = "cuda:0"
    with pytest.raises(VistaError, match="no GPU is visible"):
        place(recipe)
    recipe.device = "cpu"
    assert place(recipe) == (torch.device("cpu"), torch.bfloat16)


def test_a_gpu_too_small_is_refused_with_what_to_use_instead() -> None:
    large = load_config(CONFIGS / "qwen3-8b/verify-80gb.yaml")
    with pytest.raises(VistaError, match=r"24\.0 GiB; the recipe was made for 70 GiB .*the -24gb recipe"):
        check_memory(24 * GIB, large)
    check_memory(80 * GIB, large)
    with pytest.raises(VistaError, match="a smaller token_budget"):
        check_memory(16 * GIB, load_config(CONFIGS / "qwen3-8b/verify-24gb.yaml"))


def test_a_sample_longer_than_the_base_is_refused_before_anything_is_cut() -> None:
    check_lengths([10, 20], 20)
    with pytest.raises(VistaError, match="no turn to train on"):
        check_lengths([], 20)
    with pytest.raises(VistaError, match=r"has 21 tokens; the base takes 20\. Nothing is cut"):
        check_lengths([10, 21], 20)


def test_a_base_without_a_chat_template_is_refused(tiny_base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bare"
    shutil.copytree(tiny_base, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(VistaError, match="no chat template"):
        open_base(str(folder))


def test_two_labels_that_begin_alike_are_refused(tiny_tokenizer: Any) -> None:
    encoder = ChatEncoder(tiny_tokenizer)
    with pytest.raises(VistaError, match="share a token"):
        encoder.label_ids(["Yes", "Yes"])


def test_processes_get_equally_many_batches_and_every_sample() -> None:
    from accelerate.data_loader import BatchSamplerShard

    lengths = [10, 20, 30, 40, 50]
    alone = TokenBudgetSampler(lengths, 50, seed=3)
    shared = TokenBudgetSampler(lengths, 50, seed=3, multiple=2)
    assert shared.batches()[: len(alone)] == alone.batches() and len(shared) % 2 == 0
    parts = [list(BatchSamplerShard(shared, 2, rank, even_batches=False)) for rank in (0, 1)]
    assert len(parts[0]) == len(parts[1]) == len(shared) // 2
    assert {i for part in parts for batch in part for i in batch} == set(range(5))
    shared.sampler.set_epoch(1)
    assert shared.epoch == 1


# ---- memory and hours on paper ----


@pytest.mark.parametrize("name", list(SHAPES))
def test_the_shapes_count_what_transformers_builds(name: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = SHAPES[name]
    kind = "qwen3" if "Qwen3" in name else "llama"
    config = AutoConfig.for_model(
        kind,
        hidden_size=shape.hidden,
        num_hidden_layers=2,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    two = Shape(**{**shape.__dict__, "layers": 2})
    assert two.parameters == sum(p.numel() for p in model.parameters())
    assert 8.0e9 < shape.parameters < 8.3e9


def test_memory_by_hand() -> None:
    shape = Shape("toy", 8, 2, 2, 1, 4, 16, 10, tied=False)
    # Linear maps: q 64, k 32, v 32, o 64, gate, up and down 128 each: 576 a layer.
    assert shape.linear_parameters == 1152 and shape.embedding_parameters == 160 and shape.norm_parameters == 40
    # Rank 2: (16 + 12 + 12 + 16 + 24 * 3) * 2 a layer.
    assert shape.lora_parameters(2) == 512
    # bf16: 4 * 8 + 2 * 8 + 2 * 4 + 4 * 16 = 120 numbers; fp32: 5 * 8 + 8 + 16 + 14 = 78.
    assert layer_bytes_per_token(shape, 2) == 2 * 120 + 4 * 78
    parts = memory(shape, Load(False, False, True, 2, tokens=30, sequence=10, scored=3))
    assert parts["weights"] == 2 * 1352 and parts["adapters"] == 8 * 512 and parts["optimiser"] == 8 * 512
    assert parts["activations"] == 30 * (2 * 8 * 2 + 552) and parts["attention mask"] == 600
    assert parts["logits"] == 300 and parts["dequantised"] == 0
    assert parts["total"] == pytest.approx(1.1 * sum(list(parts.values())[:7]) + 1.5 * GIB)
    four = memory(shape, Load(True, True, False, 2, tokens=30, sequence=10))
    assert four["weights"] == pytest.approx(1152 * (0.5 + 1 / 64 + 1 / 4096) + 2 * 200)
    assert four["activations"] == 30 * 2 * 552 and four["dequantised"] == 256


def test_hours_by_hand() -> None:
    shape = Shape("toy", 8, 2, 2, 1, 4, 16, 10, tied=False)
    assert (
        flops_per_token(shape, checkpointing=True) == 6 * 1152
        and flops_per_token(shape, checkpointing=False) == 4 * 1152
    )
    gpu = Gpu("x", 1, tflops=1e-9, share=0.5)  # 500 operations a second
    assert hours(shape, 1000, gpu, checkpointing=True) == pytest.approx(1000 * 6912 / 500 / 3600)


def test_a_folder_gives_its_shape_and_anything_else_is_refused(tiny_base: Path) -> None:
    shape = read_shape(str(tiny_base))
    assert (shape.hidden, shape.layers, shape.kv_heads, shape.tied) == (64, 2, 2, True)
    with pytest.raises(InputError, match="none of: Qwen/Qwen3-8B"):
        read_shape("somebody/else")


# ---- the proof: the same recipes, two random layers, 4 bits ----


@pytest.fixture(scope="module", params=MODELS)
def small(
    request: pytest.FixtureRequest, tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Path]:
    """Recipe folder, a two-layer model of its architecture, and a folder with one training file."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    root = tmp_path_factory.mktemp(request.param)
    sizes: dict[str, Any] = {
        "vocab_size": len(tiny_tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "initializer_range": 0.1,
        "tie_word_embeddings": False,
        "eos_token_id": tiny_tokenizer.eos_token_id,
        "pad_token_id": tiny_tokenizer.eos_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        qwen = request.param.startswith("qwen")
        model: Any = Qwen3ForCausalLM(Qwen3Config(**sizes)) if qwen else LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(root / "base")
    tiny_tokenizer.save_pretrained(root / "base")
    (root / "train.jsonl").write_text(
        "".join(json.dumps(CONVERSATION | {"id": f"mill-{n}"}) + "\n" for n in range(6)), encoding="utf-8"
    )
    return request.param, root / "base", root


def small_recipe(small: tuple[str, Path, Path], stage: str, **changes: Any) -> TrainConfig:
    """The 24 GB recipe with base, data and length of the run exchanged; everything else is the recipe's."""
    name, base, root = small
    overrides = {
        "base": str(base),
        "train": ["train.jsonl"],
        "dev": ["train.jsonl"],
        "data_roots": [str(root)],
        "dilute_share": 0.0,
        "device": "cpu",
        "dtype": "fp32",  # bf16 in software is too slow here
        "token_budget": 600,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "max_steps": 8,
        "threads": 1,
    }
    return load_config(CONFIGS / name / f"{stage}-24gb.yaml", overrides | changes)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["verify", "categorise"])
def test_labelling_in_4_bits_learns_and_loads_again(small: tuple[str, Path, Path], stage: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from peft import PeftModel

    recipe = small_recipe(small, stage)
    assert recipe.quantization == "nf4" and recipe.gradient_checkpointing and recipe.optim == "paged_adamw_8bit"
    report = classify.train(recipe, tmp_path / "run")
    logged = json.loads(next((tmp_path / "run").glob("checkpoint-*/trainer_state.json")).read_text(encoding="utf-8"))
    first = next(entry["loss"] for entry in logged["log_history"] if "loss" in entry)
    assert report["steps"] == 8 and report["train_loss"] < 1.1 * first

    device, dtype = place(recipe)
    encoder, _ = open_base(str(recipe.base))
    batch = classify.PackedCollator(0, dtype)(classify.build_training_samples(recipe, encoder))
    labels, rows, columns = (batch.pop(k) for k in ("labels", "read_rows", "read_columns"))

    def logits(adapter: bool) -> torch.Tensor:
        model, _ = load_base(str(recipe.base), dtype, recipe, device)
        assert model.model.layers[0].mlp.up_proj.weight.dtype == torch.uint8
        classify.use_label_rows(model, encoder.label_ids(list(encoder.label_words(stage).values())))
        loaded = PeftModel.from_pretrained(model, str(tmp_path / "run" / "adapter")) if adapter else model
        with torch.no_grad():
            return loaded.eval()(**batch).logits[rows, columns].float()

    before, after, again = logits(False), logits(True), logits(True)
    assert torch.equal(after, again)
    loss = torch.nn.functional.cross_entropy
    assert loss(after, labels) < 0.5 * loss(before, labels)


@pytest.mark.slow
def test_decompose_in_4_bits_learns(small: tuple[str, Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    report = decompose.train(small_recipe(small, "decompose", batch_size=2, max_steps=20), tmp_path / "run")
    logged = json.loads(next((tmp_path / "run").glob("checkpoint-*/trainer_state.json")).read_text(encoding="utf-8"))
    losses = [entry["loss"] for entry in logged["log_history"] if "loss" in entry]
    assert report["steps"] == 20 and losses[-1] < 0.5 * losses[0]  # means of five steps each
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_an_exported_adapter_of_a_4_bit_run_scores(small: tuple[str, Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    from training.export import export
    from vista_local.backends.transformers_backend import TransformersBackend
    from vista_local.prompts import Prompt
    from vista_local.stages import ClassifyRequest

    recipe = small_recipe(small, "verify", max_steps=2, gradient_accumulation_steps=1)
    report = classify.train(recipe, tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(json.dumps(run_record(recipe, report)), encoding="utf-8")
    manifest = export(recipe, tmp_path / "run", tmp_path / "set" / "verify", None)
    assert manifest.base_name == "base" and manifest.hyper_parameters["quantization"] == "nf4"
    assert "SmolLM2" not in (tmp_path / "set" / "verify" / "README.md").read_text(encoding="utf-8")
    backend = TransformersBackend(str(recipe.base), tmp_path / "set", device="cpu", stages=("verify",))
    (rows,) = backend.classify("verify", [ClassifyRequest(Prompt("s", "u Claim:"), ("a", "b"))])
    for row in rows:
        assert isinstance(row, list) and sum(torch.tensor(row).exp()) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_two_processes_train_one_adapter(small: tuple[str, Path, Path], tmp_path: Path) -> None:
    """`accelerate launch` as the README says it, on two processes of this CPU."""
    _, base, root = small
    settings = {
        "stage": "verify",
        "base": str(base),
        "train": ["train.jsonl"],
        "dev": ["train.jsonl"],
        "data_roots": [str(root)],
        "dilute_share": 0.0,
        "device": "cpu",
        "dtype": "fp32",
        "token_budget": 300,
        "epochs": 4,
        "learning_rate": 1e-2,
        "compile_layers": False,
        "threads": 1,
    }

    def trained(name: str, *launcher: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        from safetensors.torch import load_file

        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, *launcher, "-m", "training.train", "verify"]
        command += ["--config", str(recipe), "--out", str(tmp_path / name)]
        done = subprocess.run(command, cwd=CONFIGS.parent, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        record = json.loads((tmp_path / name / "run.json").read_text(encoding="utf-8"))
        return record, load_file(tmp_path / name / "adapter" / "adapter_model.safetensors")

    launcher = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1")
    alone, weights = trained("alone")
    shared, other = trained("shared", *launcher, "--mixed_precision", "no", "--dynamo_backend", "no")
    assert shared["steps"] == math.ceil(alone["steps"] / 2) > 1
    assert shared["train_loss"] < math.log(2) and weights.keys() == other.keys()
    assert all(torch.isfinite(tensor).all() for tensor in other.values())
    assert any(tensor.abs().max() > 0 for name, tensor in other.items() if "lora_B" in name)
