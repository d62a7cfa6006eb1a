"""What an adapter says of itself: the manifest beside its weights, and its checks.

Code reads the manifest; nothing that it holds (label words, temperatures, limits, hashes) is typed
in anywhere else.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vista_local.errors import VistaError

MANIFEST_NAME = "manifest.json"
MANIFEST_SCHEMA = "vista-local-adapter/1"
STAGES = ("decompose", "verify", "categorise")


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def base_sha256(folder: str | Path) -> str:
    """Identity of a base: the hash of its safetensors file, or of all shards' hashes in name order.

    Raises:
        VistaError: the folder holds no safetensors weights.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise VistaError(f"{folder}: no .safetensors weights in this folder")
    hashes = [sha256_file(f) for f in files]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()


@dataclass(frozen=True)
class Calibration:
    """Temperature and a bias per label, fitted on dev data: p = softmax(log p / T + bias)."""

    temperature: float = 1.0
    bias: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class AdapterManifest:
    """Everything a loader or a reader needs to know of one adapter.

    `max_reference_tokens` is the longest reference seen in training: longer ones are windowed.
    `chunk_tokens` (decompose) is the longest turn that is decomposed whole.
    """

    stage: str
    base_name: str
    base_sha256: str
    prompt_version: str
    label_words: dict[str, str] = field(default_factory=dict)
    calibration: Calibration = field(default_factory=Calibration)
    max_reference_tokens: int = 0
    chunk_tokens: int = 0
    adapter_sha256: str = ""
    data_sha256: dict[str, str] = field(default_factory=dict)
    hyper_parameters: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    hardware: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)
    schema: str = MANIFEST_SCHEMA


def write_manifest(folder: str | Path, manifest: AdapterManifest) -> None:
    """Write the manifest beside the weights."""
    text = json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n"
    (Path(folder) / MANIFEST_NAME).write_text(text, encoding="utf-8")


def read_manifest(folder: str | Path) -> AdapterManifest:
    """Read and check the manifest of an adapter folder.

    Raises:
        VistaError: there is none, it is no JSON, a field is unknown or missing, the weights differ
            from its hash, or the folder holds weights in a format that can run code.
    """
    path = Path(folder) / MANIFEST_NAME
    if not path.is_file():
        raise VistaError(f"{folder}: no {MANIFEST_NAME}; this is no vista-local adapter folder")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("schema") != MANIFEST_SCHEMA:
            raise VistaError(f"{path}: schema {data.get('schema')!r}; accepted: {MANIFEST_SCHEMA}")
        data["calibration"] = Calibration(**data.get("calibration", {}))
        manifest = AdapterManifest(**data)
    except (ValueError, TypeError, AttributeError) as error:
        raise VistaError(f"{path}: not a readable manifest: {error}") from error
    if manifest.stage not in STAGES:
        raise VistaError(f"{path}: stage {manifest.stage!r}; accepted: {', '.join(STAGES)}")
    weights = Path(folder) / "adapter_model.safetensors"
    if not weights.is_file():
        raise VistaError(f"{folder}: no adapter_model.safetensors (other weight formats are not read)")
    found = sha256_file(weights)
    if found != manifest.adapter_sha256:
        raise VistaError(f"{weights}: SHA-256 {found}, but its manifest says {manifest.adapter_sha256}")
    return manifest
