"""Weights are safetensors only, and nothing in a model's or an adapter's folder is ever run."""

from __future__ import annotations

import json
import math
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from vista_local.adapters import PICKLES, read_manifest, refuse_remote_code, safetensors_files, sha256_file
from vista_local.base import resolve_base
from vista_local.cli import app
from vista_local.errors import VistaError
from vista_local.prompts import Prompt
from vista_local.stages import ClassifyRequest

PACKAGES = [Path(__file__).parent.parent / name for name in ("vista_local", "training")]


class Bomb:
    """Unpickling it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def plant(folder: Path, mark: Path) -> None:
    """Pickle bombs under every name that a loader might look for, plain and in torch's zip form."""
    names = ["pytorch_model.bin", "adapter_model.bin", "model.pt", "weights.pth", "optimizer.ckpt", "training_args.bin"]
    for name in names:
        (folder / name).write_bytes(pickle.dumps(Bomb(mark)))
    with zipfile.ZipFile(folder / "tokenizer.pkl", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(mark)))


def write_json(path: Path, **fields: Any) -> None:
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    path.write_text(json.dumps(data | fields), encoding="utf-8")


def write_code(folder: Path, mark: Path) -> None:
    (folder / "modeling_evil.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n", encoding="utf-8")


def test_the_bomb_is_one(tmp_path: Path) -> None:
    plant(tmp_path, tmp_path / "mark")
    pickle.loads((tmp_path / "adapter_model.bin").read_bytes())
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "model.ckpt", "model.pkl"])
def test_a_base_of_pickles_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for refuse in (safetensors_files, lambda folder: resolve_base(str(folder))):
        with pytest.raises(VistaError, match=rf"only as pickles \({re.escape(name)}\).*accepted: \.safetensors"):
            refuse(tmp_path)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("config.json", "auto_map"),
        ("tokenizer_config.json", "auto_map"),
        ("generation_config.json", "auto_map"),
        ("adapter_config.json", "auto_mapping"),
    ],
)
def test_a_folder_that_names_code_is_refused(tmp_path: Path, name: str, field: str) -> None:
    write_json(tmp_path / name, **{field: {"AutoModelForCausalLM": "modeling_evil.Model"}})
    with pytest.raises(
        VistaError, match=rf"{name}: field '{field}' asks for code .* vista-local runs none: use a model"
    ):
        refuse_remote_code(tmp_path)
    write_json(tmp_path / name, **{field: None})
    refuse_remote_code(tmp_path)


@pytest.mark.parametrize("text", ["{", "", "\ud800", '{"a":' * 100_000])
def test_an_unreadable_configuration_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(VistaError, match=r"config\.json: not readable as JSON"):
        refuse_remote_code(tmp_path)


