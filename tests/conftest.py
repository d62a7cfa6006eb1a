"""Models for tests: a tiny random base with three adapters, made here, and the real default base where it is.

torch and transformers are imported inside fixtures: tests of plain text start at once.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmark_files import ais, begin, fade, faithdial, native  # noqa: F401 - fixtures, for both test files of benchmarks
from hypothesis import settings
from tiny_model import CHATML, LIMIT, SPECIAL_TOKENS

settings.register_profile("vista-local", deadline=None)  # a busy machine isn't a failure
settings.load_profile("vista-local")

SENTENCES = (
    "The mill on the river was built in 1912 and burned down in 1921.",
    "Who built the old mill? I think that Anna Berg did, but I don't know.",
    "The assistant likes the river and would visit it in May.",
    "- The harbour has three piers.\n- The longest pier is 240 metres long.\n- None of them is open.",
    "User: Where is the lake?\nAssistant: It lies north of the town, at 600 metres.",
)


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """No test touches the user's cache, except the `model` tests, which read the default base in it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("model") is None:
            patch.setenv("VISTA_LOCAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def default_base() -> Path:
    """The folder of the real default base, for tests marked `model`."""
    from vista_local.base import resolve_base
    from vista_local.errors import VistaError

    try:
        return resolve_base(None)
    except VistaError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip("run: vista-local fetch")


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """Byte-level BPE with the default base's special tokens and chat form; label words are one token each."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from vista_local.chat import LABEL_WORD_CANDIDATES
    from vista_local.prompts import CATEGORISE_SYSTEM, DECOMPOSE_SYSTEM, VERIFY_SYSTEM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    label_words = [f"{words[0]}\n" * 50 for words in LABEL_WORD_CANDIDATES.values()]
    prompts = [DECOMPOSE_SYSTEM, VERIFY_SYSTEM, CATEGORISE_SYSTEM, "Earlier talk (no evidence):\nKnown facts:\nClaim:"]
    tokenizer.train_from_iterator([*label_words, *prompts, *SENTENCES, *SENTENCES], trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<|endoftext|>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
    )
    fast.chat_template = CHATML
    return fast


@pytest.fixture(scope="session")
def tiny_base(tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random Llama of two layers with grouped queries, fp32, at most `LIMIT` tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "tiny-base"
    end = tiny_tokenizer.eos_token_id
    config = LlamaConfig(
        vocab_size=len(tiny_tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LIMIT,
        initializer_range=0.1,
        tie_word_embeddings=True,
        bos_token_id=tiny_tokenizer.bos_token_id,
        eos_token_id=end,
        pad_token_id=end,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_adapters(tiny_base: Path, tiny_tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with random adapters of the three stages on `tiny_base`, with manifests. Copy it to change it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from vista_local.adapters import STAGES, AdapterManifest, base_sha256, sha256_file, write_manifest
    from vista_local.chat import STAGE_LABELS, ChatEncoder
    from vista_local.prompts import PROMPT_VERSION

    root = tmp_path_factory.mktemp("adapters")
    encoder = ChatEncoder(tiny_tokenizer)
    for number, stage in enumerate(STAGES):
        lora = LoraConfig(
            r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
        )
        base = AutoModelForCausalLM.from_pretrained(tiny_base, dtype=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number + 1)
            model = get_peft_model(base, lora)
        folder = root / stage
        model.save_pretrained(folder, save_embedding_layers=False)
        manifest = AdapterManifest(
            stage=stage,
            base_name=tiny_base.name,
            base_sha256=base_sha256(tiny_base),
            prompt_version=PROMPT_VERSION,
            label_words=encoder.label_words(stage) if stage in STAGE_LABELS else {},
            max_reference_tokens=200,
            chunk_tokens=100 if stage == "decompose" else 0,
            adapter_sha256=sha256_file(folder / "adapter_model.safetensors"),
        )
        write_manifest(folder, manifest)
    return root


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes text, bytes, or values as JSON Lines; gives the path."""

    def write(*records: Any, name: str = "chat.jsonl") -> Path:
        path = tmp_path / name
        parts = [r if isinstance(r, bytes) else (r if isinstance(r, str) else json.dumps(r)).encode() for r in records]
        path.write_bytes(b"\n".join(parts))
        return path

    return write


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the teacher's file `train.jsonl`, for tests of training."""
    from training_samples import CONVERSATIONS

    root = tmp_path_factory.mktemp("data")
    (root / "train.jsonl").write_text("".join(json.dumps(c) + "\n" for c in CONVERSATIONS), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def turns(data_root: Path) -> Any:
    """The teacher's turns in `data_root`."""
    from training.data import load_teacher_turns

    return load_teacher_turns(data_root / "train.jsonl")


@pytest.fixture(scope="session")
def encoder(tiny_tokenizer: Any) -> Any:
    """Encodes prompts for the tiny base."""
    from vista_local.chat import ChatEncoder

    return ChatEncoder(tiny_tokenizer)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A scripted endpoint that labels by rule; waiting between tries is short."""
    from fake_endpoint import serving

    from vista_local import endpoint

    monkeypatch.setattr(endpoint, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(endpoint, "FIRST_WAIT_LIMITED", 0.01)
    with serving() as running:
        yield running


@pytest.fixture
def connect(server: Any) -> Iterator[Any]:
    """Makes an `Endpoint` on the server with the given settings."""
    from vista_local.endpoint import Endpoint
    from vista_local.limits import Budget
    from vista_local.teacher import TeacherConfig

    made: list[Endpoint] = []

    def make(cache: Any = None, max_cost: float | None = None, **settings: Any) -> Endpoint:
        config = TeacherConfig(**({"base_url": server.url, "model": "scripted", "timeout": 20} | settings))
        made.append(Endpoint(config, cache, Budget(max_cost)))
        return made[-1]

    yield make
    for each in made:
        each.close()
