"""An adapter folder is what its manifest says, or it is refused."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vista_local.adapters import (
    MANIFEST_NAME,
    AdapterManifest,
    Calibration,
    base_sha256,
    read_manifest,
    sha256_file,
    write_manifest,
)
from vista_local.backends.transformers_backend import TransformersBackend
from vista_local.errors import VistaError

FULL = AdapterManifest(
    stage="verify",
    base_name="base",
    base_sha256="ab" * 32,
    prompt_version="1",
    label_words={"VERIFIED": "Yes", "UNVERIFIABLE": "No"},
    calibration=Calibration(1.25, {"VERIFIED": 0.0, "UNVERIFIABLE": -0.5}),
    max_reference_tokens=400,
    data_sha256={"written/train.jsonl": "cd" * 32},
    hyper_parameters={"lora_r": 16, "init_from": None},
    seed=17,
    hardware="a café’s machine",
    training={"minutes": 1.5},
    metrics={"accuracy": 0.8},
    software={"torch": "2"},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A verify adapter's folder: weights and a manifest with every field filled."""
    save_file({"w": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    digest = sha256_file(tmp_path / "adapter_model.safetensors")
    write_manifest(tmp_path, dataclasses.replace(FULL, adapter_sha256=digest))
    return tmp_path


def edit(folder: Path, **changes: Any) -> None:
    """Change fields of a manifest; `None` deletes one."""
    data = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8")) | changes
    data = {name: value for name, value in data.items() if value is not None}
    (folder / MANIFEST_NAME).write_text(json.dumps(data), encoding="utf-8")


def test_round_trip(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert manifest == dataclasses.replace(FULL, adapter_sha256=manifest.adapter_sha256)
    before = (folder / MANIFEST_NAME).read_bytes()
    write_manifest(folder, manifest)
    assert (folder / MANIFEST_NAME).read_bytes() == before
    assert "café’s" in before.decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour"),
        ({"base_sha256": None}, "base_sha256"),
        ({"calibration": {"heat": 1.0}}, "heat"),
        ({"schema": "vista-local-adapter/99"}, "vista-local-adapter/99.*accepted: vista-local-adapter/1"),
        ({"schema": None}, "schema None"),
        ({"stage": "judge"}, "stage 'judge'; accepted: decompose, verify, categorise"),
        ({"adapter_sha256": "00" * 32}, "but its manifest says 0000"),
        ({"max_reference_tokens": None}, "field 'max_reference_tokens': 0; accepted: a number of tokens from 1 on"),
        ({"max_reference_tokens": "x"}, "field 'max_reference_tokens': 'x'"),
        ({"stage": "decompose"}, "field 'chunk_tokens': 0"),
        ({"max_reference_tokens": True}, "field 'max_reference_tokens': True"),
        ({"max_reference_tokens": -5}, "field 'max_reference_tokens': -5"),
        ({"stage": "categorise", "max_reference_tokens": 9.5}, "field 'max_reference_tokens': 9.5"),
        ({"stage": "decompose", "chunk_tokens": "40"}, "field 'chunk_tokens': '40'"),
        ({"label_words": ["Yes"]}, "field 'label_words'"),
        ({"label_words": {"VERIFIED": 1}}, "field 'label_words'.*accepted: an object of words"),
        ({"label_words": {"VERIFIED": "\ud800"}}, "field 'label_words'"),
        ({"calibration": {"temperature": 0}}, "field 'calibration.temperature': 0; accepted: a number above 0"),
        ({"calibration": {"temperature": math.nan}}, "field 'calibration.temperature': nan"),
        ({"calibration": {"temperature": -1.5}}, "field 'calibration.temperature': -1.5"),
        ({"calibration": {"temperature": True}}, "field 'calibration.temperature': True"),
        ({"calibration": {"temperature": "x"}}, "field 'calibration.temperature': 'x'"),
        ({"calibration": {"temperature": 10**400}}, "field 'calibration.temperature': 1000"),
        ({"calibration": {"bias": {"VERIFIED": math.inf}}}, "field 'calibration.bias'"),
        ({"calibration": {"bias": None}}, "field 'calibration.bias': None"),
        ({"calibration": {"bias": {"VERIFIED": "0"}}}, "field 'calibration.bias'"),
    ],
)
def test_bad_manifests_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder, **changes)
    with pytest.raises(VistaError, match=message):
        read_manifest(folder)