def test_no_code_of_the_project_asks_for_foreign_code_or_reads_pickles() -> None:
    forbidden = re.compile(
        r"trust_remote_code\s*=\s*(?!False)|weights_only\s*=\s*False|torch\.load\(|pickle\.loads?\(|use_safetensors\s*=\s*False"
    )
    found = [
        f"{path.name}: {match.group()}"
        for package in PACKAGES
        for path in package.rglob("*.py")
        for match in forbidden.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []


# ---- folders that load, with traps in them


@pytest.fixture
def folders(tiny_base: Path, tiny_adapters: Path, tmp_path: Path) -> tuple[Path, Path]:
    return shutil.copytree(tiny_base, tmp_path / "base"), shutil.copytree(tiny_adapters, tmp_path / "adapters")


def load(base: Path, adapters: Path) -> Any:
    from vista_local.backends.transformers_backend import TransformersBackend

    return TransformersBackend(base, adapters, device="cpu")


def test_bombs_beside_the_weights_are_never_read(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapters = folders
    mark = tmp_path / "mark"
    for folder in (base, *adapters.iterdir()):
        plant(folder, mark)
        write_code(folder, mark)
    assert load(base, adapters).count("mill") > 0
    assert not mark.exists()


def test_bombs_in_place_of_the_weights_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapters = folders
    mark = tmp_path / "mark"
    plant(adapters / "verify", mark)
    (adapters / "verify" / "adapter_model.safetensors").unlink()
    with pytest.raises(VistaError, match=r"verify: weights only as pickles \(adapter_model\.bin"):
        load(base, adapters)
    plant(base, mark)
    for path in base.glob("*.safetensors"):
        path.unlink()
    shutil.copytree(folders[1] / "decompose", adapters / "verify", dirs_exist_ok=True)
    with pytest.raises(VistaError, match="weights only as pickles"):
        load(base, adapters)
    assert not mark.exists()


def test_a_pickle_named_safetensors_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapters = folders
    mark = tmp_path / "mark"
    weights = adapters / "verify" / "adapter_model.safetensors"
    weights.write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(VistaError, match=r"SHA-256 .* but its manifest says .*get the adapter again"):
        load(base, adapters)
    write_json(adapters / "verify" / "manifest.json", adapter_sha256=sha256_file(weights))
    with pytest.raises(VistaError, match="the adapters don't fit this base: "):
        load(base, adapters)
    assert not mark.exists()


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_base_that_names_code_is_refused_before_it_is_loaded(
    folders: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    base, adapters = folders
    write_code(base, tmp_path / "mark")
    write_json(base / name, auto_map={"AutoModelForCausalLM": "modeling_evil.Model", "AutoTokenizer": ["x.Y", None]})
    with pytest.raises(VistaError, match="asks for code from outside to be run"):
        load(base, adapters)
    assert not (tmp_path / "mark").exists()


def test_damaged_and_foreign_models_are_one_sentence(folders: tuple[Path, Path], tmp_path: Path) -> None:
    base, adapters = folders
    manifest = read_manifest(adapters / "verify")

    def refused(message: str) -> None:
        with pytest.raises(VistaError, match=message) as caught:
            load(base, adapters)
        assert len(str(caught.value).splitlines()) == 1

    config = (adapters / "verify" / "adapter_config.json").read_text(encoding="utf-8")
    for broken in ("{", "{}", '{"peft_type": "NO_SUCH"}', config.replace('"r": 4', '"r": 8')):
        (adapters / "verify" / "adapter_config.json").write_text(broken, encoding="utf-8")
        refused("adapter")
    (adapters / "verify" / "adapter_config.json").unlink()
    refused("adapter")
    (adapters / "verify" / "adapter_config.json").write_text(config, encoding="utf-8")
    config = (base / "config.json").read_text(encoding="utf-8")
    for broken in ("[]", '{"model_type": "no-such-model"}', config.replace('"hidden_size": 64', '"hidden_size": 32')):
        (base / "config.json").write_text(broken, encoding="utf-8")
        refused(r"base|tokenizer")
    (base / "config.json").write_text(config, encoding="utf-8")
    tokenizer = (base / "tokenizer.json").read_text(encoding="utf-8")
    for broken in ("{", json.dumps(json.loads(tokenizer) | {"model": None})):
        (base / "tokenizer.json").write_text(broken, encoding="utf-8")
        refused("the tokenizer can't be read")
    (base / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes()[:-100])
    refused(f"trained on a base with SHA-256 {manifest.base_sha256}")


CHAT = {
    "id": "c",
    "turns": [{"role": "assistant", "text": "In 1931.", "reference": "In 1931.", "claims": ["It was in 1931."]}],
}


def score(base: Path, adapters: Path) -> tuple[Result, Path]:
    """The result of the command `score` with these models, and its output file."""
    source, out = base.parent / "in.jsonl", base.parent / "out.jsonl"
    source.write_text("".join(json.dumps(CHAT | {"id": name}) + "\n" for name in "ab"), encoding="utf-8")
    options = ["--given-claims", "--base", str(base), "--adapters", str(adapters), "--device", "cpu"]
    return CliRunner().invoke(app, ["score", str(source), "-o", str(out), *options]), out


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("base/config.json", {"hidden_size": "x"}, "base: the tokenizer can't be read: StrictDataclass"),
        ("base/config.json", {"num_attention_heads": 0}, "base: the tokenizer can't be read: ZeroDivisionError"),
        ("base/config.json", {"pad_token_id": 10**9}, "base: the base model can't be read: AssertionError"),
        (
            "base/config.json",
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "base: the base model can't be read: ImportError",
        ),
        (
            "adapters/decompose/adapter_config.json",
            {"megatron_config": {"a": 1}},
            "adapters: the adapters don't fit this base: ModuleNotFoundError",
        ),
        ("adapters/verify/manifest.json", {"label_words": None}, "manifest.json: field 'label_words': None"),
        (
            "adapters/categorise/manifest.json",
            {"calibration": {"temperature": 0}},
            "manifest.json: field 'calibration.temperature': 0",
        ),
        (
            "adapters/verify/manifest.json",
            {"max_reference_tokens": "x"},
            "manifest.json: field 'max_reference_tokens': 'x'",
        ),
        ("adapters/decompose/manifest.json", {"chunk_tokens": 0}, "manifest.json: field 'chunk_tokens': 0"),
    ],
)
def test_damaged_model_files_are_one_sentence_of_the_command(
    folders: tuple[Path, Path], name: str, changes: dict[str, Any], message: str
) -> None:
    base, adapters = folders
    write_json(base.parent / name, **changes)
    result, out = score(base, adapters)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert message in line
    assert not out.exists()


@pytest.mark.parametrize("name", ["base/model.safetensors", "adapters/verify/adapter_model.safetensors"])
def test_links_to_weights_that_are_gone_are_one_sentence_of_the_command(folders: tuple[Path, Path], name: str) -> None:
    base, adapters = folders
    path = base.parent / name
    path.unlink()
    path.symlink_to(base.parent / "gone")
    result, _ = score(base, adapters)
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.exception
    assert str(path.parent) in " ".join(result.stderr.split())


def test_a_chat_template_that_cannot_be_read_is_one_sentence(folders: tuple[Path, Path]) -> None:
    base, adapters = folders
    (base / "chat_template.jinja").write_text("{% for %}", encoding="utf-8")
    with pytest.raises(VistaError, match="the tokenizer's chat template can't be used: TemplateSyntaxError"):
        load(base, adapters)


@pytest.mark.parametrize("stage", ["verify", "categorise"])
def test_weights_that_are_no_numbers_fail_a_conversation(folders: tuple[Path, Path], stage: str) -> None:
    base, adapters = folders
    spoil(adapters / stage)
    # Claims that verify supports never reach categorise.
    write_json(adapters / "verify" / "manifest.json", calibration={"bias": {"UNVERIFIABLE": 100.0}})
    result, out = score(base, adapters)
    assert result.exit_code == 3, result.output

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["a", "b"]
    for line in lines:
        assert f"the {stage} adapter gives no number for its labels" in line["error"]
        assert [c["label"] for c in line["turns"][0]["claims"]] == [None]


def test_a_calibration_without_result_gives_no_labels(folders: tuple[Path, Path]) -> None:
    base, adapters = folders
    write_json(adapters / "verify" / "manifest.json", calibration={"bias": {"VERIFIED": 1e300}})
    for ask in (load(base, adapters).classify, load(base, adapters).classify_alone):
        with pytest.raises(ValueError, match="the verify adapter gives no number for its labels"):
            ask("verify", [ClassifyRequest(Prompt("s", "u Claim:"), ("a claim",))])


def spoil(adapter: Path) -> None:
    """NaN for every weight, with the right hash in the manifest."""
    path = adapter / "adapter_model.safetensors"
    save_file({name: torch.full_like(w, math.nan) for name, w in load_file(path).items()}, path)
    write_json(adapter / "manifest.json", adapter_sha256=sha256_file(path))


def test_weights_that_are_no_numbers_give_no_labels(folders: tuple[Path, Path]) -> None:
    base, adapters = folders
    spoil(adapters / "categorise")
    with pytest.raises(ValueError, match="the categorise adapter gives no number for its labels"):
        load(base, adapters).classify("categorise", [ClassifyRequest(Prompt("s", "u Claim:"), ("a claim",))])


def test_every_pickle_format_is_named() -> None:
    assert set(PICKLES) >= {"*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl"}
