"""What an adapter says of itself: the manifest beside its weights, and its checks.

Code reads the manifest; nothing that it holds (label words, temperatures, limits, hashes) is typed
in anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vista_local.errors import VistaError

MANIFEST_NAME = "manifest.json"
MANIFEST_SCHEMA = "vista-local-adapter/1"
STAGES = ("decompose", "verify", "categorise")

#: Formats of weights that can run code when read.
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
#: Files that can name code to load a model, a tokenizer or an adapter with.
CODE_CARRIERS = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "adapter_config.json",
)


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex.

    Raises:
        VistaError: it can't be read.
    """
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise VistaError(f"{path}: cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def safetensors_files(folder: str | Path) -> list[Path]:
    """The weight files of a folder, by name; pickles beside them are never opened.

    Raises:
        VistaError: there are none; pickles are named, where those are all there is.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for pattern in PICKLES for path in Path(folder).glob(pattern))
        if pickles:
            raise VistaError(
                f"{folder}: weights only as pickles ({', '.join(pickles[:3])}), which can run code when read; "
                "accepted: .safetensors"
            )
        raise VistaError(f"{folder}: no .safetensors weights in this folder")
    return files


def refuse_remote_code(folder: str | Path) -> None:
    """Refuse a model folder whose configuration names Python code of its own to load it with.

    Raises:
        VistaError: it does, or a configuration file can't be read.
    """
    for name in CODE_CARRIERS:
        path = Path(folder) / name
        if not path.is_file():
            continue
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise VistaError(f"{path}: not readable as JSON: {error}") from error
        if isinstance(data, dict) and (field := next((f for f in ("auto_map", "auto_mapping") if data.get(f)), None)):
            raise VistaError(
                f"{path}: field {field!r} asks for code from outside to be run; vista-local runs none: "
                "use a model that the installed transformers knows by itself"
            )


def base_sha256(folder: str | Path) -> str:
    """Identity of a base: the hash of its safetensors file, or of all shards' hashes in name order.

    Raises:
        VistaError: the folder holds no safetensors weights.
    """
    hashes = [sha256_file(f) for f in safetensors_files(folder)]
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


def _check_values(manifest: AdapterManifest, path: Path) -> None:
    """Refuse values that a run would hang on or divide by.

    Raises:
        VistaError: names the field, what was found and what is accepted.
    """

    def finite(value: object) -> bool:
        try:
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        except OverflowError:  # an integer that no float can hold
            return False

    def refuse(name: str, value: object, accepted: str) -> None:
        raise VistaError(f"{path}: field {name!r}: {value!r}; accepted: {accepted}")

    # A limit of 0 tokens would be cut into pieces for ever.
    limit = "chunk_tokens" if manifest.stage == "decompose" else "max_reference_tokens"
    value = getattr(manifest, limit)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        refuse(limit, value, "a number of tokens from 1 on")
    words = manifest.label_words
    if not isinstance(words, dict) or not all(isinstance(w, str) and w and w.isprintable() for w in words.values()):
        refuse("label_words", words, "an object of words")
    heat, bias = manifest.calibration.temperature, manifest.calibration.bias
    if not finite(heat) or heat <= 0:
        refuse("calibration.temperature", heat, "a number above 0")
    if not isinstance(bias, dict) or not all(map(finite, bias.values())):
        refuse("calibration.bias", bias, "an object of numbers")


def read_manifest(folder: str | Path) -> AdapterManifest:
    """Read and check the manifest of an adapter folder.

    Raises:
        VistaError: there is none, it is no JSON, a field is unknown, missing or out of range, the weights differ
            from its hash, or the folder could run code: weights as pickles only, a configuration that
            names code.
    """
    path = Path(folder) / MANIFEST_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.get("schema") != MANIFEST_SCHEMA:
            raise VistaError(f"{path}: schema {data.get('schema')!r}; accepted: {MANIFEST_SCHEMA}")
        data["calibration"] = Calibration(**data.get("calibration", {}))
        manifest = AdapterManifest(**data)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VistaError(f"{folder}: no {MANIFEST_NAME}; this is no vista-local adapter folder") from error
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise VistaError(f"{path}: not a readable manifest: {error}") from error
    if manifest.stage not in STAGES:
        raise VistaError(f"{path}: stage {manifest.stage!r}; accepted: {', '.join(STAGES)}")
    _check_values(manifest, path)
    weights = Path(folder) / "adapter_model.safetensors"
    if not weights.is_file():
        safetensors_files(folder)  # where there are pickles only, they are named
        raise VistaError(f"{folder}: no adapter_model.safetensors; this is no whole adapter")
    found = sha256_file(weights)
    if found != manifest.adapter_sha256:
        raise VistaError(
            f"{weights}: SHA-256 {found}, but its manifest says {manifest.adapter_sha256}; "
            "the file is damaged or another one: get the adapter again"
        )
    refuse_remote_code(folder)
    return manifest