@pytest.mark.parametrize("field", ["label_words", "calibration", "max_reference_tokens"])
def test_null_in_a_manifest_is_refused(folder: Path, field: str) -> None:
    data = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    (folder / MANIFEST_NAME).write_text(json.dumps(data | {field: None}), encoding="utf-8")
    with pytest.raises(VistaError, match=MANIFEST_NAME):
        read_manifest(folder)


def test_each_stage_needs_its_own_limit_only(folder: Path) -> None:
    assert read_manifest(folder).chunk_tokens == 0
    edit(folder, stage="decompose", chunk_tokens=40, max_reference_tokens=0, label_words={})
    assert read_manifest(folder).chunk_tokens == 40


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_that_may_not_be_read_is_named(folder: Path) -> None:
    folder.chmod(0)
    try:
        with pytest.raises(VistaError, match=rf"{MANIFEST_NAME}: not a readable manifest: .*Permission denied"):
            read_manifest(folder)
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_not_a_manifest(folder: Path, text: str) -> None:
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(VistaError, match=MANIFEST_NAME):
        read_manifest(folder)


def test_weights_that_cannot_be_read_are_named(folder: Path) -> None:
    weights = folder / "adapter_model.safetensors"
    (folder / "index.safetensors").symlink_to(folder / "nowhere")
    with pytest.raises(VistaError, match=r"index\.safetensors: cannot be read: No such file"):
        base_sha256(folder)
    assert sha256_file(weights) == read_manifest(folder).adapter_sha256


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(VistaError, match="no vista-local adapter folder"):
        read_manifest(tmp_path)


def test_changed_weights_are_refused(folder: Path) -> None:
    said = read_manifest(folder).adapter_sha256
    save_file({"w": torch.zeros(2)}, folder / "adapter_model.safetensors")
    found = sha256_file(folder / "adapter_model.safetensors")
    with pytest.raises(VistaError, match=f"{found}.*{said}"):
        read_manifest(folder)


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(VistaError, match=r"weights only as pickles \(adapter_model\.bin\)"):
        read_manifest(folder)


# ---- what belongs together ----


@pytest.fixture
def adapters(tiny_adapters: Path, tmp_path: Path) -> Path:
    """A copy of the three tiny adapters to spoil."""
    return shutil.copytree(tiny_adapters, tmp_path / "adapters")


def test_foreign_base_is_refused_with_both_hashes(tiny_base: Path, adapters: Path) -> None:
    foreign = "ee" * 32
    edit(adapters / "verify", base_sha256=foreign)
    with pytest.raises(VistaError, match=rf"verify.*{foreign}.*{base_sha256(tiny_base)}"):
        TransformersBackend(tiny_base, adapters)


def test_other_prompt_version_is_refused(tiny_base: Path, adapters: Path) -> None:
    edit(adapters / "categorise", prompt_version="0.9")
    with pytest.raises(VistaError, match=r"categorise: trained with prompt version 0\.9"):
        TransformersBackend(tiny_base, adapters)


def test_wrong_stage_is_refused(tiny_base: Path, adapters: Path) -> None:
    shutil.rmtree(adapters / "categorise")
    shutil.copytree(adapters / "verify", adapters / "categorise")
    with pytest.raises(VistaError, match="categorise: holds an adapter of stage 'verify'"):
        TransformersBackend(tiny_base, adapters)


def test_labels_in_another_order_are_refused(tiny_base: Path, adapters: Path) -> None:
    edit(adapters / "verify", label_words={"UNVERIFIABLE": "No", "VERIFIED": "Yes"})
    with pytest.raises(VistaError, match="label words for"):
        TransformersBackend(tiny_base, adapters)


def test_missing_adapter_is_refused(tiny_base: Path, adapters: Path) -> None:
    shutil.rmtree(adapters / "decompose")
    with pytest.raises(VistaError, match="decompose: no manifest"):
        TransformersBackend(tiny_base, adapters)


def test_hash_of_a_base_in_shards(tmp_path: Path) -> None:
    with pytest.raises(VistaError, match=r"no \.safetensors weights"):
        base_sha256(tmp_path)
    save_file({"a": torch.ones(1)}, tmp_path / "model-1.safetensors")
    alone = base_sha256(tmp_path)
    assert alone == sha256_file(tmp_path / "model-1.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "model-2.safetensors")
    both = base_sha256(tmp_path)
    save_file({"b": torch.zeros(1)}, tmp_path / "model-2.safetensors")
    assert len({alone, both, base_sha256(tmp_path)}) == 3
