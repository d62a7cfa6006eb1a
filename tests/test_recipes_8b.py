"""The 8B recipes: what they say, what they need, and a proof on two layers of the same architectures in 4 bits."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the [train] extra")

import torch
from safetensors.torch import load_file, save_file
from training_samples import CONVERSATIONS

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
from training.common import TrainConfig, add_lora, load_base, load_config, open_base, run_record
from training.hardware import check_lengths, check_memory, place, trainer_options
from vista_local.chat import ChatEncoder
from vista_local.errors import InputError, VistaError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
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


def test_one_process_with_several_gpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    recipe = TrainConfig(stage="verify", train=[], dev=[], dtype="bf16")
    for device in (None, "cuda", "cuda:1"):  # transformers' Trainer spreads over all, whatever the recipe says
        recipe.device = device
        with pytest.raises(VistaError, match=r"4 GPUs .*accelerate launch --num_processes 4 .*CUDA_VISIBLE_DEVICES=0"):
            place(recipe)
    recipe.device = "cpu"
    assert place(recipe)[0].type == "cpu"
    recipe.device = None
    with monkeypatch.context() as patch:
        patch.setenv("WORLD_SIZE", "4")
        assert place(recipe) == (torch.device("cuda"), torch.bfloat16)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert place(recipe) == (torch.device("cuda"), torch.bfloat16)


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


def test_a_damaged_base_is_one_sentence(tiny_base: Path, tmp_path: Path) -> None:
    def copied(name: str) -> Path:
        return Path(shutil.copytree(tiny_base, tmp_path / name))

    folder = copied("cut weights")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(VistaError, match="cut weights: the base model can't be read: SafetensorError"):
        load_base(str(folder), torch.float32)

    folder = copied("odd config")
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}), encoding="utf-8")  # reads any length
    with pytest.raises(VistaError, match=r"odd config: how many tokens it takes can't be read: AttributeError"):
        open_base(str(folder))
    (folder / "config.json").write_text(json.dumps(settings | {"hidden_size": 65}), encoding="utf-8")
    with pytest.raises(VistaError, match="odd config: the base model can't be read: "):
        load_base(str(folder), torch.float32)

    folder = copied("cut tokenizer")
    (folder / "tokenizer.json").write_text('{"model": {', encoding="utf-8")
    with pytest.raises(VistaError, match="cut tokenizer: the tokenizer can't be read: "):
        open_base(str(folder))


def test_an_adapter_of_another_base_is_one_sentence(tiny_base: Path, tiny_adapters: Path, tmp_path: Path) -> None:
    start = Path(shutil.copytree(tiny_adapters / "verify", tmp_path / "adapter"))
    recipe = TrainConfig(stage="categorise", train=[], dev=[], init_from=str(start))
    tensors = {
        name: tensor[..., :-1].contiguous() for name, tensor in load_file(start / "adapter_model.safetensors").items()
    }
    save_file(tensors, start / "adapter_model.safetensors")
    model, _ = load_base(str(tiny_base), torch.float32)
    with pytest.raises(VistaError, match=r"init_from .*adapter: an adapter for this base can't be read: RuntimeError"):
        add_lora(model, recipe)


def test_label_words_without_a_token_of_their_own_are_refused(tiny_tokenizer: Any) -> None:
    encoder = ChatEncoder(tiny_tokenizer)
    (yes,) = encoder.plain("Yes")
    assert encoder.plain("Yesterday")[0] == yes  # the first tokens can't tell these two apart
    for words in (["Yes", "Yesterday"], ["Yesterday", "Yes"], ["Yes", "Zeppelin"]):
        long = next(word for word in words if word != "Yes")
        with pytest.raises(VistaError, match=rf"label word '{long}' is \d+ tokens of this base, not one"):
            encoder.label_ids(words)
    assert encoder.label_ids(["Yes", "No"]) == [yes, *encoder.plain("No")]


def test_two_words_that_a_tokenizer_spells_alike_are_refused(tiny_tokenizer: Any) -> None:
    from tokenizers import normalizers

    lower = copy.deepcopy(tiny_tokenizer)
    lower.backend_tokenizer.normalizer = normalizers.Lowercase()
    encoder = ChatEncoder(lower)
    with pytest.raises(VistaError, match=r"two label words share a token of this base: \['A', 'a'\]"):
        encoder.label_ids(["A", "a"])
    assert len(ChatEncoder(tiny_tokenizer).label_ids(["A", "a"])) == 2


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

    recipe = small_recipe(small, stage, max_steps=16)
    assert recipe.quantization == "nf4" and recipe.gradient_checkpointing and recipe.optim == "paged_adamw_8bit"
    report = classify.train(recipe, tmp_path / "run")
    logged = json.loads(next((tmp_path / "run").glob("checkpoint-*/trainer_state.json")).read_text(encoding="utf-8"))
    first = next(entry["loss"] for entry in logged["log_history"] if "loss" in entry)
    assert report["steps"] == 16 and report["train_loss"] < first

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
@pytest.mark.parametrize("small", MODELS[:1], indirect=True)
def test_two_processes_train_as_one_that_adds_up_two_batches(small: tuple[str, Path, Path], tmp_path: Path) -> None:
    """`accelerate launch` on two processes of this CPU."""
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(c) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    settings: dict[str, Any] = {
        "stage": "verify",
        "base": str(small[1]),
        "train": ["train.jsonl"],
        "dev": ["train.jsonl"],
        "data_roots": [str(tmp_path)],
        "dilute_share": 0.0,
        "device": "cpu",
        "dtype": "fp32",
        "token_budget": 1,  # each turn is a batch of its own
        "epochs": 5,
        "learning_rate": 1e-2,
        "compile_layers": False,
        "threads": 1,
    }
    plain = TrainConfig(**settings)
    encoder, _ = open_base(settings["base"])
    lengths = [len(s.sequence) for s in classify.build_training_samples(plain, encoder)]
    batches = TokenBudgetSampler(lengths, settings["token_budget"], seed=17).batches()
    assert len(batches) == 6  # an even number: no batch comes twice, and no step is made of one

    # Both start from the same numbers: a new adapter's are drawn anew in each run.
    start = tmp_path / "start" / "adapter"
    add_lora(load_base(settings["base"], torch.float32)[0], plain).save_pretrained(start, save_embedding_layers=False)
    settings["init_from"] = str(start)

    def trained(name: str, *launcher: str, **changes: Any) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
        recipe, out = tmp_path / f"{name}.yaml", tmp_path / name
        recipe.write_text(json.dumps(settings | changes), encoding="utf-8")  # JSON is YAML
        command = [sys.executable, *launcher, "-m", "training.train", "verify"]
        command += ["--config", str(recipe), "--out", str(out)]
        done = subprocess.run(command, cwd=CONFIGS.parent, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("step 15/15") == done.stdout.count('"steps"') == 1  # the first process alone prints
        logged = json.loads((out / "checkpoint-15" / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
        weights = load_file(out / "adapter" / ADAPTER_WEIGHTS)
        return [entry for entry in logged if "loss" in entry], weights

    launch = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
    alone, weights = trained("alone", gradient_accumulation_steps=2)
    shared, others = trained("shared", *launch)
    assert [e["step"] for e in shared] == [e["step"] for e in alone] == [5, 10, 15]
    for key in ("loss", "grad_norm"):
        assert [e[key] for e in shared] == pytest.approx([e[key] for e in alone], rel=1e-4)
    assert others.keys() == weights.keys()
    moved = {n: float((t - weights[n]).abs().max()) for n, t in load_file(start / ADAPTER_WEIGHTS).items()}
    for name, tensor in others.items():  # measured: equal; without averaging they differ by as much as they moved
        assert moved[name] > 0.01
        torch.testing.assert_close(tensor, weights[name], atol=1e-4, rtol=0)
